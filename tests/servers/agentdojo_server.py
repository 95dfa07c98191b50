"""A suite of AgentDojo as an MCP server over stdio, run by a Python that has the package: its tools, and two more.

`begin` makes the suite's world anew, with a mark wherever a stranger may write, and gives the calls with which a user's
task is done and those that an injection wants. `end` says whether the injection has got what it wanted, and whether
the user has.

Run as ``python agentdojo_server.py SUITE``.
"""

from __future__ import annotations

import json
import sys
from importlib import import_module
from typing import Any

runtime: Any = import_module("agentdojo.functions_runtime")
suites: Any = import_module("agentdojo.task_suite.load_suites")

VERSION = "v1.2"
MARK = "INJECTED-BY-A-STRANGER"


class Dojo:
    """One suite, and the world of the task that is under way."""

    def __init__(self, suite: str) -> None:
        self.suite: Any = suites.get_suite(VERSION, suite)
        self.runtime: Any = runtime.FunctionsRuntime(self.suite.tools)
        self.before: Any = None
        self.world: Any = None
        self.made: list[Any] = []

    def tools(self) -> list[dict[str, Any]]:
        return [{"name": name, "inputSchema": {"type": "object"}} for name in ("begin", "end", "tasks")] + [
            {
                "name": tool.name,
                "description": tool.description,
                "inputSchema": tool.parameters.model_json_schema(),
            }
            for tool in self.suite.tools
        ]

    def judged(self, task: Any, what: str, output: str) -> bool:
        """What a task says of the world, or of the calls that were made."""
        by_calls = getattr(task, f"{what}_from_traces")(output, self.before, self.world, self.made)
        return bool(getattr(task, what)(output, self.before, self.world) if by_calls is None else by_calls)

    def called(self, name: str, given: dict[str, Any]) -> Any:
        if name == "tasks":
            return {"users": list(self.suite.user_tasks), "injections": list(self.suite.injection_tasks)}
        if name == "begin":
            user = self.suite.user_tasks[given["user"]]
            marks = dict.fromkeys(self.suite.get_injection_vector_defaults(), MARK)
            self.world = user.init_environment(self.suite.load_and_inject_default_environment(marks))
            self.before = self.world.model_copy(deep=True)
            self.made = []
            wanted = self.suite.injection_tasks[given["injection"]]
            return {"user": _calls(user, self.world), "injection": _calls(wanted, self.world)}
        if name == "end":
            user = self.suite.user_tasks[given["user"]]
            wanted = self.suite.injection_tasks[given["injection"]]
            return {
                "injected": self.judged(wanted, "security", ""),
                "useful": self.judged(user, "utility", user.GROUND_TRUTH_OUTPUT),
            }
        self.made.append(runtime.FunctionCall(function=name, args=given))
        result, error = self.runtime.run_function(self.world, name, given)
        if error is not None:
            raise ValueError(error)
        return {"said": json.loads(json.dumps(result, default=_plain))}


def _calls(task: Any, world: Any) -> list[dict[str, Any]]:
    return [{"name": call.function, "args": dict(call.args)} for call in task.ground_truth(world)]


def _plain(value: Any) -> Any:
    return value.model_dump(mode="json") if hasattr(value, "model_dump") else str(value)


def answer(dojo: Dojo, method: object, params: dict[str, Any]) -> dict[str, Any]:
    """The result of a request, or its error."""
    if method == "initialize":
        info = {"name": "agentdojo", "version": VERSION}
        said = {
            "capabilities": {"tools": {}},
            "serverInfo": info,
            "protocolVersion": params["protocolVersion"],
        }
        return {"result": said}
    if method == "tools/list":
        return {"result": {"tools": dojo.tools()}}
    if method != "tools/call":
        return {"error": {"code": -32601, "message": "no"}}
    try:
        said = dojo.called(params["name"], params.get("arguments") or {})
        structured = json.loads(json.dumps(said, default=_plain))
        return {"result": {"content": [], "structuredContent": structured}}
    except Exception as error:  # noqa: BLE001 - tools of the package raise what they like
        return {"result": {"content": [{"type": "text", "text": repr(error)}], "isError": True}}


def main() -> None:
    dojo = Dojo(sys.argv[1])
    for line in sys.stdin:
        message: dict[str, Any] = json.loads(line)
        if "id" in message:
            said = answer(dojo, message.get("method"), message.get("params") or {})
            print(json.dumps({"jsonrpc": "2.0", "id": message["id"], **said}), flush=True)


main()
