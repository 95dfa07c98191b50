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
    from cellblock.app.assembly import StateDir
    from cellblock.app.broker import Broker
    from cellblock.app.config.load import load_settings
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
    from cellblock.base.settings.policy import FlowLabel, Grant, PolicySettings
    from cellblock.base.settings.server import ServerConfig
    from cellblock.base.settings.settings import CellblockSettings, Profile, Settings, TypecheckMode
    from cellblock.observe.collector import MetricsCollector
    from cellblock.record.views import ParkedRun
    from cellblock.run.events import CallFacts, Decision, Observer, RunEvents, RunFacts, Watcher
    from cellblock.run.flows.labels import Audience, Label
    from cellblock.run.policy.asking import Approver, FlowQuestion, Grantee, LoginQuestion, Question, Verdict
    from cellblock.run.response import Diagnostic, Level, LogEntry, RunResponse, Severity, TraceEntry, Usage
    from cellblock.run.results import Media
    from cellblock.serve.agent_tool import Api, ToolAnswer
    from cellblock.tools.catalog.model import (
        Catalog,
        Effect,
        Example,
        Given,
        JsonSchema,
        ServerEntry,
        Source,
        ToolEntry,
        ToolOutput,
        Withheld,
    )
    from cellblock.tools.python.tool_mark import tool

__version__ = "0.1.0"

__all__ = [
    "Answer",
    "Api",
    "Approver",
    "Audience",
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
    "FlowLabel",
    "FlowQuestion",
    "Given",
    "Grant",
    "Grantee",
    "HostUnavailable",
    "InvalidRequest",
    "JsonSchema",
    "Label",
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
    "tools.catalog.model": "Catalog Effect Example Given JsonSchema ServerEntry Source ToolEntry ToolOutput Withheld",
    "base.settings.policy": "FlowLabel Grant PolicySettings",
    "base.settings.server": "ServerConfig",
    "base.settings.settings": "CellblockSettings Profile Settings TypecheckMode",
    "app.config.load": "load_settings",
    "app.broker": "Broker",
    "app.assembly": "StateDir",
    "record.views": "ParkedRun",
    "run.events": "CallFacts Decision Observer RunEvents RunFacts Watcher",
    "run.flows.labels": "Audience Label",
    "run.results": "Media",
    "serve.agent_tool": "Api ToolAnswer",
    "run.response": "Diagnostic Level LogEntry RunResponse Severity TraceEntry Usage",
    "run.policy.asking": "Approver FlowQuestion Grantee LoginQuestion Question Verdict",
    "tools.python.tool_mark": "tool",
    "observe.collector": "MetricsCollector",
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
