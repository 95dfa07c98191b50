"""Extended answers the three tools of the `extended` profile: what is known of servers and tools at the moment.

Their definitions never change, and the description of `codemode.run` does not change because something was observed: a
client reads the list of tools once and keeps it. What was learnt since reaches the agent by calling one of these.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Final

import mcp_types as types
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from cellblock.base.errors import CellblockError
from cellblock.base.terminal import json_text
from cellblock.serve.mcp.tool_name import TOOL_NAME
from cellblock.serve.service import RunService
from cellblock.tools.catalog.model import Catalog
from cellblock.types.discovery import DiscoveryCache
from cellblock.types.lookup import NoSuchTool, declare_found, find_tools, inspect_tool, list_servers

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

    def __init__(self, service: RunService) -> None:
        self._service = service
        self._discovery = DiscoveryCache(service.output_of)
        self._answers = {SEARCH: self._search, INSPECT: self._inspect, SERVERS: self._servers}

    def has(self, name: str) -> bool:
        """Says whether a name is one of the three tools."""
        return name in self._answers

    async def call(self, name: str, arguments: Mapping[str, Any], catalog: Catalog) -> types.CallToolResult:
        """Answers one of the three extended tools from what the client is granted. What is wrong is said in the
        result."""
        await self._service.wait_for_looks(LOOKED_BOUND_SECONDS)
        try:
            return self._answers[name](arguments, catalog)
        except ValidationError as error:
            first = error.errors(include_url=False)[0]
            where = ".".join(str(part) for part in first["loc"]) or "the input"
            return _text(f"{name}: `{where}`: {first['msg']}.", is_error=True)
        except CellblockError as error:
            return _text(str(error), is_error=True)

    def _search(self, arguments: Mapping[str, Any], catalog: Catalog) -> types.CallToolResult:
        asked = _Search.model_validate(arguments)
        found = self._discovery.get_or_make(catalog)
        hits = find_tools(catalog, asked.query, server=asked.server, limit=asked.limit, discovery=found)
        return _text(declare_found(hits, self._service.output_of))

    def _inspect(self, arguments: Mapping[str, Any], catalog: Catalog) -> types.CallToolResult:
        name = _Inspect.model_validate(arguments).tool_name
        service = self._service
        try:
            found = inspect_tool(catalog, name, service.output_of, service.observed_of, finder=SEARCH)
        except NoSuchTool as error:
            return _text(f"[Tool not found] '{name}' is not available in {TOOL_NAME}\n{error.hint}")
        return _json(found)

    def _servers(self, arguments: Mapping[str, Any], catalog: Catalog) -> types.CallToolResult:
        _Input.model_validate(arguments)
        return _json(list_servers(catalog))


def _json(value: dict[str, Any]) -> types.CallToolResult:
    return types.CallToolResult(
        content=[types.TextContent(text=json_text(value))], structured_content=value, is_error=False
    )


def _text(text: str, *, is_error: bool = False) -> types.CallToolResult:
    return types.CallToolResult(content=[types.TextContent(text=text)], is_error=is_error)
