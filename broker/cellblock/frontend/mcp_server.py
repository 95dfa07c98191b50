"""The MCP front-end: one tool, `codemode.run`, and in the `extended` profile three that look things up.

Carries requests to the broker; decides nothing.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any, Final

import mcp_types as types
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp.server.lowlevel import Server
from mcp.server.stdio import stdio_server

from cellblock.catalog.typescript import declare_server
from cellblock.errors import InvalidRequest
from cellblock.frontend.context import declarations_in_budget, resource_uri, server_of_uri
from cellblock.frontend.extended import TOOLS, ExtendedTools
from cellblock.frontend.granted import Granted, stdio_principal
from cellblock.frontend.manual import TOOL_NAME, instructions, manual
from cellblock.frontend.requests_back import asking_back
from cellblock.frontend.run_tool import RunTool
from cellblock.frontend.service import RunService
from cellblock.frontend.stdin import StdinLines
from cellblock.frontend.stdout import StdoutLines

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
            "description": "Ids of servers that the script wants.",
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


STDIO_CLIENT: Final = "stdio"
"""Over stdio, a process serves one client."""

Context = ServerRequestContext[dict[str, Any]]


def make_server(
    service: RunService,
    *,
    version: str,
    client_of: Callable[[Context], str] = lambda _: STDIO_CLIENT,
    principal_of: Callable[[Context], str] = stdio_principal,
) -> Server[dict[str, Any]]:
    """An MCP server in front of a broker.

    Args:
        service: The broker.
        version: Of Cellblock.
        client_of: Names the client that a request comes from, the same for all requests of one connection; clients
            share the workers fairly.
        principal_of: Says whom a request is for, as `cellblock.policy` knows clients.
    """

    granted = Granted(service, principal_of)
    runs = RunTool(service, client_of=client_of, principal_of=principal_of)
    extended = ExtendedTools(service) if service.settings.cellblock.frontend.profile == "extended" else None

    async def list_tools(
        context: ServerRequestContext[dict[str, Any]], params: types.PaginatedRequestParams | None
    ) -> types.ListToolsResult:
        section = service.settings.cellblock
        catalog = granted.known_catalog(context)
        declarations = declarations_in_budget(catalog, section.frontend.declaration_chars)
        named = None if catalog is service.known_catalog else catalog
        run = types.Tool(
            name=TOOL_NAME,
            title="Run a script against MCP servers",
            description=f"{manual(section.limits, service.settings, named)}\n\n{declarations}",
            input_schema=INPUT_SCHEMA,
        )
        return types.ListToolsResult(tools=[run, *(TOOLS if extended else ())])

    async def call_tool(
        context: ServerRequestContext[dict[str, Any]], params: types.CallToolRequestParams
    ) -> types.CallToolResult | types.InputRequiredResult:
        if extended is not None and extended.has(params.name):
            return await extended.call(params.name, params.arguments or {}, granted.catalog(context))
        if params.name != TOOL_NAME:
            known = f"tools are {', '.join([TOOL_NAME, *(tool.name for tool in TOOLS)])}" if extended else ""
            raise MCPError(
                types.INVALID_PARAMS,
                f"Unknown tool {params.name!r}; the {known or f'only tool is {TOOL_NAME}'}.",
            )
        try:
            with asking_back(context):
                response = await runs.call(context, params)
        except InvalidRequest as error:
            return types.CallToolResult(content=[types.TextContent(text=str(error))], is_error=True)
        if isinstance(response, types.InputRequiredResult):
            return response
        data = response.as_json()
        text = json.dumps(data, ensure_ascii=False)
        return types.CallToolResult(content=[types.TextContent(text=text)], structured_content=data)

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
        )

    async def read_resource(
        context: ServerRequestContext[dict[str, Any]], params: types.ReadResourceRequestParams
    ) -> types.ReadResourceResult:
        server = granted.known_catalog(context).servers.get(server_of_uri(str(params.uri)) or "")
        if server is None:
            raise MCPError(
                types.INVALID_PARAMS, f"There is no resource {params.uri}; list the resources first."
            )
        contents = types.TextResourceContents(
            uri=str(params.uri), mime_type=DECLARATION_TYPE, text=declare_server(server)
        )
        return types.ReadResourceResult(contents=[contents])

    server = Server[dict[str, Any]](
        "cellblock",
        version=version,
        title="Cellblock",
        instructions=instructions(service.settings.cellblock.limits, service.known_catalog, service.settings),
        on_list_tools=list_tools,
        on_call_tool=call_tool,
        on_list_resources=list_resources,
        on_read_resource=read_resource,
        # Without it, the SDK lists the tools for every call over HTTP, to look for parameters sent as headers.
        get_tool_input_schema=lambda name: INPUT_SCHEMA if name == TOOL_NAME else None,
    )
    server.add_request_handler("logging/setLevel", types.SetLevelRequestParams, runs.set_level)
    if service.policy.restricts_clients:
        server.middleware.append(granted.greet)
    if service.settings.cellblock.traces.endpoint is not None:
        from cellblock.frontend.trace_context import with_trace_context

        server.middleware.append(with_trace_context)
    return server


async def serve_stdio(service: RunService, *, version: str) -> None:
    """Serves one MCP client over this process's stdin and stdout until it closes stdin."""
    server = make_server(service, version=version)
    lines = await StdinLines.open()
    # Who cannot be answered any more need not be listened to.
    output = await StdoutLines.open(on_lost=lines.close if lines else lambda: None)
    try:
        async with stdio_server(
            stdin=lines.as_file() if lines else None, stdout=output.as_file() if output else None
        ) as (read, write):
            await server.run(read, write, server.create_initialization_options())
            if output is not None:
                output.say_farewell()
    finally:
        if output is not None:
            output.close()
        if lines is not None:
            lines.close()
