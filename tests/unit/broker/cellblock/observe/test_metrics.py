"""Metrics, and the collector that takes them."""

from __future__ import annotations

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
from support.memory_host import HostedRun, World
from support.still_broker import StillBroker
from support.waits import within

MakeWorld = Callable[..., World]
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
    return samples.get((name, tuple(sorted(labels.items()))))


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
    name = "cellblock_runs_total"
    assert of(samples, name, outcome="ok") == 1
    assert of(samples, name, outcome="import_failure") == 1
    assert of(samples, name, outcome="sandbox_limit") == 1
    calls = "cellblock_tool_calls_total"
    assert of(samples, calls, server="tools", tool="echo", outcome="ok") == 2
    assert of(samples, calls, server="tools", tool="failing", outcome="uncertain") == 1
    assert of(samples, calls, server="unknown", tool="unknown", outcome="not_sent") == 1
    assert of(samples, "cellblock_worker_ends_total", reason="finished") == 1
    assert of(samples, "cellblock_worker_ends_total", reason="timeout") == 1
    assert of(samples, "cellblock_run_duration_seconds_count") == 3
    assert of(samples, "cellblock_run_duration_seconds_bucket", le="+Inf") == 3
    assert of(samples, "cellblock_queue_wait_seconds_count") == 2
    assert of(samples, "cellblock_tool_call_duration_seconds_count", server="tools") == 3


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


def test_the_state_now_and_hostile_names() -> None:
    samples = read(Tally())
    assert of(samples, "cellblock_pool_places") == 16
    assert of(samples, "cellblock_pool_queued") == 3
    assert of(samples, "cellblock_upstream_up", server="files") == 1
    assert of(samples, "cellblock_upstream_up", server='ev"il\n') == 0
    assert of(samples, "cellblock_upstream_connects_total", server='ev"il\n') == 9


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
