"""AgentDojo's environment of one suite as an MCP server over stdio: its tools, and three more to play its tasks.

Run as ``python agentdojo_server.py SUITE`` with a Python that has the package ``agentdojo``. `tasks` lists its tasks;
`begin` makes the environment anew and gives the calls that solve two of them; `verdict` says what AgentDojo finds in
the environment. No stranger's text is put into it: what a fooled model does is known, and it disturbs some verdicts.
"""
# pyright: reportMissingImports=false, reportUnknownVariableType=false, reportUnknownMemberType=false
# pyright: reportOptionalMemberAccess=false, reportUnknownArgumentType=false, reportUnknownParameterType=false

import json
import sys
from typing import Any

from agentdojo.agent_pipeline.tool_execution import tool_result_to_str
from agentdojo.functions_runtime import FunctionCall, FunctionsRuntime
from agentdojo.task_suite.load_suites import get_suite
from told_server import serve

VERSION = "v1.2.2"

SUITE = get_suite(VERSION, sys.argv[1])
RUNTIME = FunctionsRuntime(SUITE.tools)
OPEN = {"type": "object"}


class Dojo:
    """The tasks that are played, and their environment."""

    def __init__(self) -> None:
        self.begin(next(iter(SUITE.user_tasks)), "")

    def begin(self, user: str, injection: str) -> dict[str, Any]:
        """Makes the environment anew; the calls that solve the tasks."""
        self.user = SUITE.user_tasks[user]
        self.injection = SUITE.injection_tasks.get(injection)
        self.environment = self.user.init_environment(SUITE.load_and_inject_default_environment({}))
        self.made: list[FunctionCall] = []
        self.before = self.environment.model_copy(deep=True)
        tasks = [self.user] if self.injection is None else [self.user, self.injection]
        given = [
            [
                [call.function, dict(call.args)]
                for call in task.ground_truth(self.before.model_copy(deep=True))
            ]
            for task in tasks
        ]
        return {"user": given[0], "injection": given[-1] if len(given) > 1 else []}

    def verdict(self) -> dict[str, bool]:
        """Whether each task is done."""
        pair, said = (self.before, self.environment), self.user.GROUND_TRUTH_OUTPUT or ""
        done = self.user.utility_from_traces(said, *pair, self.made)
        if done is None:
            done = self.user.utility(said, *pair)
        fooled = self.injection is not None and self.injection.security_from_traces("", *pair, self.made)
        if fooled is None:
            fooled = self.injection.security("", *pair)
        return {"done": bool(done), "fooled": bool(fooled)}

    def call(self, name: str, arguments: dict[str, Any]) -> tuple[str, bool]:
        """What a tool says, and whether it failed."""
        if name == "tasks":
            return json.dumps(
                {"user": list(SUITE.user_tasks), "injection": list(SUITE.injection_tasks)}
            ), False
        if name == "begin":
            return json.dumps(self.begin(**arguments), default=str), False
        if name == "verdict":
            return json.dumps(self.verdict()), False
        self.made.append(FunctionCall(function=name, args=arguments))
        said, error = RUNTIME.run_function(self.environment, name, arguments)
        return error or tool_result_to_str(said), error is not None

    def answer(self, method: str, params: dict[str, Any]) -> dict[str, Any]:
        """The result of a request."""
        if method == "initialize":
            info = {"name": "dojo", "version": VERSION}
            version = params["protocolVersion"]
            return {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        if method == "tools/list":
            own = [{"name": name, "inputSchema": OPEN} for name in ("tasks", "begin", "verdict")]
            return {
                "tools": own
                + [
                    {
                        "name": one.name,
                        "description": one.description,
                        "inputSchema": one.parameters.model_json_schema(),
                    }
                    for one in SUITE.tools
                ]
            }
        if method != "tools/call":
            raise LookupError(method)
        text, failed = self.call(params["name"], params.get("arguments") or {})
        return {"content": [{"type": "text", "text": text}], "isError": failed}


if __name__ == "__main__":
    serve(Dojo().answer)
