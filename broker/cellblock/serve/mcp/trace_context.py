"""Takes over the W3C trace context that a client sends in `_meta` of a call, so that the run's span is below its own.

Used only where traces are configured.
"""

from __future__ import annotations

from typing import Any

from mcp.server.context import CallNext, HandlerResult, ServerRequestContext
from opentelemetry import context, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

_KEYS = ("traceparent", "tracestate")
_propagator = TraceContextTextMapPropagator()


async def with_trace_context(ctx: ServerRequestContext[Any, Any], call_next: CallNext) -> HandlerResult:
    """Runs a request within its trace context (a middleware of the MCP server). What is no trace context is passed
    over."""
    meta: Any = ctx.meta or {}
    carrier = {key: value for key in _KEYS if isinstance(value := meta.get(key), str)}
    parent = _propagator.extract(carrier) if carrier else None
    if parent is None or not trace.get_current_span(parent).get_span_context().is_valid:
        return await call_next(ctx)
    token = context.attach(parent)
    try:
        return await call_next(ctx)
    finally:
        context.detach(token)
