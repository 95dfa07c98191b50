"""A lent server is what other brokers see of a server that this one has: an MCP server that answers as that one does.

It decides nothing. Policy, budgets, pins and approvals are the asking broker's; results pass as they came.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from typing import Any, Final
from weakref import WeakValueDictionary

import mcp_types as types
from mcp import Client, MCPError
from mcp.server.context import CallNext, HandlerResult
from mcp.server.lowlevel import NotificationOptions, Server
from mcp.server.models import InitializationOptions
from mcp.server.session import ServerSession
from pydantic import BaseModel

from cellblock.apart.budget import OverBudget
from cellblock.apart.raw import RawJson, Splices
from cellblock.base.errors import Certainty, ToolCallError
from cellblock.catalog.requests import Kind
from cellblock.frontend.client import Context
from cellblock.frontend.http.exchange import Exchange
from cellblock.frontend.mcp.list_changes import TELL_SECONDS
from cellblock.frontend.mcp.proxy import LiveCall
from cellblock.frontend.mcp.requests_back import ClientOfRun, by_requests
from cellblock.frontend.mcp.run_tool import told
from cellblock.frontend.outputs.run_output import tokens_for
from cellblock.upstream import failures
from cellblock.upstream.heavy import as_it_came, heavy_value
from cellblock.upstream.incoming import CALL, PASSED_ON
from cellblock.upstream.input_rounds import RUN_KEY
from cellblock.upstream.lenience import as_sent
from cellblock.upstream.requester import CallOrigin, Live
from cellblock.upstream.session import UpstreamSession

logger = logging.getLogger("cellblock.frontend")

PAGE_BYTES: Final = 128 * 1024
"""Bounds the definitions on one page of a list: written on the loop, and read on another one's."""

PAGE_ITEMS: Final = 100
"""Bounds the items on one page of another list."""

LARGE_KEY: Final = "cellblock.large"
"""Names, in the ASGI scope, the large inputs that came behind a message, by their tokens."""

LISTS: Final[Mapping[str, Kind]] = {
    "resources/list": "resources",
    "resources/templates/list": "resourceTemplates",
    "prompts/list": "prompts",
}

REQUESTS: Final = ("resources/read", "prompts/get", "completion/complete")
"""Lists the requests that are passed on as they are. Nobody subscribes: which broker would be told is not known."""


class _Run:
    """Stands for a run of another broker; one object for all its calls."""


class LentServer(Server[dict[str, Any]]):
    """Answers the sessions of other brokers.

    Args:
        session: This broker's, with the server.
        client: The connection that is lent.
        splices: Has what is large in answers for whoever writes them.
    """

    def __init__(self, session: UpstreamSession, client: Client, splices: Splices) -> None:
        info = client.server_info
        super().__init__(
            info.name if info else session.name,
            version=(info.version if info else "") or "",
            title=info.title if info else None,
            instructions=client.instructions,
        )
        self._session, self._client, self._splices = session, client, splices
        self._told: set[ServerSession] = set()
        self._runs: WeakValueDictionary[str, _Run] = WeakValueDictionary()
        self.middleware[:] = [self._answered]

    def create_initialization_options(
        self,
        notification_options: NotificationOptions | None = None,
        experimental_capabilities: dict[str, dict[str, Any]] | None = None,
        extensions: dict[str, dict[str, Any]] | None = None,
    ) -> InitializationOptions:
        """Returns the SDK's options with what the server can do."""
        options = super().create_initialization_options(notification_options, experimental_capabilities)
        able = self._client.server_capabilities.model_copy(update={"extensions": None, "tasks": None})
        if able.tools is not None:
            able.tools = types.ToolsCapability(list_changed=True)
        if able.resources is not None:
            able.resources = types.ResourcesCapability(list_changed=True)
        options.capabilities = able
        return options

    async def tell(self, *, beside: bool) -> None:
        """Tells all sessions that the tools have changed, or what there is `beside` them."""
        for session in [*self._told]:
            try:
                async with asyncio.timeout(TELL_SECONDS):
                    if beside:
                        await session.send_resource_list_changed()
                        await session.send_prompt_list_changed()
                    else:
                        await session.send_tool_list_changed()
            except Exception as error:  # noqa: BLE001 - one that cannot be told is gone
                logger.info("another broker cannot be told of a change: %s", type(error).__name__)
                self._told.discard(session)

    # ---- inside ------------------------------------------------------------------------------------------

    async def _answered(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Answers in the SDK's place what it would refuse of a server's own words (a middleware of it)."""
        params, method = ctx.params or {}, ctx.method
        if method == "notifications/initialized":
            connection = ctx.session._connection  # pyright: ignore[reportPrivateUsage]  # as in `list_changes`
            self._told.add(ctx.session)
            connection.exit_stack.callback(self._told.discard, ctx.session)
        if method == "tools/list":
            return self._tools(params.get("cursor"))
        if method in LISTS:
            return await self._entries(LISTS[method], params.get("cursor"))
        if method == CALL or method in REQUESTS:
            return await Exchange.from_context(ctx).carry(ctx, self._carried)
        return await call_next(ctx)

    def _tools(self, cursor: Any) -> dict[str, Any]:
        facts = self._session.facts
        listed = facts.tools if facts is not None else ()
        start = end = _number(cursor)
        size = 0
        while end < len(listed) and (end == start or size + listed[end].size <= PAGE_BYTES):
            size += listed[end].size
            end += 1
        page: dict[str, Any] = {"tools": [tool.definition for tool in listed[start:end]]}
        return page if end >= len(listed) else {**page, "nextCursor": str(end)}

    async def _entries(self, kind: Kind, cursor: Any) -> dict[str, Any]:
        start = _number(cursor)
        listed = await self._session.entries(kind, fresh=start == 0)
        end = start + PAGE_ITEMS
        page: dict[str, Any] = {kind: [_plain(entry) for entry in listed[start:end]]}
        return page if end >= len(listed) else {**page, "nextCursor": str(end)}

    async def _carried(self, ctx: Context) -> HandlerResult:
        """Has the server do what another broker asks. Raises MCPError with the failure as this broker has it."""
        params = dict(ctx.params or {})
        meta: Any = params.pop("_meta", None) or {}
        live = LiveCall("debug", wants_progress="progressToken" in meta or "progress_token" in meta)
        try:
            return await told(live, ctx, self._call(ctx, params, meta, live))
        except ToolCallError as error:
            code = error.rpc_code or types.INTERNAL_ERROR
            raise MCPError(code, error.message, failures.as_data(error)) from None

    async def _call(
        self, ctx: Context, params: dict[str, Any], meta: dict[str, Any], live: LiveCall
    ) -> HandlerResult:
        session, name = self._session, params.get("name")
        if session.client is not self._client:
            raise MCPError(types.INTERNAL_ERROR, failures.MOVED)
        origin, bound = self._origin(ctx, meta, live), session.call_seconds
        if ctx.method != CALL:
            result = await session.call(ctx.method, params, call_bound=bound, origin=origin, is_tool=False)
            return self._placed(ctx.method, result)
        given: Any = params.get("arguments")
        if isinstance(given, str):
            # Its own text stands for itself, as does any other that is no token.
            large: dict[str, bytes] = ctx.request.scope.get(LARGE_KEY, {}) if ctx.request is not None else {}
            given = RawJson(large[given]) if given in large else given
        token = as_it_came.set(True)
        try:
            result = await session.call(str(name), given, call_bound=bound, origin=origin)
        finally:
            as_it_came.reset(token)
        heavy = heavy_value(result)
        if heavy is None:
            return as_sent(result)
        return {"isError": self._token(heavy.body)}

    def _placed(self, method: str, result: BaseModel) -> dict[str, Any]:
        plain = _plain(result)
        heavy = heavy_value(result) if isinstance(result, types.Result) else None
        if heavy is None:
            return plain
        plain.pop("_meta", None)
        return {**plain, PASSED_ON[method]: self._token(heavy.body)}

    def _token(self, body: bytes) -> str:
        """Returns what stands for a large text until the answer is written. Raises ToolCallError."""
        try:
            (token,) = tokens_for(self._splices, (body, b'"'))
        except OverBudget:
            raise ToolCallError(
                f"{self._session.name} has answered, and the result is too large to be passed on now.",
                hint="Ask again later.",
                certainty=Certainty.COMPLETED,
            ) from None
        return token

    def _origin(self, ctx: Context, meta: dict[str, Any], live: LiveCall) -> CallOrigin:
        """Says whom the server may ask: the other broker, which knows whose the call is, for as long as that takes."""
        asked_back = ClientOfRun(ctx, by_requests(ctx), live)
        prefix = f"{self._session.name}: "

        async def ask(
            request: types.InputRequest, live: Live, round: str = ""
        ) -> BaseModel | types.ErrorData:
            match request:
                case types.ListRootsRequest():
                    return await asked_back.roots()
                case types.CreateMessageRequest():
                    return await asked_back.sample(request.params)
                case types.ElicitRequest():
                    # The other broker names the server, too.
                    message = request.params.message.removeprefix(prefix)
                    return await asked_back.elicit(request.params.model_copy(update={"message": message}))

        run: object = meta.get(RUN_KEY)
        who = None
        if isinstance(run, str):
            key = f"{Exchange.from_context(ctx).owner.client} {run}"
            who = self._runs.get(key) or _Run()
            self._runs[key] = who
        return CallOrigin(asked_back, asked=ask, run=who)


def _number(cursor: Any) -> int:
    return int(cursor) if isinstance(cursor, str) and cursor.isdigit() else 0


def _plain(model: BaseModel) -> dict[str, Any]:
    return model.model_dump(mode="json", by_alias=True, exclude_none=True, exclude={"result_type"})
