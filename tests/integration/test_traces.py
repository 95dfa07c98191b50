"""Traces all the way: a client's context, a real daemon, a real upstream server, and a receiver of OTLP over HTTP."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.trace.v1.trace_pb2 import Span

from support.entries import ledger
from support.http_daemon import TOOL, daemon
from support.http_server import Answering, serving
from support.params import mostly
from support.waits import until, within

TRACE, PARENT = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
CODE = """
import { echo, fail } from "@codemode/servers/plain";
await echo({ text: "in the input" });
await fail({ text: "in the output" }).catch(() => 0);
"""


@dataclass
class Collector:
    """What exporters have sent."""

    endpoint: str = ""
    spans: list[Span] = field(default_factory=list[Span])
    service: str = ""
    key: str | None = None
    raw: bytes = b""


@pytest.fixture
def collector() -> Iterator[Collector]:
    made = Collector()

    class Handler(Answering):
        def do_POST(self) -> None:
            body = self.body()
            made.raw += body
            made.key = self.headers["x-api-key"]
            for resource in ExportTraceServiceRequest.FromString(body).resource_spans:
                known = {item.key: item.value.string_value for item in resource.resource.attributes}
                made.service = known["service.name"]
                for scope in resource.scope_spans:
                    made.spans += scope.spans
            self.answer(200)

    with serving(Handler) as address:
        made.endpoint = f"http://{address}/v1/traces"
        yield made


@pytest.mark.parametrize("mode", mostly(["auto"], ["auto", "legacy"]))
async def test_one_trace_from_the_client_to_the_server(
    collector: Collector, tmp_path: Path, mode: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_HEADERS", "x-api-key=k-e-y")
    async with daemon(tmp_path, traces=collector.endpoint) as served:
        async with served.client(mode) as client:
            await within(
                client.call_tool(TOOL, {"code": CODE}, meta={"traceparent": f"00-{TRACE}-{PARENT}-01"})
            )
            # What is no trace context is passed over.
            await within(client.call_tool(TOOL, {"code": "1"}, meta={"traceparent": "nonsense"}))
        # Stopping exports what waits.
        served.process.terminate()
        await within(served.process.wait())
        await until(lambda: len(collector.spans) >= 4, "four spans")
    spans = {span.name: span for span in collector.spans if span.trace_id.hex() == TRACE}
    assert set(spans) == {"cellblock.run", "tools/call echo", "tools/call fail"}
    run = spans["cellblock.run"]
    assert (run.parent_span_id.hex(), run.kind) == (PARENT, Span.SPAN_KIND_SERVER)
    assert {one.parent_span_id for one in spans.values()} == {run.parent_span_id, run.span_id}
    (other,) = [span for span in collector.spans if span.trace_id.hex() != TRACE]
    assert (other.name, other.parent_span_id) == ("cellblock.run", b"")
    told = {
        event["tool"]: event["traceparent"].split("-")[1:3]
        for event in ledger(served.ledger)
        if event["event"] == "trace"
    }
    assert told == {name: [TRACE, spans[f"tools/call {name}"].span_id.hex()] for name in ("echo", "fail")}
    assert (collector.service, collector.key) == ("cellblock", "k-e-y")
    assert b"in the input" not in collector.raw and b"in the output" not in collector.raw


async def test_a_collector_that_is_gone_harms_no_run(tmp_path: Path) -> None:
    async with daemon(tmp_path, traces="http://127.0.0.1:9/v1/traces") as served:
        async with served.client() as client:
            result = await within(client.call_tool(TOOL, {"code": "globalThis.__codemode_result__ = 1"}), 60)
            assert result.structured_content["result"] == 1
        served.process.terminate()
        assert await within(served.process.wait()) == 0


async def test_without_an_endpoint_the_clients_context_goes_upstream_with_no_span_of_ours(
    tmp_path: Path,
) -> None:
    async with daemon(tmp_path) as served, served.client() as client:
        await within(client.call_tool(TOOL, {"code": CODE}, meta={"traceparent": f"00-{TRACE}-{PARENT}-01"}))
    events = ledger(served.ledger)
    assert "call" in {event["event"] for event in events}
    assert {event["traceparent"] for event in events if event["event"] == "trace"} <= {
        f"00-{TRACE}-{PARENT}-01"
    }
