"""Answers clients in the profile `proxy`: the tools of all servers, each under one name, called one by one.

Policy, pins, budgets and bounds are in force as for scripts, and what results look like is learnt as from theirs. A
budget counts the calls of one connection. What was learnt stands as `outputSchema` in a form that every object fits,
and structured content is added where a server sends none, so that no client refuses a result because of it. What
servers have beside tools is in `proxied_resources`.
"""

from __future__ import annotations

import json
import logging
import secrets
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

import mcp_types as types
from mcp.server.context import CallNext, HandlerResult
from mcp.server.subscriptions import InMemorySubscriptionBus
from mcp.shared.exceptions import MCPError
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from cellblock.base.budget import OverBudget
from cellblock.base.errors import CellblockError, Certainty, ScriptError, ToolCallError
from cellblock.base.json import is_object
from cellblock.base.kept import KeptByIdentity, Newest
from cellblock.base.payload import PayloadError
from cellblock.run.call_results import unwrap
from cellblock.run.policy.asking import Caller, Grantee
from cellblock.serve.mcp.front import INITIALIZED, Front, Handler
from cellblock.serve.mcp.held_calls import HeldCalls
from cellblock.serve.mcp.list_changes import ListChanges
from cellblock.serve.mcp.live import LiveCall, LogLevels, wants_progress
from cellblock.serve.mcp.proxied_resources import ProxiedResources, ResourceUpdates
from cellblock.serve.mcp.requests_back import ClientOfRun, by_requests, can_be_asked, in_rounds
from cellblock.serve.mcp.run_tool import caller_of, states_of, told
from cellblock.serve.run_output import text_result, tokens_for
from cellblock.serve.service import Context
from cellblock.tools.catalog.model import Catalog, RequestEntry, ServerEntry, stated_output
from cellblock.tools.upstream.wire.messages import SMALL_BYTES, decoded, fields_of
from cellblock.tools.upstream.wire.repair import PASSED_ON, carried
from cellblock.tools.upstream.wire.results import NULL, ToolResult
from cellblock.types.definitions import BOX, Published, declared_schema, mcp_definition, published, structured

logger = logging.getLogger("cellblock.serve")

MAX_CLIENTS: Final = 1_024
"""Bounds the connections whose budgets are counted; of the one that has called least lately they begin anew."""

KEPT_LISTS: Final = 16
"""Bounds the catalogs whose names are kept."""

_LARGE: Final = f"cellblock-large-{secrets.token_hex(16)}"
"""Names, in a result's `_meta`, the members that are put in when the response is written; no server knows it."""

Paged = types.PaginatedRequestParams | None


class Proxy:
    """Answers the requests of clients, but for those that greet; in the place of `Surface`."""

    def __init__(self, front: Front) -> None:
        self._front, self._service = front, front.service
        self._tools = KeptByIdentity[Catalog, dict[str, Published]](
            partial(published, plain=True), KEPT_LISTS
        ).get_or_make
        self._promised: set[str] = set()
        self._held = HeldCalls(states_of(front.service))
        self._used = Newest[str, Counter[tuple[int, str]]](MAX_CLIENTS)
        self._levels = LogLevels(front.owner_of)
        resources = ProxiedResources(front, self._asked)
        self._updates = ResourceUpdates(front, resources)
        self.changes: Final = ListChanges(front, resources.lists)
        self.handlers: Final[Mapping[str, Handler]] = {
            INITIALIZED: self.changes.greeted,
            "tools/list": self.list_tools,
            "tools/call": self.call_tool,
            "resources/list": resources.list_resources,
            "resources/templates/list": resources.templates,
            "resources/read": resources.read_resource,
            "resources/subscribe": self._updates.subscribe,
            "resources/unsubscribe": self._updates.unsubscribe,
            "prompts/list": resources.list_prompts,
            "prompts/get": resources.get_prompt,
            "completion/complete": resources.complete,
            "subscriptions/listen": self.listen,
            "logging/setLevel": self._levels.set,
        }

    async def list_tools(self, context: Context, _params: Paged) -> types.ListToolsResult:
        outputs, observed = self._front.lookups(await self._front.about_to_answer(context))
        catalog = self._front.known_catalog(context)
        tools: list[types.Tool] = []
        for one in self._tools(catalog).values():
            definition = mcp_definition(one, outputs, observed)
            if declared_schema(one.tool) is None and "outputSchema" in definition:
                # Clients keep the list: from now on every result has structured content.
                self._promised.add(one.name)
            tools.append(types.Tool.model_validate(definition, by_name=False))
        self.changes.listed(context, catalog)
        return types.ListToolsResult(tools=tools)

    async def call_tool(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        one = self._found(params.name, await self._front.about_to_answer(context))
        try:
            result: Any = await self._outcome(context, params)
        except (ScriptError, CellblockError) as error:
            return text_result(str(error), is_error=True)
        if isinstance(result, types.InputRequiredResult):
            return result
        if not isinstance(result, ToolResult):
            value = result.decoded()
            text = types.TextContent(text=json.dumps(value, ensure_ascii=False))
            return types.CallToolResult(content=[text], structured_content=structured(value))
        try:
            return self._passed_on(one, result)
        except OverBudget:
            why = f"{one.tool.tool_name} has run, and its result is too large to be sent now."
            return text_result(why, is_error=True)

    async def listen(
        self, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        bus = InMemorySubscriptionBus()
        async with self._updates.told(context, params, bus):
            return await self.changes.listen(context, params, bus)

    async def place_large(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Puts tokens of what is large in their places (a middleware of the SDK): the SDK would refuse them there."""
        result = await call_next(ctx)
        meta: object = result.get("_meta") if isinstance(result, dict) else None
        if not isinstance(result, dict) or not is_object(meta) or _LARGE not in meta:
            return result
        rest = {key: part for key, part in meta.items() if key != _LARGE}
        return {**result, "_meta": rest, **meta[_LARGE]}

    def input_schema(self, name: str) -> dict[str, Any] | None:
        """Returns the input schema of a tool, for the SDK's look at headers; None when there is no such tool."""
        one = self._tools(self._service.known_catalog).get(name)
        return None if one is None else mcp_definition(one, stated_output)["inputSchema"]

    # ---- inside ------------------------------------------------------------------------------------------

    def _found(self, name: str, principal: str) -> Published:
        """Returns the tool of this name, or the only one whose server calls it so. Raises MCPError."""
        catalog = self._front.known_catalog_of(principal)
        tools = self._tools(catalog)
        # By any of its names: a second server changes those that are listed, and clients keep their lists.
        known = tools.get(name) or published(catalog).get(name)
        found = [known] if known else [one for one in tools.values() if one.tool.tool_name == name]
        if len(found) == 1:
            return found[0]
        if found:
            several = f"several servers have it: {', '.join(one.name for one in found)}"
            raise MCPError(types.INVALID_PARAMS, f"The tool {name[:200]!r} is not clear; {several}.")
        for server in catalog.servers.values():
            withheld = next((one for one in server.withheld if name.endswith(one.name)), None)
            if withheld is not None and name in (withheld.name, f"mcp__{server.server_id}__{withheld.name}"):
                why = f"The tool {withheld.name} of {server.server_id} is left out: {withheld.why}."
                raise MCPError(types.INVALID_PARAMS, f"{why} {withheld.hint}")
        more = catalog.who_is_lost()
        raise MCPError(types.INVALID_PARAMS, f"Unknown tool {name[:200]!r}; list the tools to see all.{more}")

    async def _outcome(self, context: Context, params: types.CallToolRequestParams) -> Any:
        """Carries one call of a tool to its result, or to questions with which its client goes away.

        Raises:
            ScriptError: It was refused, or has failed.
            MCPError: The client came back for a call that is no more.
        """
        owner = self._front.owner_of(context)
        if params.request_state is not None and in_rounds(context):
            held = await self._held.back(params, owner.principal)
            return await told(held.live, context, self._held.outcome(held))
        live = self._live(context)
        if in_rounds(context) and can_be_asked(context):
            held = self._held.begin(
                owner.principal,
                live,
                lambda ask: self._made(params, caller_of(context, owner, live, ask)),
            )
            return await told(live, context, self._held.outcome(held))
        work = self._made(params, caller_of(context, owner, live, by_requests(context)))
        return await told(live, context, work)

    async def _made(self, params: types.CallToolRequestParams, caller: Caller) -> Any:
        one = self._found(params.name, caller.grantee.principal)
        used = self._used_by(caller.client)
        return await self._service.call_tool(one.server, one.tool, params.arguments or {}, caller, used)

    def _used_by(self, client: str) -> Counter[tuple[int, str]]:
        used = self._used[client] = self._used.get(client, Counter())
        return used

    def _live(self, context: Context) -> LiveCall | None:
        level, with_progress = self._levels.level_for(context), wants_progress(context)
        if level is None and context.protocol_version not in MODERN_PROTOCOL_VERSIONS:
            # Before 2026-07-28, who has said nothing may be sent everything.
            level = "debug"
        if level is None and not with_progress:
            return None
        return LiveCall(level, None, wants_progress=with_progress)

    async def _asked(
        self, context: Context, server: ServerEntry, request: RequestEntry, given: dict[str, Any]
    ) -> Any:
        """Sends a request that is no tool call; a token stands for what is large in its result until it is written.

        Raises:
            ScriptError: It was refused, or has failed.
        """
        owner, live = self._front.owner_of(context), self._live(context)
        requester = ClientOfRun(context, by_requests(context), live)
        caller = Caller(owner.client, Grantee(owner.principal), requester=requester)
        work = self._service.call_tool(server, request, given, caller, self._used_by(owner.client))
        result: Any = await told(live, context, work)
        body: bytes | None = carried(getattr(result, "meta", None))
        if body is None:
            return result
        key = PASSED_ON[request.tool_name]
        try:
            meta = self._in_place({key: bytes(fields_of(body).get(key, b"[]"))})
        except OverBudget:
            raise ToolCallError(
                f"{server.server_id} has answered, and the result is too large to be sent now.",
                hint="Ask again later.",
                certainty=Certainty.COMPLETED,
            ) from None
        return result.model_copy(update={"meta": meta})

    def _passed_on(self, one: Published, result: ToolResult) -> types.CallToolResult:
        """Returns a result as its server sent it, as far as the protocol has a place for it. Raises OverBudget."""
        blocks = b"[%s]" % b",".join(map(_known, result.blocks))
        whole, meta = result.structured, result.field("_meta")
        if whole is None and one.name in self._promised and not result.is_error:
            # Clients expect structured content, which no server has declared.
            whole = _value_of(result)
        if whole is not None and whole[:1] != b"{":
            whole = b'{"%s":%s}' % (BOX.encode(), whole)
        found = {
            "content": blocks,
            "structuredContent": whole,
            "_meta": meta if (meta or b"")[:1] == b"{" else None,
        }
        parts = {name: part for name, part in found.items() if part is not None}
        large = {name: part for name, part in parts.items() if len(part) > SMALL_BYTES}
        given: dict[str, Any] = {"content": [], "isError": result.is_error}
        given |= {name: decoded(part) for name, part in parts.items() if name not in large}
        if large:
            given["_meta"] = given.get("_meta", {}) | self._in_place(large)
        return types.CallToolResult.model_validate(given, by_name=False)

    def _in_place(self, parts: Mapping[str, bytes]) -> dict[str, Any]:
        """Returns what has `place_large` put JSON in the places of members. Raises OverBudget."""
        tokens = tokens_for(self._front.splices, *((part, b'"') for part in parts.values()))
        return {_LARGE: dict(zip(parts, tokens, strict=True))}


_block: Final[TypeAdapter[types.ContentBlock]] = TypeAdapter(types.ContentBlock)


def _known(block: bytes) -> bytes:
    """Returns a block that clients take: one that they would refuse the whole result for becomes a text."""
    with suppress(ValidationError):
        if block[:1] == b"{":
            _block.validate_json(_shortened(block), by_name=False)
            return block
    return to_json({"type": "text", "text": block.decode("utf-8", "replace")})


def _shortened(block: bytes) -> bytes:
    """Returns a block with an empty text in the place of each long one: what it is of says the rest."""
    if len(block) <= SMALL_BYTES:
        return block
    members = {key: bytes(raw) for key, raw in fields_of(block).items()}
    few = {key: part if len(part) <= SMALL_BYTES else part[:1] + b'"' for key, part in members.items()}
    return b"{%s}" % b",".join(to_json(key) + b":" + part for key, part in few.items())


def _value_of(result: ToolResult) -> bytes:
    """Returns what a script would get of content without structured content; the JSON of a text as its value."""
    try:
        body, kind = unwrap(result, server="", tool="", parse_text=True)
    except PayloadError:
        return result.only_text or NULL
    return b'{"content":%s}' % (result.field("content") or b"[]") if kind == "result" else body
