"""Answers what an MCP client of a running broker is shown and can call: `codemode.run`, and in the `extended` profile
three tools that look things up.

The definitions of these three never change, and the description of `codemode.run` changes at most daily by what was
observed: a client reads the list of tools once and keeps it. What was learnt since reaches the agent by calling one.

Carries requests to the broker; decides nothing. `mcp_server` has the server that greets clients, and hands their
requests on to here.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Annotated, Any, Final

import mcp_types as types
from mcp.shared.exceptions import MCPError
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cellblock.base.errors import CellblockError, InvalidRequest
from cellblock.base.settings.sections import ANSWER_BYTES
from cellblock.base.terminal import json_text
from cellblock.run.request import MAX_CAPABILITIES, MAX_CAPABILITY_CHARS
from cellblock.run.response import RunResponse
from cellblock.serve.kept_outputs import PREFIX, TEMPLATE, read_resource, resources_of
from cellblock.serve.mcp.context import (
    Declared,
    rendered_in_thread,
    resource_uri,
    server_of_uri,
    shown_chars,
    text_of,
)
from cellblock.serve.mcp.first_reference import FirstReferences
from cellblock.serve.mcp.front import INITIALIZED, Front, Handler
from cellblock.serve.mcp.list_changes import ListChanges
from cellblock.serve.mcp.run_tool import RunTool
from cellblock.serve.mcp.skills import (
    MARKDOWN,
    SCHEME,
    OneSkill,
    SkillList,
    one_skill,
    skill_list,
    skill_resources,
    skill_text,
)
from cellblock.serve.mcp.task_models import Task
from cellblock.serve.mcp.tasks import Tasks
from cellblock.serve.mcp.tool_name import TOOL_NAME, tool_name_for, tool_names
from cellblock.serve.run_output import form_for, has_error, text_result, tool_result
from cellblock.serve.service import Context, client_name, client_version
from cellblock.tools.catalog.model import Catalog
from cellblock.types.discovery import DiscoveryCache
from cellblock.types.lookup import NoSuchTool, declare_found, find_tools, inspect_tool, list_servers

DECLARATION_TYPE: Final = "text/typescript"

INPUT_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "code": {"type": "string", "description": "JavaScript or TypeScript source of an ES module."},
        "limits": {
            "type": "object",
            "description": "Execution limits.",
            "properties": {
                "timeoutMs": {"type": "integer", "minimum": 1, "description": "Wall time in milliseconds."},
                "maxMemoryBytes": {"type": "integer", "minimum": 1, "description": "Memory in bytes."},
                "maxLogBytes": {"type": "integer", "minimum": 0, "description": "Console output in bytes."},
                "maxToolCalls": {"type": "integer", "minimum": 0, "description": "Number of tool calls."},
                "maxCpuMs": {"type": "integer", "minimum": 1, "description": "CPU time in milliseconds."},
            },
        },
        "requestedCapabilities": {
            "type": "array",
            "items": {"type": "string"},
            "maxItems": MAX_CAPABILITIES,
            "description": f"Ids of servers that the script wants, {MAX_CAPABILITY_CHARS} characters each at most.",
        },
        "typecheck": {
            "type": "string",
            "enum": ["off", "after", "before"],
            "description": "Type-check: after a failure, or before the start, when type errors refuse the script.",
        },
        "grants": {
            "type": "object",
            "description": "Narrows what this script may call, such as "
            '{"tools": ["files.read_*"], "readOnly": true, "budgets": {"files.*": 20}}.',
        },
        "plan": {
            "type": "boolean",
            "description": "True: stop before each call that is not known to be read-only, until the user allows it.",
        },
        "durable": {
            "type": "boolean",
            "description": "True: survive a restart, and wait for the user's approval for days.",
        },
        "trace": {"type": "string", "enum": ["full"], "description": "The whole response, with each call."},
        "reuse": {"type": "boolean", "description": "False: a process of its own, whatever is configured."},
    },
    "required": ["code"],
    "additionalProperties": False,
}


PROPOSE: Final = {"type": "string", "description": "A name: propose this script to the user, to be kept."}
"""Describes what only some clients are shown."""


OUTPUT_SCHEMA: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {
        "result": {"description": "What the script assigned; null after an error."},
        "logs": {"type": "array", "items": {"type": "object"}},
        "diagnostics": {
            "type": "array",
            "items": {"type": "object", "required": ["severity", "code", "message"]},
        },
        "toolTrace": {"type": "array", "items": {"type": "object"}},
    },
    "required": ["logs", "result", "diagnostics"],
}
"""Describes the response (section 3.3)."""

CLIENT_MARKS: Final = {
    "anthropic/alwaysLoad": True,
    "anthropic/maxResultSizeChars": 3 * ANSWER_BYTES,
    "anthropic/searchHint": "call the connected MCP servers, many calls in one script",
}
"""Marks the tool for clients in its `_meta`: Claude Code shows its model a tool with the first at once, any other when
the model searches, where it is found by the last (docs/clients.md). It cuts results at 25,000 tokens, or the second's
characters; ours are shorter."""

NO_REQUEST: Final[Mapping[str, Any]] = MappingProxyType({})

Paged = types.PaginatedRequestParams | None


class Surface:
    """Answers the requests of clients, but for those that greet.

    Args:
        front: Of a broker that runs.
    """

    def __init__(self, front: Front) -> None:
        self._front, self._service = front, front.service
        self._references = FirstReferences(front.service)
        self._tasks = Tasks(front, self._shown)
        self._runs = RunTool(front, self._tasks)
        shown = front.service.settings.cellblock.frontend
        self._names = tool_names(shown)
        self._marks_errors = shown.is_error == "diagnostics"
        self._extended = ExtendedTools(front) if shown.profile == "extended" else None
        self.changes: Final = ListChanges(front)
        self.handlers: Final[Mapping[str, Handler]] = {
            INITIALIZED: self.changes.greeted,
            "tools/list": self.list_tools,
            "tools/call": self.call_tool,
            "tasks/get": self._tasks.get,
            "tasks/update": self._tasks.update,
            "tasks/cancel": self._tasks.cancel,
            "skills/list": self.list_skills,
            "skills/get": self.get_skill,
            "resources/list": self.list_resources,
            "resources/templates/list": self.templates,
            "resources/read": self.read_resource,
            "subscriptions/listen": self.listen,
            "logging/setLevel": self._runs.levels.set,
        }

    async def list_tools(self, context: Context, _params: Paged) -> types.ListToolsResult:
        await self._front.about_to_answer(context)
        catalog = self._front.known_catalog(context)
        await rendered_in_thread(catalog)
        owner = self._front.owner_of(context)
        name, version = client_name(context), client_version(context)
        declared = self._front.description(catalog, owner.principal, shown_chars(name, version))
        self._references.show(owner.client, catalog, declared)
        run = types.Tool(
            name=tool_name_for(name, self._service.settings.cellblock.frontend),
            title="Run a script against MCP servers",
            description=declared.text,
            input_schema=INPUT_SCHEMA,
            output_schema=OUTPUT_SCHEMA,
            _meta=CLIENT_MARKS,
        )
        if owner.principal in self._service.settings.cellblock.scripts.propose:
            run.input_schema = {
                **INPUT_SCHEMA,
                "properties": {**INPUT_SCHEMA["properties"], "propose": PROPOSE},
            }
        self.changes.listed(context, catalog)
        return types.ListToolsResult(tools=[run, *(TOOLS if self._extended else ())])

    async def call_tool(
        self, context: Context, params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult | Task:
        extended = self._extended
        if extended is not None and params.name in extended.answers:
            return await extended.call(context, params)
        if params.name not in self._names:
            known = f"tools are {', '.join([TOOL_NAME, *(tool.name for tool in TOOLS)])}" if extended else ""
            raise MCPError(
                types.INVALID_PARAMS,
                f"Unknown tool {params.name!r}; the {known or f'only tool is {TOOL_NAME}'}.",
            )
        try:
            response = await self._runs.call(context, params)
        except InvalidRequest as error:
            return text_result(str(error), is_error=True)
        if not isinstance(response, RunResponse):
            return response
        called = [
            f"{call.server_id}.{call.tool_name}"
            for call in response.tool_trace
            if call.ok and call.within is None
        ]
        self._front.uses.note(self._front.owner_of(context).principal, [*response.servers, *called])
        return await self._shown(context, response, params.arguments or {})

    async def _shown(
        self, context: Context, response: RunResponse, request: Mapping[str, Any] = NO_REQUEST
    ) -> types.CallToolResult:
        """Returns the result of a run as its client gets it."""
        owner = self._front.owner_of(context)
        declarations = await self._references.declarations_for(
            owner, self._front.catalog(context), response, request.get("code")
        )
        form = form_for(self._service.settings.cellblock.frontend, client_name(context), request.get("trace"))
        result = await tool_result(response, self._front.kept, owner, self._front.splices, declarations, form)
        if self._marks_errors and has_error(result.structured_content):
            result.is_error = True
        return result

    async def listen(
        self, context: Context, params: types.SubscriptionsListenRequestParams
    ) -> types.SubscriptionsListenResult:
        async with self._tasks.told(context, params) as stream:
            return await self.changes.listen(stream, params)

    async def list_resources(self, context: Context, _params: Paged) -> types.ListResourcesResult:
        await self._front.about_to_answer(context)
        kept, catalog = self._front.kept, self._front.known_catalog(context)
        return types.ListResourcesResult(
            resources=[
                types.Resource(
                    uri=resource_uri(server.server_id),
                    name=f"{server.server_id}.d.ts",
                    title=f"TypeScript declarations of {server.server_id}",
                    mime_type=DECLARATION_TYPE,
                )
                for server in catalog.servers.values()
            ]
            + skill_resources(catalog)
            + (await resources_of(kept, self._front.owner_of(context)) if kept else [])
        )

    async def read_resource(
        self, context: Context, params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        owner, uri, kept = self._front.owner_of(context), str(params.uri), self._front.kept
        if kept is not None and uri.startswith(PREFIX):
            return await read_resource(kept, owner, uri)
        if uri.startswith(SCHEME):
            return _text_resource(uri, MARKDOWN, skill_text(self._front.catalog(context), uri))
        await self._front.about_to_answer(context)
        known = self._front.known_catalog(context)
        await rendered_in_thread(known)
        server = known.servers.get(server_of_uri(uri) or "")
        if server is None:
            raise MCPError(types.INVALID_PARAMS, f"There is no resource {uri}; list the resources first.")
        self._references.show(owner.client, known, Declared("", {server.server_id: server.tools}))
        return _text_resource(uri, DECLARATION_TYPE, text_of(server))

    async def list_skills(self, context: Context, _params: Paged) -> SkillList:
        """Handles `skills/list`."""
        return skill_list(self._front.catalog(context))

    async def get_skill(self, context: Context, params: types.ReadResourceRequestParams) -> OneSkill:
        """Handles `skills/get`."""
        return one_skill(self._front.catalog(context), str(params.uri))

    async def templates(self, _context: Context, _params: Paged) -> types.ListResourceTemplatesResult:
        """Handles `resources/templates/list`: who has resources is asked for templates, too."""
        return types.ListResourceTemplatesResult(resource_templates=[TEMPLATE] if self._front.kept else [])


def _text_resource(uri: str, kind: str, text: str) -> types.ReadResourceResult:
    return types.ReadResourceResult(contents=[types.TextResourceContents(uri=uri, mime_type=kind, text=text)])


SEARCH: Final = "search_tools"
INSPECT: Final = "inspect_tool"
SERVERS: Final = "list_servers"

DEFAULT_FOUND: Final = 5
MAX_FOUND: Final = 50
"""Bounds the results of one search; they end up in a model's context."""

LOOKED_BOUND_SECONDS: Final = 2.0
"""Bounds the wait for results of a run that has just ended to be looked at; it takes a tenth of a second."""

MAX_NAME_CHARS: Final = 600
"""Bounds the name of a tool that a client asks about."""


class _Input(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)


class _Search(_Input):
    query: Annotated[str, Field(max_length=1_000)]
    server: Annotated[str, Field(max_length=MAX_NAME_CHARS)] | None = None
    limit: Annotated[int, Field(ge=1, le=MAX_FOUND)] = DEFAULT_FOUND


class _Inspect(_Input):
    tool_name: Annotated[str, Field(max_length=MAX_NAME_CHARS)]


_READS: Final = types.ToolAnnotations(read_only_hint=True, open_world_hint=False)

TOOLS: Final = (
    types.Tool(
        name=SEARCH,
        title="Find tools and their types",
        description="Finds tools that scripts can call, by what they do or by name, and returns their TypeScript "
        "declarations as known now. Where a server declares no output, the type is what was observed of results so "
        f"far: run a tool once with {TOOL_NAME}, and this returns its real type for the next script.",
        input_schema={
            "type": "object",
            "properties": {
                "query": {"type": "string", "description": "What the tool is to do, or its name."},
                "server": {"type": "string", "description": "Search this server only."},
                "limit": {
                    "type": "integer",
                    "minimum": 1,
                    "maximum": MAX_FOUND,
                    "description": f"Results at most; {DEFAULT_FOUND} by default.",
                },
            },
            "required": ["query"],
            "additionalProperties": False,
        },
        annotations=_READS,
    ),
    types.Tool(
        name=INSPECT,
        title="Inspect one tool",
        description=f"Returns the schema and description of a tool available in {TOOL_NAME}. Includes outputSchema if "
        "the upstream MCP server defines one, and apart from it what the user has given and what was observed. Call "
        "this before writing a script if you need to understand a tool's return format.",
        input_schema={
            "type": "object",
            "properties": {
                "tool_name": {
                    "type": "string",
                    "description": "Namespaced tool name (e.g., mcp__financial_data__query_financials), server.tool, "
                    "or the plain name where it is unique.",
                }
            },
            "required": ["tool_name"],
            "additionalProperties": False,
        },
        annotations=_READS,
    ),
    types.Tool(
        name=SERVERS,
        title="List servers",
        description="Returns the servers whose tools scripts can import, with the number of their tools, and the ones "
        "that are not connected at the moment, with the reason.",
        input_schema={"type": "object", "properties": {}, "additionalProperties": False},
        annotations=_READS,
    ),
)


class ExtendedTools:
    """Answers the three tools from what the broker knows when it is asked."""

    def __init__(self, front: Front) -> None:
        self._front = front
        self._discovery = DiscoveryCache()
        self.answers: Final = {SEARCH: self._search, INSPECT: self._inspect, SERVERS: self._servers}

    async def call(self, context: Context, params: types.CallToolRequestParams) -> types.CallToolResult:
        """Answers one of the three extended tools from what the client is granted. What is wrong is said in the
        result."""
        name, catalog = params.name, self._front.catalog(context)
        await self._front.service.wait_until_learnt(LOOKED_BOUND_SECONDS)
        try:
            return self.answers[name](params.arguments or {}, catalog, self._front.principal_of(context))
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "the input"
            return text_result(f"{name}: `{where}`: {first['msg']}.", is_error=True)
        except CellblockError as error:
            return text_result(str(error), is_error=True)

    def _search(self, arguments: Mapping[str, Any], catalog: Catalog, principal: str) -> types.CallToolResult:
        asked = _Search.model_validate(arguments)
        found = self._discovery.get_or_make(catalog)
        hits = find_tools(catalog, asked.query, server=asked.server, limit=asked.limit, discovery=found)
        return text_result(declare_found(hits, self._front.lookups(principal)[0]))

    def _inspect(
        self, arguments: Mapping[str, Any], catalog: Catalog, principal: str
    ) -> types.CallToolResult:
        name = _Inspect.model_validate(arguments).tool_name
        try:
            found = inspect_tool(catalog, name, *self._front.lookups(principal), finder=SEARCH)
        except NoSuchTool as error:
            return text_result(f"[Tool not found] '{name}' is not available in {TOOL_NAME}\n{error.hint}")
        return _json(found)

    def _servers(
        self, arguments: Mapping[str, Any], catalog: Catalog, _principal: str
    ) -> types.CallToolResult:
        _Input.model_validate(arguments)
        return _json(list_servers(catalog))


def _json(value: dict[str, Any]) -> types.CallToolResult:
    return types.CallToolResult(
        content=[types.TextContent(text=json_text(value))], structured_content=value, is_error=False
    )
