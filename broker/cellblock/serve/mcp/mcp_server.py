"""Clients talk to this MCP server.

It greets them by itself; every other request waits until the broker runs, and is answered by the `Surface` that is
opened then: importing that takes as long as greeting a client.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncGenerator
from typing import TYPE_CHECKING, Any, Final, Self

import mcp_types as types
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from opentelemetry import context, trace
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from cellblock.base.tasks import in_background
from cellblock.serve.mcp import skills
from cellblock.serve.mcp.front import INITIALIZED, Front, Handler, stdio_owner
from cellblock.serve.mcp.task_models import EXTENSION, TaskParams, UpdateTaskParams
from cellblock.serve.mcp.tool_name import tool_names
from cellblock.serve.service import Context, OwnerOf, RunService
from cellblock.serve.splices import Splices

if TYPE_CHECKING:
    from cellblock.serve.kept_outputs import KeptOutputs
    from cellblock.serve.mcp.proxy import Proxy
    from cellblock.serve.mcp.surface import Surface


TRACE_KEYS: Final = ("traceparent", "tracestate")

METHODS: Final[dict[str, type[types.RequestParams]]] = {
    "tools/list": types.PaginatedRequestParams,
    "resources/list": types.PaginatedRequestParams,
    "resources/templates/list": types.PaginatedRequestParams,
    "resources/read": types.ReadResourceRequestParams,
    "tools/call": types.CallToolRequestParams,
    "subscriptions/listen": types.SubscriptionsListenRequestParams,
    "logging/setLevel": types.SetLevelRequestParams,
}
"""Maps methods to their parameters."""

PROXY_METHODS: Final[dict[str, type[types.RequestParams]]] = {
    "resources/subscribe": types.SubscribeRequestParams,
    "resources/unsubscribe": types.UnsubscribeRequestParams,
    "prompts/list": types.PaginatedRequestParams,
    "prompts/get": types.GetPromptRequestParams,
    "completion/complete": types.CompleteRequestParams,
}
"""Maps the methods that the profile `proxy` alone has to their parameters."""

TASK_METHODS: Final[dict[str, type[types.RequestParams]]] = {
    "tasks/get": TaskParams,
    "tasks/update": UpdateTaskParams,
    "tasks/cancel": TaskParams,
}
"""Maps the methods of the Tasks extension to their parameters. The profile `proxy` does not have them: it runs no
scripts."""

SKILL_METHODS: Final[dict[str, type[types.RequestParams]]] = {
    "skills/list": types.PaginatedRequestParams,
    # What names a resource names a skill.
    "skills/get": types.ReadResourceRequestParams,
}
"""Maps the methods of the Skills extension to their parameters; `proxy` has no skills either."""


class FrontServer(Server[dict[str, Any]]):
    """A front server is an MCP server in front of a broker.

    Args:
        service: The broker, which need not run yet.
        version: Of Cellblock.
        owner_of: Says whose a request is.

    Attributes:
        splices: Has the large results for whoever writes responses.
    """

    def __init__(self, service: RunService, *, version: str, owner_of: OwnerOf = stdio_owner) -> None:
        super().__init__("cellblock", version=version, title="Cellblock", lifespan=self._following)
        self.splices: Final = Splices()
        self._service = service
        self._front = Front(service, owner_of, self.splices)
        section = service.settings.cellblock
        self._surface: Surface | Proxy | None = None
        self._opened = asyncio.Event()
        if section.frontend.profile == "proxy":
            methods = METHODS | PROXY_METHODS
        else:
            methods = METHODS | TASK_METHODS | SKILL_METHODS
            self.extensions |= {EXTENSION: {}, skills.EXTENSION: {}}
        for method, params in methods.items():
            self.add_request_handler(method, params, self._at_surface(method))
        self.add_notification_handler(INITIALIZED, types.NotificationParams, self._at_surface(INITIALIZED))
        self.middleware.append(self._front.greet)
        if section.traces is not None:
            self.middleware.append(_with_trace_context)

    def open(self, kept: KeptOutputs | None = None) -> Self:
        """Answers what waits, and what comes, now that the broker runs; returns the server itself. Without `kept`,
        responses are whole."""
        from cellblock.serve.mcp.proxy import Proxy
        from cellblock.serve.mcp.surface import INPUT_SCHEMA, Surface

        shown = self._service.settings.cellblock.frontend
        self._front.kept = kept
        self._surface = (Proxy if shown.profile == "proxy" else Surface)(self._front)
        # Without it, the SDK lists the tools for every call over HTTP, to look for parameters sent as headers.
        self.get_tool_input_schema = dict.fromkeys(tool_names(shown), INPUT_SCHEMA).get
        if isinstance(self._surface, Proxy):
            self.get_tool_input_schema = self._surface.input_schema
            self.middleware.append(self._surface.place_large)
        self._opened.set()
        return self

    def end_streams(self) -> None:
        """Ends the streams of changes, which would never end by themselves."""
        if self._surface is not None:
            self._surface.changes.close()

    async def opened(self) -> Surface | Proxy:
        """Waits until the server is open, and returns what answers."""
        await self._opened.wait()
        assert self._surface is not None
        return self._surface

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        """Returns the SDK's options with the changes that are announced (the SDK has a parameter for that and, over
        HTTP, never gives it), and without the extensions of later revisions."""
        changes = NotificationOptions(
            tools_changed=True,
            resources_changed=True,
            prompts_changed=self._service.settings.cellblock.frontend.profile == "proxy",
        )
        options = super().create_initialization_options(
            notification_options or changes, experimental_capabilities, extensions
        )
        # Who is greeted by `initialize` speaks an older revision, which has no extensions.
        options.capabilities.extensions = extensions
        return options

    # ---- inside ------------------------------------------------------------------------------------------

    @contextlib.asynccontextmanager
    async def _following(self, _: Server[dict[str, Any]]) -> AsyncGenerator[dict[str, Any]]:
        """Follows changes of what clients are shown, as long as the server lives."""
        async with in_background(self._follow_changes(), name="list changes"):
            yield {}

    def _at_surface(self, method: str) -> Handler:
        """Returns a handler that hands on to the surface, when there is one."""

        async def handle(ctx: Context, params: Any) -> Any:
            surface = self._surface or await self.opened()
            return await surface.handlers[method](ctx, params)

        return handle

    async def _follow_changes(self) -> None:
        surface = await self.opened()
        async with surface.changes.followed():
            await asyncio.Event().wait()


async def _with_trace_context(ctx: Context, call_next: CallNext) -> HandlerResult:
    """Runs a request within the W3C trace context of its `_meta`, so that the run's span is below its client's (a
    middleware of the SDK). What is no trace context is passed over."""
    meta: Any = ctx.meta or {}
    carrier = {key: value for key in TRACE_KEYS if isinstance(value := meta.get(key), str)}
    parent = TraceContextTextMapPropagator().extract(carrier)
    if not trace.get_current_span(parent).get_span_context().is_valid:
        return await call_next(ctx)
    token = context.attach(parent)
    try:
        return await call_next(ctx)
    finally:
        context.detach(token)
