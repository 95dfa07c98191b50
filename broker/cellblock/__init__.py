"""Cellblock runs an agent's JavaScript against MCP servers, in a process that can touch nothing.

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

from cellblock.base.platforms import refusal

if TYPE_CHECKING:
    from cellblock.base.errors import (
        CellblockError,
        Certainty,
        ConfigError,
        Fault,
        HostUnavailable,
        InvalidRequest,
        Overloaded,
        ToolCallError,
    )
    from cellblock.base.questions import Answer, ParkedQuestion, QuestionId, Reply
    from cellblock.catalog.model import (
        Catalog,
        Effect,
        Example,
        Given,
        JsonSchema,
        ServerEntry,
        ToolEntry,
        Withheld,
    )
    from cellblock.catalog.outputs import Source, ToolOutput
    from cellblock.config.policy import Grant, PolicySettings
    from cellblock.config.server import ServerConfig
    from cellblock.config.settings import CellblockSettings, Profile, Settings, TypecheckMode, load_settings
    from cellblock.daemon.broker import Broker
    from cellblock.daemon.private_state import StateDir
    from cellblock.durable.views import ParkedRun
    from cellblock.execution.events import CallFacts, Decision, Observer, RunEvents, RunFacts, Watcher
    from cellblock.execution.media import Media
    from cellblock.execution.response import (
        Diagnostic,
        Level,
        LogEntry,
        RunResponse,
        Severity,
        TraceEntry,
        Usage,
    )
    from cellblock.frontend.agent_tool import Api, ToolAnswer
    from cellblock.policy.asking import Approver, Grantee, LoginQuestion, Question, Verdict
    from cellblock.python_tools.tool_mark import tool
    from cellblock.telemetry.collector import MetricsCollector

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "Api",
    "Approver",
    "Broker",
    "CallFacts",
    "Catalog",
    "CellblockError",
    "CellblockSettings",
    "Certainty",
    "ConfigError",
    "Decision",
    "Diagnostic",
    "Effect",
    "Example",
    "Fault",
    "Given",
    "Grant",
    "Grantee",
    "HostUnavailable",
    "InvalidRequest",
    "JsonSchema",
    "Level",
    "LogEntry",
    "LoginQuestion",
    "Media",
    "MetricsCollector",
    "Observer",
    "Overloaded",
    "ParkedQuestion",
    "ParkedRun",
    "PolicySettings",
    "Profile",
    "Question",
    "QuestionId",
    "Reply",
    "RunEvents",
    "RunFacts",
    "RunResponse",
    "ServerConfig",
    "ServerEntry",
    "Settings",
    "Severity",
    "Source",
    "StateDir",
    "ToolAnswer",
    "ToolCallError",
    "ToolEntry",
    "ToolOutput",
    "TraceEntry",
    "TypecheckMode",
    "Usage",
    "Verdict",
    "Watcher",
    "Withheld",
    "__version__",
    "load_settings",
    "tool",
]

_IN: Final = {
    "base.errors": "CellblockError Certainty ConfigError Fault HostUnavailable InvalidRequest Overloaded ToolCallError",
    "base.questions": "Answer ParkedQuestion QuestionId Reply",
    "catalog.model": "Catalog Effect Example Given JsonSchema ServerEntry ToolEntry Withheld",
    "catalog.outputs": "Source ToolOutput",
    "config.policy": "Grant PolicySettings",
    "config.server": "ServerConfig",
    "config.settings": "CellblockSettings Profile Settings TypecheckMode load_settings",
    "daemon.broker": "Broker",
    "daemon.private_state": "StateDir",
    "durable.views": "ParkedRun",
    "execution.events": "CallFacts Decision Observer RunEvents RunFacts Watcher",
    "execution.media": "Media",
    "frontend.agent_tool": "Api ToolAnswer",
    "execution.response": "Diagnostic Level LogEntry RunResponse Severity TraceEntry Usage",
    "policy.asking": "Approver Grantee LoginQuestion Question Verdict",
    "python_tools.tool_mark": "tool",
    "telemetry.collector": "MetricsCollector",
}
_WHERE: Final = {name: f"cellblock.{module}" for module, names in _IN.items() for name in names.split()}


def __getattr__(name: str) -> object:
    # The MCP SDK takes half a second to import; who needs one name of ours should not pay for all.
    module = _WHERE.get(name)
    if module is None:
        raise AttributeError(f"module 'cellblock' has no attribute {name!r}")
    if why := refusal():
        raise ImportError(why)
    return getattr(importlib.import_module(module), name)
