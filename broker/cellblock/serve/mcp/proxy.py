"""Answers clients in the profile `proxy`: the tools of all servers, each under one name, called one by one.

Policy, pins, budgets and bounds are in force as for scripts, and what results look like is learnt as from theirs. A
budget counts the calls of one connection. What was learnt stands as `outputSchema` in a form that every object fits,
and structured content is added where a server sends none, so that no client refuses a result because of it. What
servers have beside tools is in `proxied_resources`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
from collections import Counter
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

import mcp_types as types
from mcp import MCPError
from mcp.server.context import CallNext, HandlerResult
from mcp.server.subscriptions import InMemorySubscriptionBus
from mcp_types.version import MODERN_PROTOCOL_VERSIONS
from pydantic import TypeAdapter, ValidationError
from pydantic_core import from_json

from cellblock.base.budget import OverBudget
from cellblock.base.errors import CellblockError, Certainty, ScriptError, ToolCallError
from cellblock.base.json import is_array, is_object
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
from cellblock.serve.run_output import tokens_for
from cellblock.serve.service import Context
from cellblock.tools.catalog.model import Catalog, RequestEntry, ServerEntry
from cellblock.tools.catalog.outputs import stated_output
from cellblock.tools.upstream.wire.messages import SMALL_BYTES
from cellblock.tools.upstream.wire.repair import PASSED_ON, carried
from cellblock.tools.upstream.wire.results import ToolResult, fields_of
from cellblock.types.definitions import Published, declared_schema, mcp_definition, published, structured
from cellblock.types.learning.sample import TooDeep, parse_document

logger = logging.getLogger("cellblock.serve")

MAX_CLIENTS: Final = 1_024
"""Bounds the connections whose budgets are counted; of the one that has called least lately they begin anew."""

KEPT_LISTS: Final = 16
"""Bounds the catalogs whose names are kept."""

_LARGE: Final = f"cellblock-large-{secrets.token_hex(16)}"
"""Stands for structured content that is put in when the response is written; no server knows it."""

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
            return _failed(str(error))
        if isinstance(result, types.InputRequiredResult):
            return result
        if not isinstance(result, ToolResult):
            value = result.decoded()
            text = types.TextContent(text=json.dumps(value, ensure_ascii=False))
            return types.CallToolResult(content=[text], structured_content=structured(value))
        if len(result.body) > SMALL_BYTES and not result.is_error:
            return await self._large(one, result)
        return _passed_on(result.plain(), promised=one.name in self._promised)

    async def listen(
        self, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        bus = InMemorySubscriptionBus()
        async with self._updates.told(context, params, bus):
            return await self.changes.listen(context, params, bus)

    async def place_large(self, ctx: Context, call_next: CallNext) -> HandlerResult:
        """Puts a large value's token in its place (a middleware of the SDK): the SDK would refuse it there."""
        result = await call_next(ctx)
        if ctx.method in PASSED_ON and isinstance(result, dict):
            meta: object = result.get("_meta")
            if is_object(meta) and _LARGE in meta:
                rest = {key: part for key, part in meta.items() if key != _LARGE}
                return {**result, PASSED_ON[ctx.method]: meta[_LARGE], "_meta": rest}
        if ctx.method == "tools/call" and isinstance(result, dict):
            content: object = result.get("structuredContent")
            if is_object(content) and _LARGE in content:
                return {**result, "structuredContent": content[_LARGE]}
        return result

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
        return LiveCall(level, wants_progress=with_progress)

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
        large = bytes(fields_of(body).get(key, b"[]"))
        if self._front.splices is None:
            plain = await asyncio.to_thread(from_json, large)
            whole: type[types.Result] = result.__class__
            return whole.model_validate({key: plain}, by_name=False)
        try:
            (token,) = tokens_for(self._front.splices, (large, b'"'))
        except OverBudget:
            raise ToolCallError(
                f"{server.server_id} has answered, and the result is too large to be sent now.",
                hint="Ask again later.",
                certainty=Certainty.COMPLETED,
            ) from None
        return result.model_copy(update={"meta": {_LARGE: token}})

    async def _large(self, one: Published, result: ToolResult) -> types.CallToolResult:
        """Makes a result of a value that is too large to be decoded here: tokens stand for it until it is written."""
        tool = one.tool
        try:
            body, kind = unwrap(
                result,
                server=one.server.server_id,
                tool=tool.tool_name,
                parse_text=tool.parse_text,
                box=tool.box,
            )
        except PayloadError as error:
            return _failed(f"{tool.tool_name} gave a result that has no JSON form: {error}.")
        if kind == "result" or self._front.splices is None:
            plain = await asyncio.to_thread(from_json, body)
            if kind == "result":
                return _passed_on(plain, promised=one.name in self._promised)
            text = plain if kind == "text" else body.decode()
            content = None if kind == "text" else structured(plain)
            return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=content)
        promised = one.name in self._promised
        if kind == "value" and one.tool.box is not None:
            body = b"{%s:%s}" % (json.dumps(one.tool.box).encode(), body)
        quoted = body if kind == "text" else await asyncio.to_thread(_quoted, body)
        texts = [(quoted, b'"')]
        if kind == "value" or promised:
            is_whole = kind != "text" and body[:1] == b"{"
            texts.append((body if is_whole else b'{"result":%s}' % body, b'"'))
        try:
            text, *whole = tokens_for(self._front.splices, *texts)
        except OverBudget:
            return _failed(f"{one.tool.tool_name} has run, and its result is too large to be sent now.")
        content = types.TextContent(text=text)
        structured_content = {_LARGE: whole[0]} if whole else None
        return types.CallToolResult(content=[content], structured_content=structured_content)


_block: Final[TypeAdapter[types.ContentBlock]] = TypeAdapter(types.ContentBlock)


def _passed_on(plain: dict[str, Any], *, promised: bool) -> types.CallToolResult:
    """Returns a result as its server sent it, as far as the protocol has a place for it.

    Args:
        plain: As it was sent.
        promised: Whether clients expect structured content, which no server has declared.
    """
    content: object = plain.get("content")
    blocks: list[Any] = content if is_array(content) else []
    if "structuredContent" in plain:
        plain = {**plain, "structuredContent": structured(plain["structuredContent"])}
    elif promised and not plain.get("isError"):
        plain = {**plain, "structuredContent": structured(_value_in(blocks))}
    given = {
        "content": [_known(block) for block in blocks],
        "isError": plain.get("isError") is True,
        **{key: plain[key] for key in ("structuredContent",) if key in plain},
        **({"_meta": plain["_meta"]} if is_object(plain.get("_meta")) else {}),
    }
    return types.CallToolResult.model_validate(given, by_name=False)


def _known(block: Any) -> dict[str, Any]:
    """Returns a block that clients take: one that they would refuse the whole result for becomes a text."""
    try:
        _block.validate_python(block, by_name=False)
    except ValidationError:
        return {"type": "text", "text": json.dumps(block, ensure_ascii=False)}
    return block


def _value_in(blocks: list[Any]) -> Any:
    """Returns what a script would get of content without structured content; the JSON of a text as its value."""
    block: object = blocks[0] if len(blocks) == 1 else None
    text: object = block.get("text") if is_object(block) and block.get("type") == "text" else None
    if not isinstance(text, str):
        return {"content": blocks}
    try:
        value = parse_document(text)
    except TooDeep:
        value = None
    return text if value is None else value


def _failed(why: str) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=why)], is_error=True)


def _quoted(body: bytes) -> bytes:
    return json.dumps(body.decode(), ensure_ascii=False).encode()
