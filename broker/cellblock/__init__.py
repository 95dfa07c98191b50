"""Cellblock: runs an agent's JavaScript against MCP servers, in a process that can touch nothing.

The embedding API::

    from cellblock import Broker, tool

    @tool()
    def add(a: int, b: int) -> int:
        "Adds two numbers."
        return a + b

    async with Broker.from_config("cellblock.json", tools=[add]) as broker:
        response = await broker.run(code, limits={"timeoutMs": 5000})
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Final

if TYPE_CHECKING:
    from cellblock.base.errors import (
        CellblockError,
        ConfigError,
        HostUnavailable,
        InvalidRequest,
        Overloaded,
        ToolCallError,
    )
    from cellblock.config.settings import Settings, load_settings
    from cellblock.daemon.broker import Broker
    from cellblock.execution.events import Observer
    from cellblock.execution.response import Diagnostic, LogEntry, RunResponse, TraceEntry, Usage
    from cellblock.python_tools.tool_mark import tool

__version__ = "0.1.0"

__all__ = [
    "Broker",
    "CellblockError",
    "ConfigError",
    "Diagnostic",
    "HostUnavailable",
    "InvalidRequest",
    "LogEntry",
    "Observer",
    "Overloaded",
    "RunResponse",
    "Settings",
    "ToolCallError",
    "TraceEntry",
    "Usage",
    "__version__",
    "load_settings",
    "tool",
]

_WHERE: Final = {
    "Broker": "cellblock.daemon.broker",
    "CellblockError": "cellblock.base.errors",
    "ConfigError": "cellblock.base.errors",
    "Diagnostic": "cellblock.execution.response",
    "HostUnavailable": "cellblock.base.errors",
    "InvalidRequest": "cellblock.base.errors",
    "LogEntry": "cellblock.execution.response",
    "Observer": "cellblock.execution.events",
    "Overloaded": "cellblock.base.errors",
    "RunResponse": "cellblock.execution.response",
    "Settings": "cellblock.config.settings",
    "ToolCallError": "cellblock.base.errors",
    "TraceEntry": "cellblock.execution.response",
    "Usage": "cellblock.execution.response",
    "load_settings": "cellblock.config.settings",
    "tool": "cellblock.python_tools.tool_mark",
}


def __getattr__(name: str) -> object:
    # The MCP SDK takes half a second to import; who needs one name of ours should not pay for all.
    module = _WHERE.get(name)
    if module is None:
        raise AttributeError(f"module 'cellblock' has no attribute {name!r}")
    return getattr(importlib.import_module(module), name)
