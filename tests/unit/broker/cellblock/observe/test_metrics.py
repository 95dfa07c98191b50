"""Metrics, and the collector that takes them."""

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from cellblock import Broker
from cellblock.observe.metrics import Metrics, Tally
from support.entries import settings
from support.memory_host import HostedRun, MakeWorld
from support.still_broker import StillBroker
from support.waits import within

Samples = dict[tuple[str, tuple[tuple[str, str], ...]], float]


STILL = StillBroker(
    [
        {"id": "files", "state": "ready", "tools": 5, "attempts": 1},
        {"id": 'ev"il\n', "state": "waiting", "tools": 0, "attempts": 9},
    ],
    capacity=16,
    running=2,
    queued=3,
    warm=4,
    booting=1,
    hostCount=1,
)


def read(tally: Tally) -> Samples:
    page = Metrics(tally, STILL).page().decode()
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }


def of(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((f"cellblock_{name}", tuple(sorted(labels.items()))))


def playing(*tools: str, reason: str = "finished") -> Callable[[HostedRun], Any]:
    async def play(run: HostedRun) -> None:
        for number, tool in enumerate(tools, 1):
            await run.call(number, tool=tool)
        if reason == "finished":
            run.done(1)
        else:
            run.ended(reason)

    return play


async def failing(arguments: dict[str, Any]) -> Any:
    raise RuntimeError("no")


async def test_runs_calls_and_ends_are_counted(make_world: MakeWorld) -> None:
    world, tally = make_world(tools={"failing": failing}), Tally()
    world.events.add(tally)
    host = await world.host(playing("echo", "echo", "failing", "no-such-tool"))
    await world.run()
    await world.run("import 'npm:nothing'")
    host.play = playing(reason="timeout")
    await world.run()
    samples = read(tally)
    expected: list[tuple[float, str, dict[str, str]]] = [
        (1, "runs_total", {"outcome": "ok"}),
        (1, "runs_total", {"outcome": "import_failure"}),
        (1, "runs_total", {"outcome": "sandbox_limit"}),
        (2, "tool_calls_total", {"server": "tools", "tool": "echo", "outcome": "ok"}),
        (1, "tool_calls_total", {"server": "tools", "tool": "failing", "outcome": "uncertain"}),
        (1, "tool_calls_total", {"server": "unknown", "tool": "unknown", "outcome": "not_sent"}),
        (1, "worker_ends_total", {"reason": "finished"}),
        (1, "worker_ends_total", {"reason": "timeout"}),
        (3, "run_duration_seconds_count", {}),
        (3, "run_duration_seconds_bucket", {"le": "+Inf"}),
        (2, "queue_wait_seconds_count", {}),
        (3, "tool_call_duration_seconds_count", {"server": "tools"}),
    ]
    for value, name, labels in expected:
        assert of(samples, name, **labels) == value, (name, labels)


async def test_a_script_cannot_make_up_labels(make_world: MakeWorld) -> None:
    world, tally = make_world(), Tally()
    world.events.add(tally)
    await world.host(playing(*(f"made-up-{number}" for number in range(50))))
    await world.run(limits={"maxToolCalls": 100})
    assert set(tally.calls) == {("unknown", "unknown", "not_sent")}


async def test_a_server_with_very_many_tools_gets_only_so_many_labels(
    make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellblock.observe.metrics.MAX_TOOLS", 5)

    async def fine(arguments: dict[str, Any]) -> Any:
        return {}

    names = [f"tool{number}" for number in range(20)]
    world, tally = make_world(tools=dict.fromkeys(names, fine)), Tally()
    world.events.add(tally)
    await world.host(playing(*names))
    await world.run()
    assert len(tally.calls) == 6
    assert tally.calls["other", "other", "ok"] == 15


@pytest.mark.parametrize(
    ("value", "name", "labels"),
    [
        (16, "pool_places", {}),
        (3, "pool_queued", {}),
        (1, "upstream_up", {"server": "files"}),
        (0, "upstream_up", {"server": 'ev"il\n'}),
        (9, "upstream_connects_total", {"server": 'ev"il\n'}),
    ],
)
def test_the_state_now_and_hostile_names(value: float, name: str, labels: dict[str, str]) -> None:
    assert of(read(Tally()), name, **labels) == value


async def test_a_programs_registry_has_them(tmp_path: Path) -> None:
    registry = CollectorRegistry(auto_describe=True)
    Counter("orders", "The program's own.", registry=registry).inc()
    broker = Broker(settings(tmp_path, {}, pool={"warm": 1, "capacity": 3}), tools=[])
    registry.register(broker.metrics_collector())
    other = CollectorRegistry()
    other.register(broker.metrics_collector())

    def page(registry: CollectorRegistry = registry) -> str:
        return generate_latest(registry).decode()

    before = page()
    assert "orders_total 1.0" in before and "cellblock_pool_places" not in before
    async with broker:
        assert (await within(broker.run("globalThis.__codemode_result__ = 1;"), 60)).ok
        here = page()
        beside = await within(asyncio.to_thread(page), 60)
        for text in (here, beside, page(other)):
            assert 'cellblock_runs_total{outcome="ok"} 1.0' in text
            assert "cellblock_pool_places 3.0" in text
    after = page()
    assert 'cellblock_runs_total{outcome="ok"} 1.0' in after and "cellblock_pool_places" not in after
