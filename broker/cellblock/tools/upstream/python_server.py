"""The Python functions that a user gives stand as one server among the others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Final

import mcp_types as types

from cellblock.base.account import Account
from cellblock.base.errors import ConfigError, ToolNotFound
from cellblock.tools.catalog.naming import check_tool_name
from cellblock.tools.python.python_calls import PythonCalls
from cellblock.tools.python.python_tools import PythonTool, read_tool
from cellblock.tools.upstream.wire.results import ToolResult

TOOL_THREADS: Final = 32
"""Caps the Python tools that are not async and run at the same time, each in a thread; one that never returns keeps its
thread."""


class PythonServer:
    """Holds the Python tools, by name.

    Args:
        functions: The tools.
        bound: For a call, in seconds.

    Raises:
        ConfigError: Two share a name.
    """

    def __init__(self, functions: Sequence[Callable[..., Any]], bound: float) -> None:
        self.tools: dict[str, PythonTool] = {}
        self._calls = PythonCalls(bound=bound, threads=TOOL_THREADS)
        for function in functions:
            tool = read_tool(function)
            check_tool_name(tool.name)
            if tool.name in self.tools:
                raise ConfigError(f"Two Python tools are called {tool.name}.", hint="Rename one.")
            self.tools[tool.name] = tool

    def caller(self, name: str, account: Account | None) -> Callable[[Any], Awaitable[Any]]:
        """Gives what calls a tool, as `Registry.caller`. Raises ToolNotFound."""
        tool = self.tools.get(name)
        if tool is None:
            raise ToolNotFound(f"There is no tool {name}.", hint="List the server's tools.")

        async def call(arguments: Any) -> Any:
            result = await self._calls.call(tool, arguments, account)
            if not isinstance(result, types.CallToolResult):
                return result
            return ToolResult.of(result.model_dump(mode="json", by_alias=True, exclude_none=True))

        return call

    async def close(self) -> None:
        """Ends the calls that are under way."""
        await self._calls.close()
