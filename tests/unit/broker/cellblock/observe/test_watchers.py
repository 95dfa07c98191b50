"""What watches runs: the board of running ones, metrics with the collector that takes them, and spans, by the real SDK
with an exporter that keeps them."""

import asyncio
import gc
import json
import subprocess
import sys
import threading
import tracemalloc
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol
from unittest.mock import AsyncMock

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from prometheus_client import CollectorRegistry, Counter, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from cellblock import Broker, Watcher
from cellblock.app.config.load import load_settings
from cellblock.base.errors import ConfigError
from cellblock.observe.metrics import Metrics, Tally
from cellblock.observe.traces import Tracer, make_exporter
from cellblock.run.board import MAX_LOGS, MAX_SCRIPT_CHARS, Board
from cellblock.run.events import RunFacts
from cellblock.run.response import RunResponse
from support.entries import settings
from support.memory_host import HostedRun, MakeWorld, World, hold, turns
from support.still_broker import StillBroker
from support.waits import until, within


class Watched(Protocol):
    def __call__(self, *watchers: Watcher, **options: Any) -> World: ...


@pytest.fixture
def watched(make_world: MakeWorld) -> Watched:
    """Makes the broker's parts with these watchers of its runs."""

    def make(*watchers: Watcher, **options: Any) -> World:
        world = make_world(**options)
        for watcher in watchers:
            world.events.add(watcher)
        return world

    return make


async def play(run: HostedRun) -> None:
    run.log("one")
    await run.call(1, value={"text": "in the input"})
    await run.call(2, tool="missing")
    run.done({"text": "in the result"}, wall_ms=9)


async def test_a_run_with_its_timeline_and_logs(watched: Watched) -> None:
    board = Board(10)
    await watched(board).played(play, "'in the script'")
    (short,) = board.recent()
    assert (short["outcome"], short["calls"], short["failedCalls"], short["state"]) == ("ok", 2, 1, "ended")
    assert "timeline" not in short
    whole: Any = board.run(short["id"])
    assert [(call["tool"], call["outcome"]) for call in whole["timeline"]] == [
        ("echo", "ok"),
        ("missing", "not_sent"),
    ]
    assert [entry["message"] for entry in whole["logs"]] == ["one"]
    assert list(whole["steps"]) == ["queued", "leased", "started", "ended"]
    assert whole["usage"]["wallMs"] == 9
    assert "in the" not in json.dumps(whole)


async def test_live_runs_with_their_last_log(watched: Watched) -> None:
    board = Board(10)
    world = watched(board)
    host = await world.host(hold)
    task = world.begin()
    await host.until_runs(1)
    host.runs[0].log("half way")
    await turns()
    (live,) = board.live()
    assert (live["state"], live["lastLog"], live["outcome"]) == ("running", "half way", "running")
    assert board.run(live["id"]) is not None
    assert board.recent() == []
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_memory_is_bounded(watched: Watched) -> None:
    async def chatty(run: HostedRun) -> None:
        for number in range(MAX_LOGS + 50):
            run.log(f"line {number}")
        run.done("x" * 100_000)

    board = Board(3)
    world = watched(board)
    await world.host(chatty)
    for _ in range(5):
        await world.run("1" * 10_000)
    kept = board.recent()
    assert len(kept) == 3 and len(json.dumps(kept)) < 2_000
    whole: Any = board.run(kept[0]["id"])
    assert [entry["message"] for entry in whole["logs"]] == [
        f"line {number + 50}" for number in range(MAX_LOGS)
    ]
    assert whole["logsLeftOut"] == 50
    gc.collect()
    # The facts hold the script and the response: none of them may live on. Those of other tests' runs are none of
    # this board's.
    kept_facts = [known for known in gc.get_objects() if isinstance(known, RunFacts)]
    assert not [known for known in kept_facts if known.code == "1" * 10_000]


def test_one_principals_runs_hide_no_others() -> None:
    board = Board(4)
    for number, principal in enumerate(["ann", *["eve"] * 20, "bob", *["eve"] * 20]):
        board.run_ended(RunFacts(f"{principal} {number}", "c", "", 0.0, 0.0, principal=principal))
    assert [one["id"] for one in board.recent()] == ["eve 41", "eve 40", "bob 21", "ann 0"]
    assert board.run("ann 0") is not None and board.run("eve 39") is None


async def test_logs_can_be_left_out(watched: Watched) -> None:
    board = Board(3, logs=False)
    await watched(board).played(play)
    whole: Any = board.run(board.recent()[0]["id"])
    assert (whole["logs"], whole["logsLeftOut"]) == ([], 1)


async def test_scripts_are_kept_only_where_asked_for_and_cut(watched: Watched) -> None:
    board, showing = Board(3), Board(3, scripts=True)
    await watched(board, showing).played(play, "1;" + "x" * MAX_SCRIPT_CHARS)
    (short,) = showing.recent()
    assert "script" not in short and "script" not in (board.run(short["id"]) or {})
    whole: Any = showing.run(short["id"])
    assert whole["script"] == "1;" + "x" * (MAX_SCRIPT_CHARS - 2) + "\n… (2 characters more)"


def test_runs_of_each_second(monkeypatch: pytest.MonkeyPatch) -> None:
    board = Board(3)
    monkeypatch.setattr("cellblock.run.board.time.monotonic", lambda: 1000.5)
    well = RunResponse(logs=[], diagnostics=[])
    for at, response in [(990.0, well), (998.2, well), (998.9, None), (999.1, well), (1000.4, well)]:
        board.run_ended(RunFacts(str(at), "c", "", 0.0, 0.0, ended=at, response=response))
    assert board.per_second(3) == [[0, 0], [2, 1], [1, 0]]


def test_what_is_kept_of_ended_runs_has_its_size_after_a_few_of_them() -> None:
    board = Board(3)

    def kept_after(runs: int) -> int:
        for number in range(runs):
            board.run_ended(RunFacts(str(number % 9), "c", "", 0.0, 0.0, ended=number / 100))
        return tracemalloc.get_traced_memory()[0]

    tracemalloc.start()
    try:
        few = kept_after(1_000)
        assert kept_after(20_000) < few + 32_000
    finally:
        tracemalloc.stop()


async def test_what_is_off_is_not_there(tmp_path: Path) -> None:
    before = {thread.name for thread in threading.enumerate()}
    async with Broker(settings(tmp_path)) as broker:
        assert not broker.events._watchers  # pyright: ignore[reportPrivateUsage]
        assert not {thread.name for thread in threading.enumerate() if "audit" in thread.name} - before
    assert not (tmp_path / "audit.jsonl").exists()


async def test_the_audit_log_is_whole_when_the_broker_has_stopped(tmp_path: Path) -> None:
    # A run that is under way is ended by the stop, and its end is in the log too.
    async with Broker(settings(tmp_path, audit=["calls"])) as broker:
        assert (await broker.run("1")).ok
        task = asyncio.create_task(broker.run("await new Promise(() => {})"))
        await until(lambda: broker.facts().pool()["running"], "a run")
    await asyncio.gather(task, return_exceptions=True)
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["run", "run_end", "run", "run_end"]
    assert [line["outcome"] for line in lines if "outcome" in line] == ["ok", "CANCELLED"]


def test_a_service_has_an_audit_log_unless_told_otherwise(tmp_path: Path) -> None:
    assert load_settings(None).for_service().cellblock.audit == ["calls"]
    assert settings(tmp_path, audit="off").for_service().cellblock.audit == "off"


def test_traces_without_the_extra_say_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"pip install 'cellblock\[otel\]'"):
        make_exporter("http://127.0.0.1:4318/v1/traces")


def test_the_broker_imports_none_of_it() -> None:
    heavy = ("prometheus_client", "opentelemetry.sdk", "cellblock.observe.audit", "cellblock.run.board")
    code = f"import sys, cellblock.app; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout, done.stderr) == ("[]\n", "")


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
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(Metrics(tally, STILL).page().decode())
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


async def test_runs_calls_and_ends_are_counted(watched: Watched) -> None:
    tally = Tally()
    world = watched(tally, tools={"failing": AsyncMock(side_effect=RuntimeError("no"))})
    host = await world.host(playing("echo", "echo", "failing", "no-such-tool"))
    await world.run()
    await world.run("import 'npm:nothing'")
    host.play = playing(reason="timeout")
    await world.run()
    samples = read(tally)
    for value, name, labels in (
        (1, "runs_total", {"outcome": "ok"}),
        (1, "runs_total", {"outcome": "import_failure"}),
        (1, "runs_total", {"outcome": "sandbox_limit"}),
        (2, "tool_calls_total", {"server": "tools", "tool": "echo", "outcome": "ok"}),
        (1, "tool_calls_total", {"server": "tools", "tool": "failing", "outcome": "uncertain"}),
        (1, "tool_calls_total", {"server": "unknown", "tool": "unknown", "outcome": "not_sent"}),
        (1, "worker_ends_total", {"reason": "finished"}),
        (1, "worker_ends_total", {"reason": "timeout"}),
        (3, "run_duration_seconds_count", dict[str, str]()),
        (3, "run_duration_seconds_bucket", {"le": "+Inf"}),
        (2, "queue_wait_seconds_count", dict[str, str]()),
        (3, "tool_call_duration_seconds_count", {"server": "tools"}),
    ):
        assert of(samples, name, **labels) == value, (name, labels)
    # A script cannot make up labels.
    assert tally.calls == {
        ("tools", "echo", "ok"): 2,
        ("tools", "failing", "uncertain"): 1,
        ("unknown", "unknown", "not_sent"): 1,
    }


async def test_a_server_with_very_many_tools_gets_only_so_many_labels(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellblock.observe.metrics.MAX_TOOLS", 5)
    names, tally = [f"tool{number}" for number in range(20)], Tally()
    await watched(tally, tools=dict.fromkeys(names, AsyncMock(return_value={}))).played(playing(*names))
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
        for text in (page(), await within(asyncio.to_thread(page), 60), page(other)):
            assert 'cellblock_runs_total{outcome="ok"} 1.0' in text
            assert "cellblock_pool_places 3.0" in text
    after = page()
    assert 'cellblock_runs_total{outcome="ok"} 1.0' in after and "cellblock_pool_places" not in after


class Traced:
    """A tracer and its spans."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracer = Tracer(self.exporter, "1")

    def spans(self) -> list[Any]:
        self.tracer.close()
        return [*self.exporter.get_finished_spans()]


@pytest.fixture
def traced() -> Iterator[Traced]:
    made = Traced()
    yield made
    made.tracer.close()


async def seen_by_the_tool(arguments: dict[str, Any]) -> Any:
    """The context that a call's task has: what goes upstream."""
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return carrier


async def ask(run: HostedRun) -> None:
    ok, answer = await run.call(1, tool="where")
    await run.call(2, tool="missing")
    run.done({"ok": ok, "answer": answer}, wall_ms=5)


def hexadecimal(span: Any) -> str:
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{span.context.trace_flags:02x}"


async def test_a_span_for_the_run_and_one_below_it_for_each_call(watched: Watched, traced: Traced) -> None:
    response = await watched(traced.tracer, tools={"where": seen_by_the_tool}).played(ask, "'in the script'")
    call, missing, run = spans = traced.spans()
    assert [span.name for span in spans] == ["tools/call where", "tools/call missing", "cellblock.run"]
    assert run.parent is None and run.attributes["cellblock.run.outcome"] == "ok"
    assert call.parent.span_id == missing.parent.span_id == run.context.span_id
    assert response.result["answer"]["traceparent"] == hexadecimal(call)
    assert (call.status.status_code, missing.status.status_code) == (StatusCode.UNSET, StatusCode.ERROR)
    assert "in the script" not in "".join(span.to_json() for span in spans)
    assert run.start_time <= call.start_time <= call.end_time <= run.end_time


async def test_runs_at_once_do_not_mix(watched: Watched, traced: Traced) -> None:
    world = watched(traced.tracer, tools={"where": seen_by_the_tool})
    await world.host(ask, capacity=8)
    responses = await asyncio.gather(*(world.run() for _ in range(8)))
    spans = traced.spans()
    runs = {(span.context.trace_id, span.context.span_id) for span in spans if span.name == "cellblock.run"}
    calls = [span for span in spans if span.name == "tools/call where"]
    assert len(runs) == 8
    assert {(span.context.trace_id, span.parent.span_id) for span in calls} == runs
    told = {response.result["answer"]["traceparent"] for response in responses}
    assert told == {hexadecimal(span) for span in calls}


async def test_a_failed_run_is_an_error_and_its_open_call_ends(watched: Watched, traced: Traced) -> None:
    async def slow(arguments: dict[str, Any]) -> Any:
        await asyncio.sleep(60)

    async def timed_out(run: HostedRun) -> None:
        run.call(1, tool="slow")
        await asyncio.sleep(0.01)
        run.ended("timeout")

    await watched(traced.tracer, tools={"slow": slow}).played(timed_out)
    spans = {span.name: span.status for span in traced.spans()}
    assert spans["cellblock.run"].status_code is StatusCode.ERROR
    assert spans["tools/call slow"].description == "in flight when the run ended: may have run"


async def test_nothing_is_made_the_process_s_own(traced: Traced) -> None:
    assert not trace.get_tracer("x").start_span("y").is_recording()


async def test_the_share_that_is_traced(watched: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.0")
    none = Traced()
    await watched(none.tracer, tools={"where": seen_by_the_tool}).played(ask)
    assert none.spans() == []
