"""The MCP front-end: one tool, `codemode.run`, and in the `extended` profile three that look things up.

Carries requests to the broker; decides nothing.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable
from typing import Any, Final

import mcp_types as types
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from cellblock.apart.pool import Apart
from cellblock.apart.raw import Splices
from cellblock.errors import InvalidRequest
from cellblock.execution.request import MAX_CAPABILITIES, MAX_CAPABILITY_CHARS
from cellblock.frontend.context import resource_uri, server_of_uri, text_of
from cellblock.frontend.extended import TOOLS, ExtendedTools
from cellblock.frontend.first_reference import SHORT_SIGHTED, FirstReferences
from cellblock.frontend.granted import Granted, stdio_principal
from cellblock.frontend.kept_outputs import KeptOutputs, Owner, keeping
from cellblock.frontend.kept_resources import KeptResources
from cellblock.frontend.list_changes import ListChanges, TellingServer
from cellblock.frontend.manual import instructions
from cellblock.frontend.run_output import has_error, tool_result
from cellblock.frontend.run_tool import RunTool
from cellblock.frontend.service import RunService
from cellblock.frontend.stdin import CLIENT, StdinLines
from cellblock.frontend.stdout import StdoutLines
from cellblock.frontend.tool_name import TOOL_NAME, ToolNames, client_name
from cellblock.frontend.unreadable import AnsweringStream
from cellblock.frontend.use import UseLog

DECLARATION_TYPE: Final = "text/typescript"

INPUT_SCHEMA: dict[str, Any] = {
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
    },
    "required": ["code"],
    "additionalProperties": False,
}


CLIENT_MARKS: Final = {
    "anthropic/alwaysLoad": True,
    "anthropic/searchHint": "call the connected MCP servers, many calls in one script",
}
"""In the tool's `_meta`: Claude Code shows its model a tool with the first at once, any other when the model searches,
where it is found by the second (docs/clients.md)."""

Context = ServerRequestContext[dict[str, Any]]


def make_server(
    service: RunService,
    *,
    version: str,
    client_of: Callable[[Context], str] = lambda _: CLIENT,
    principal_of: Callable[[Context], str] = stdio_principal,
    kept: KeptOutputs | None = None,
) -> TellingServer:
    """An MCP server in front of a broker.

    Args:
        service: The broker.
        version: Of Cellblock.
        client_of: Names the client that a request comes from, the same for all requests of one connection; clients
            share the workers fairly.
        principal_of: Says whom a request is for, as `cellblock.policy` knows clients.
        kept: Where outputs go that are too large for a response; None: responses are whole.
    """

    def owner_of(context: Context) -> Owner:
        return Owner(principal_of(context), client_of(context))

    uses = UseLog(service.settings.state_dir)
    granted = Granted(service, principal_of, uses)
    references = FirstReferences(service)
    runs = RunTool(service, client_of=client_of, principal_of=principal_of)
    outputs = KeptResources(kept) if kept else None
    shown = service.settings.cellblock.frontend
    names = ToolNames(shown)
    extended = ExtendedTools(service) if shown.profile == "extended" else None

    async def list_tools(
        context: ServerRequestContext[dict[str, Any]], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        catalog = granted.known_catalog(context)
        declared = granted.description(catalog, principal_of(context))
        if client_name(context) not in SHORT_SIGHTED:
            references.show(client_of(context), (catalog.servers[server_id] for server_id in declared.whole))
        run = types.Tool(
            name=names.shown_to(client_name(context)),
            title="Run a script against MCP servers",
            description=declared.text,
            input_schema=INPUT_SCHEMA,
            _meta=CLIENT_MARKS,
        )
        return types.ListToolsResult(tools=[run, *(TOOLS if extended else ())])

    async def call_tool(
        context: ServerRequestContext[dict[str, Any]], params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        if extended is not None and extended.has(params.name):
            return await extended.call(params.name, params.arguments or {}, granted.catalog(context))
        if params.name not in names.taken:
            known = f"tools are {', '.join([TOOL_NAME, *(tool.name for tool in TOOLS)])}" if extended else ""
            raise MCPError(
                types.INVALID_PARAMS,
                f"Unknown tool {params.name!r}; the {known or f'only tool is {TOOL_NAME}'}.",
            )
        try:
            response = await runs.call(context, params)
        except InvalidRequest as error:
            return types.CallToolResult(content=[types.TextContent(text=str(error))], is_error=True)
        if isinstance(response, types.InputRequiredResult):
            return response
        uses.note(principal_of(context), response.servers)
        declarations = await references.of(
            client_of(context),
            granted.catalog(context),
            response.servers,
            (params.arguments or {}).get("code"),
        )
        owner = owner_of(context) if kept else None
        result = await tool_result(response, kept, owner, server.splices, declarations)
        if shown.is_error == "diagnostics" and has_error(result.structured_content):
            result.is_error = True
        return result

    async def list_resources(
        context: ServerRequestContext[dict[str, Any]], params: types.PaginatedRequestParams | None
    ) -> types.ListResourcesResult:
        return types.ListResourcesResult(
            resources=[
                types.Resource(
                    uri=resource_uri(server.server_id),
                    name=f"{server.server_id}.d.ts",
                    title=f"TypeScript declarations of {server.server_id}",
                    mime_type=DECLARATION_TYPE,
                )
                for server in granted.known_catalog(context).servers.values()
            ]
            + (outputs.listed(owner_of(context)) if outputs else [])
        )

    async def read_resource(
        context: ServerRequestContext[dict[str, Any]], params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        if outputs is not None and outputs.has(str(params.uri)):
            return await outputs.read(owner_of(context), str(params.uri))
        server = granted.known_catalog(context).servers.get(server_of_uri(str(params.uri)) or "")
        if server is None:
            raise MCPError(
                types.INVALID_PARAMS, f"There is no resource {params.uri}; list the resources first."
            )
        references.show(client_of(context), [server])
        contents = types.TextResourceContents(
            uri=str(params.uri), mime_type=DECLARATION_TYPE, text=text_of(server)
        )
        return types.ReadResourceResult(contents=[contents])

    changes = ListChanges(service, granted, owner_of, kept)

    def renew_greeting() -> None:
        server.instructions = instructions(service.known_catalog, service.settings)
        if service.policy.restricts_clients and granted.greet not in server.middleware:
            server.middleware.append(granted.greet)

    @contextlib.asynccontextmanager
    async def lifespan(_: Server[dict[str, Any]]) -> AsyncGenerator[dict[str, Any]]:
        renew_greeting()
        unwatch = service.watch_catalog(renew_greeting)
        try:
            async with changes.followed():
                yield {}
        finally:
            unwatch()

    server = TellingServer(
        "cellblock",
        version=version,
        title="Cellblock",
        lifespan=lifespan,
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
        on_list_resource_templates=outputs.templates if outputs else no_templates,
        on_subscriptions_listen=changes.listen,
        # Without it, the SDK lists the tools for every call over HTTP, to look for parameters sent as headers.
        get_tool_input_schema=lambda name: INPUT_SCHEMA if name in names.taken else None,
    )
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, runs.set_level)
    server.add_notification_handler("notifications/initialized", types.NotificationParams, changes.greeted)
    server.end_streams = changes.close
    renew_greeting()
    if service.settings.cellblock.traces.endpoint is not None:
        from cellblock.frontend.trace_context import with_trace_context

        server.middleware.append(with_trace_context)
    return server


async def no_templates(
    _context: Context, _params: types.PaginatedRequestParams | None
) -> types.ListResourceTemplatesResult:
    """Handles `resources/templates/list` where there are none: who has resources is asked for templates, too."""
    return types.ListResourceTemplatesResult(resource_templates=[])


async def serve_stdio(service: RunService, *, version: str) -> None:
    """Serves one MCP client over this process's stdin and stdout until it closes stdin."""
    async with keeping(service.settings.cellblock.outputs, service.settings.state_dir) as kept:
        await _serve_stdio(make_server(service, version=version, kept=kept), service.apart)


async def _serve_stdio(server: TellingServer, apart: Apart) -> None:
    lines = await StdinLines.open(apart)
    # Who cannot be answered any more need not be listened to.
    splices = Splices()
    output = await StdoutLines.open(on_lost=lines.close if lines else lambda: None, splices=splices)
    server.splices = splices if output is not None else None
    try:
        async with stdio_server(
            stdin=lines.as_file() if lines else None, stdout=output.as_file() if output else None
        ) as (read, write):
            incoming = AnsweringStream(read, write)
            if lines is not None:
                lines.refuse_by(incoming.answer)
            await server.run(incoming, write, server.create_initialization_options())
            if output is not None:
                output.say_farewell()
    finally:
        if output is not None:
            output.close()
        if lines is not None:
            lines.close()
