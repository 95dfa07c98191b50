"""Spans of runs, by the real SDK with an exporter that keeps them."""

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import StatusCode
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from cellblock.observe.traces import Tracer
from support.memory_host import HostedRun, MakeWorld


class Traced:
    """A tracer and its spans."""

    def __init__(self) -> None:
        self.exporter = InMemorySpanExporter()
        self.tracer = Tracer(self.exporter, "1")

    def spans(self) -> dict[str, ReadableSpan]:
        self.tracer.close()
        return {span.name: span for span in self.exporter.get_finished_spans()}


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


async def play(run: HostedRun) -> None:
    ok, answer = await run.call(1, tool="where")
    await run.call(2, tool="missing")
    run.done({"ok": ok, "answer": answer}, wall_ms=5)


def hexadecimal(span: ReadableSpan) -> str:
    assert span.context is not None
    return f"00-{span.context.trace_id:032x}-{span.context.span_id:016x}-{span.context.trace_flags:02x}"


async def test_a_span_for_the_run_and_one_below_it_for_each_call(
    make_world: MakeWorld, traced: Traced
) -> None:
    world = make_world(tools={"where": seen_by_the_tool})
    world.events.add(traced.tracer)
    response = await world.played(play, "'in the script'")
    spans = traced.spans()
    assert set(spans) == {"cellblock.run", "tools/call where", "tools/call missing"}
    run, call, missing = (spans[name] for name in ("cellblock.run", "tools/call where", "tools/call missing"))
    assert run.parent is None
    assert run.attributes is not None and run.attributes["cellblock.run.outcome"] == "ok"
    for span in (call, missing):
        assert span.parent is not None and run.context is not None
        assert span.parent.span_id == run.context.span_id
    assert response.result["answer"]["traceparent"] == hexadecimal(call)
    assert (call.status.status_code, missing.status.status_code) == (StatusCode.UNSET, StatusCode.ERROR)
    assert "in the script" not in "".join(span.to_json() for span in spans.values())
    assert run.start_time and run.end_time and call.start_time and call.end_time
    assert run.start_time <= call.start_time <= call.end_time <= run.end_time


async def test_runs_at_once_do_not_mix(make_world: MakeWorld, traced: Traced) -> None:
    world = make_world(tools={"where": seen_by_the_tool})
    world.events.add(traced.tracer)
    await world.host(play, capacity=8)
    responses = await asyncio.gather(*(world.run() for _ in range(8)))
    traced.tracer.close()
    spans = traced.exporter.get_finished_spans()
    runs = {span.context.span_id: span for span in spans if span.name == "cellblock.run" and span.context}
    calls = {hexadecimal(span): span for span in spans if span.name == "tools/call where"}
    assert len(runs) == len(calls) == 8
    told = {response.result["answer"]["traceparent"] for response in responses}
    assert told == set(calls)
    for call in calls.values():
        assert call.parent is not None and call.context is not None
        above = runs.pop(call.parent.span_id)
        assert above.context is not None and above.context.trace_id == call.context.trace_id


async def test_a_failed_run_is_an_error_and_its_open_call_ends(make_world: MakeWorld, traced: Traced) -> None:
    async def slow(arguments: dict[str, Any]) -> Any:
        await asyncio.sleep(60)

    async def timed_out(run: HostedRun) -> None:
        run.call(1, tool="slow")
        await asyncio.sleep(0.01)
        run.ended("timeout")

    world = make_world(tools={"slow": slow})
    world.events.add(traced.tracer)
    await world.host(timed_out)
    await world.run()
    spans = traced.spans()
    assert spans["cellblock.run"].status.status_code is StatusCode.ERROR
    assert spans["tools/call slow"].status.description == "in flight when the run ended: may have run"


async def test_nothing_is_made_the_process_s_own(traced: Traced) -> None:
    assert not trace.get_tracer("x").start_span("y").is_recording()


async def test_the_share_that_is_traced(make_world: MakeWorld, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_TRACES_SAMPLER", "parentbased_traceidratio")
    monkeypatch.setenv("OTEL_TRACES_SAMPLER_ARG", "0.0")
    none = Traced()
    world = make_world(tools={"where": seen_by_the_tool})
    world.events.add(none.tracer)
    await world.played(play)
    assert none.spans() == {}
