"""Gives the tool to a FastMCP server (`pip install 'cellblock[fastmcp]'`)."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any

from fastmcp import FastMCP
from fastmcp.server.providers import Provider
from fastmcp.tools import Tool, ToolResult
from mcp_types import AudioContent, ImageContent, TextContent
from pydantic import Field
from pydantic.json_schema import SkipJsonSchema

from cellblock import Broker, ToolAnswer


class _Codemode(Tool):
    answer: SkipJsonSchema[Callable[[dict[str, Any]], Awaitable[ToolAnswer]]] = Field(exclude=True)

    async def run(self, arguments: dict[str, Any]) -> ToolResult:
        answer = await self.answer(arguments)
        structured = None if answer.response is None else answer.response.as_json()
        kinds = {"image": ImageContent, "audio": AudioContent}
        blocks = [kinds[one.type](data=one.data, mime_type=one.mime_type) for one in answer.media]
        content = [TextContent(text=answer.text), *blocks]
        return ToolResult(content, structured_content=structured, is_error=answer.is_error)


class CodemodeProvider(Provider):
    """Lists the tool as the servers are at that moment.

    Args:
        broker: It runs as long as the server serves.
        client: As for `Broker.run`.
        budget: As for `Broker.tool_definition`.
    """

    def __init__(self, broker: Broker, *, client: str = "default", budget: int | None = None) -> None:
        super().__init__()
        self._broker, self._client, self._budget = broker, client, budget

    async def _list_tools(self) -> Sequence[Tool]:
        defined = await self._broker.tool_definition("anthropic", client=self._client, budget=self._budget)
        name, text, schema = defined["name"], defined["description"], defined["input_schema"]
        return [_Codemode(name=name, description=text, parameters=schema, answer=self._answer)]

    async def _answer(self, arguments: dict[str, Any]) -> ToolAnswer:
        # By its own name: where the server is mounted, it has another.
        return await self._broker.handle_tool_call("codemode_run", arguments, client=self._client)


def codemode_server(broker: Broker, *, client: str = "default", budget: int | None = None) -> FastMCP[Any]:
    """Makes a server for `FastMCP.mount`; the arguments are those of `CodemodeProvider`."""
    return FastMCP("cellblock", providers=[CodemodeProvider(broker, client=client, budget=budget)])
