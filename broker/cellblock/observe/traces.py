"""Traces makes spans of OpenTelemetry: one for each run, below it one for each tool call, exported by OTLP over HTTP.

The span of a run is a child of what the client says in `_meta.traceparent`; a tool call goes upstream with the context
of its own span, which the SDK writes into `_meta` (both are W3C Trace Context). The provider is our own, never the
process's global one. Nothing of a script's or tool's text is in a span but the names of server and tool.
"""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING, Any, Final

from cellblock.base.errors import ConfigError
from cellblock.run.events import CallFacts, RunFacts, Watcher, call_outcome

if TYPE_CHECKING:
    from opentelemetry.sdk.trace import TracerProvider
    from opentelemetry.sdk.trace.export import SpanExporter
    from opentelemetry.trace import Span

MAX_NAME_CHARS: Final = 120

EXPORT_SECONDS: Final = 5.0
"""Bounds one export, and how long a daemon that stops waits for the last one."""

HINT: Final = "Install it: pip install 'cellblock[otel]'."


def make_exporter(endpoint: str) -> SpanExporter:
    """Returns the exporter to a collector.

    Raises:
        ConfigError: The extra is not installed.
    """
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
    except ImportError:
        raise ConfigError("cellblock.traces needs the OpenTelemetry exporter.", hint=HINT) from None
    return OTLPSpanExporter(endpoint=endpoint, timeout=EXPORT_SECONDS)


class Tracer(Watcher):
    """Makes the spans of runs and calls. Export is the work of the SDK's own thread.

    Raises:
        ConfigError: The extra is not installed.
    """

    def __init__(self, exporter: SpanExporter, version: str) -> None:
        try:
            from opentelemetry.sdk.resources import Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError:
            raise ConfigError("cellblock.traces needs the OpenTelemetry SDK.", hint=HINT) from None
        name = os.environ.get("OTEL_SERVICE_NAME", "cellblock")
        self._provider: TracerProvider = TracerProvider(
            resource=Resource.create({"service.name": name, "service.version": version}),
            shutdown_on_exit=False,
        )
        self._provider.add_span_processor(BatchSpanProcessor(exporter))
        self._tracer = self._provider.get_tracer("cellblock", version)
        self._spans: dict[str, Span] = {}
        self._calls: dict[int, Span] = {}

    def close(self) -> None:
        """Exports the spans that wait, within `EXPORT_SECONDS`. Blocks."""
        self._provider.force_flush(int(EXPORT_SECONDS * 1000))
        self._provider.shutdown()

    def run_accepted(self, run: RunFacts) -> None:
        """Begins the span of the run, below the one that is current where the request came in."""
        from opentelemetry.trace import SpanKind

        self._spans[run.id] = self._tracer.start_span(
            "cellblock.run",
            kind=SpanKind.SERVER,
            start_time=int(run.accepted_at * 1e9) or time.time_ns(),
            attributes={"cellblock.run.id": run.id, "cellblock.client": run.client[:MAX_NAME_CHARS]},
        )

    def run_started(self, run: RunFacts) -> None:
        """Says when a worker had the script."""
        if (span := self._spans.get(run.id)) is not None:
            span.add_event("worker started")

    def call_begun(self, run: RunFacts, call: CallFacts) -> None:
        """Begins the span of a call, and makes it current: we are in the task that will call the server."""
        from opentelemetry import context
        from opentelemetry.trace import SpanKind, set_span_in_context

        parent = self._spans.get(run.id)
        if parent is None:
            return
        server, tool = call.server[:MAX_NAME_CHARS], call.tool[:MAX_NAME_CHARS]
        span = self._tracer.start_span(
            f"tools/call {tool}",
            context=set_span_in_context(parent),
            kind=SpanKind.CLIENT,
            attributes={
                "mcp.method.name": "tools/call",
                "gen_ai.tool.name": tool,
                "cellblock.server": server,
            },
        )
        self._calls[id(call)] = span
        # The task ends with the call, and its context with it: there is nothing to detach.
        context.attach(set_span_in_context(span))

    def call_ended(self, run: RunFacts, call: CallFacts) -> None:
        if (span := self._calls.pop(id(call), None)) is not None:
            outcome = call_outcome(call)
            span.set_attribute("cellblock.call.outcome", outcome)
            _finish(span, outcome, call.error or outcome)

    def run_ended(self, run: RunFacts) -> None:
        """Ends the run's span, and those of calls that never came back."""
        for call in run.calls:
            if (lost := self._calls.pop(id(call), None)) is not None:
                _finish(lost, "uncertain", "given up with the run")
        span = self._spans.pop(run.id, None)
        if span is None:
            return
        attributes: dict[str, Any] = {
            "cellblock.run.outcome": run.outcome,
            "cellblock.run.tool_calls": len(run.calls),
        }
        if run.leased is not None and run.queued is not None:
            attributes["cellblock.run.queue_ms"] = round((run.leased - run.queued) * 1000, 3)
        if run.response is not None:
            usage = run.response.usage
            attributes |= {
                "cellblock.run.wall_ms": usage.wall_ms,
                "cellblock.run.cpu_ms": usage.cpu_ms,
                "cellblock.run.peak_memory_bytes": usage.peak_memory_bytes,
            }
        span.set_attributes(attributes)
        _finish(span, run.outcome, run.outcome)


def _finish(span: Span, outcome: str, why: str) -> None:
    from opentelemetry.trace import StatusCode

    if outcome != "ok":
        span.set_status(StatusCode.ERROR, why)
    span.end()
