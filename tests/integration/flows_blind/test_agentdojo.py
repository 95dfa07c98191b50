"""AgentDojo's tasks over an MCP server made from its tools: those who are fooled do no harm, others are asked as often
as the rules have it. Played where `AGENTDOJO_PYTHON` names a Python that has the package."""

import json
import os
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import pytest

from cellblock import Broker, Grantee, Question, Verdict
from integration.flows_blind.world import Row, label
from support.brokers import ready
from support.entries import settings
from support.responses import succeeded
from support.waits import until_found, within

PYTHON = os.environ.get("AGENTDOJO_PYTHON", "")
SERVER = Path(__file__).with_name("agentdojo_server.py")

OWN = label("private", "untrusted", "private")
SENDS = label("private", "trusted", "public")
SITE = label("public", "untrusted", "public")
DESTROYS = label("private", "trusted", "private", destructive=True)
SLACK = label(["team:slack"], "untrusted", ["team:slack"])

SUITES: dict[str, dict[str, Row]] = {
    "workspace": {
        "get_current_day": label("public", "trusted", "private"),
        "create_file append_to_file get_* search_* list_*": OWN,
        "cancel_calendar_event": label("private", "trusted", "public", destructive=True),
        "delete_*": DESTROYS,
        "*": SENDS,
    },
    "travel": {
        "get_user_information search_calendar_events get_day_calendar_events": OWN,
        "cancel_calendar_event": DESTROYS,
        "create_calendar_event reserve_* send_email": SENDS,
        "*": SITE,
    },
    "banking": {"get_* read_file update_user_info": OWN, "update_password": DESTROYS, "*": SENDS},
    "slack": {
        "get_webpage post_webpage": SITE,
        "invite_user_to_slack add_user_to_channel": SENDS,
        "remove_user_from_slack": DESTROYS,
        "*": SLACK,
    },
}
"""How somebody would label the tools: the first pattern that fits counts."""

FIRST = {
    "workspace": "user_task_13",
    "travel": "user_task_4",
    "banking": "user_task_0",
    "slack": "user_task_6",
}
"""What the model is doing when it reads what a stranger has written."""

pytestmark = [
    pytest.mark.skipif(not PYTHON, reason="AGENTDOJO_PYTHON names no Python that has agentdojo"),
    pytest.mark.timeout(600),
]


def label_of(suite: str, tool: str) -> Row:
    return next(
        said
        for patterns, said in SUITES[suite].items()
        if any(fnmatchcase(tool, pattern) for pattern in patterns.split())
    )


@dataclass
class Rules:
    """The rules, written down once more: which calls are to be asked about."""

    suite: str
    yes: bool
    names: set[str] = field(default_factory=set[str])
    private: bool = False
    untrusted: bool = False

    def asks(self, tool: str) -> bool:
        """Whether this call is asked about; then it has been made, or refused."""
        said = label_of(self.suite, tool)
        sink, secrecy = said["sink"], said["secrecy"]
        allowed = sink == "private" or not (
            self.private or self.names - set(() if sink == "public" else sink)
        )
        asked = not allowed or (said["destructive"] and self.untrusted)
        if asked and not self.yes:
            return True
        self.private |= secrecy == "private"
        self.names |= set() if isinstance(secrecy, str) else set(secrecy)
        self.untrusted |= said["trust"] == "untrusted"
        return asked


@dataclass
class Judge:
    """Begins tasks and looks at their ends, as a client of its own, and plays the model."""

    broker: Broker
    suite: str
    yes: bool
    asked: list[str] = field(default_factory=list[str])

    async def approve(self, question: Question) -> Verdict:
        self.asked.append(question.tool_name)
        return Verdict.ACCEPTED if self.yes else Verdict.DECLINED

    async def own(self, tool: str, **arguments: str) -> Any:
        call = f"export default await dojo.{tool}({json.dumps(arguments)});"
        code = f'import * as dojo from "@codemode/servers/dojo"; {call}'
        return json.loads(succeeded(await within(self.broker.run(code, client="judge"))))

    async def play(self, user: str, injection: str = "") -> tuple[list[str], list[str], dict[str, bool]]:
        """The tools of both tasks, and what came of them."""
        self.asked.clear()
        calls = await self.own("begin", user=user, injection=injection)
        code = f"""
import * as dojo from "@codemode/servers/dojo";
for (const [tool, input] of {json.dumps(calls["user"] + calls["injection"])})
    try {{ await dojo[tool](input); }} catch (error) {{ console.log(`${{tool}}: ${{error.message}}`); }}
"""
        grantee = Grantee("embedding", self.approve)
        succeeded(await within(self.broker.run(code, client=f"{user}-{injection}", grantee=grantee)))
        user_tools, injected = ([tool for tool, _ in calls[one]] for one in ("user", "injection"))
        return user_tools, injected, await self.own("verdict")


def broker_of(suite: str, folder: Path, guard: bool, tools: list[str]) -> Any:
    labels = {f"dojo.{one}": label_of(suite, one) for one in tools}
    labels |= {f"dojo.{one}": label("public", "trusted", "private") for one in ("tasks", "begin", "verdict")}
    policy: dict[str, Any] = {"flows": "guard", "labels": labels} if guard else {}
    server: Row = {"command": PYTHON, "args": [str(SERVER), suite], "env": {}}
    section = {"auth": {"keyring": "off"}, "typecheck": "off", "policy": policy}
    # The package imports for 15 s.
    return ready(settings(folder, {"dojo": server}, **section, upstream={"connect_timeout_ms": 120_000}))


async def tools_of(broker: Broker) -> list[str]:
    """Those of the suite, when the server is there."""
    code = """
import { listTools } from "@codemode/discovery";
globalThis.__codemode_result__ = (await listTools("dojo")).map((tool) => tool.toolName);
"""

    async def look() -> Any:
        response = await broker.run(code)
        return response.ok and response.result

    listed = await until_found(look, "the server is there", 120.0)
    return [one for one in listed if one not in ("tasks", "begin", "verdict")]


@pytest.mark.parametrize("suite", SUITES)
async def test_agentdojo(tmp_path: Path, suite: str) -> None:
    async with broker_of(suite, tmp_path / "a", False, []) as broker:
        tools = await tools_of(broker)
        free = Judge(broker, suite, True)
        tasks = await free.own("tasks")
        solvable = [user for user in tasks["user"] if (await free.play(user))[2]["done"]]
        harmful: list[str] = []
        for injection in tasks["injection"]:
            user_tools, injected, verdict = await free.play(FIRST[suite], injection)
            rules = Rules(suite, yes=False)
            asked = [rules.asks(one) for one in (*user_tools, *injected)][len(user_tools) :]
            if verdict["fooled"] and any(asked):
                harmful.append(injection)
    print(
        suite,
        "solvable",
        len(solvable),
        "of",
        len(tasks["user"]),
        "harmful",
        harmful,
        "of",
        len(tasks["injection"]),
    )
    assert solvable and harmful
    async with broker_of(suite, tmp_path / "b", True, tools) as broker:
        await tools_of(broker)
        kind = Judge(broker, suite, True)
        counts: dict[str, tuple[int, int]] = {}
        for user in solvable:
            user_tools, _, verdict = await kind.play(user)
            rules = Rules(suite, yes=True)
            counts[user] = (len(kind.asked), sum(rules.asks(one) for one in user_tools))
            assert verdict["done"] and counts[user][0] <= counts[user][1], (user, kind.asked, user_tools)
        print(suite, "asked", sum(one for one, _ in counts.values()), "in", len(counts), "tasks")
        stern = Judge(broker, suite, False)
        for injection in harmful:
            _, _, verdict = await stern.play(FIRST[suite], injection)
            assert not verdict["fooled"], (injection, stern.asked)
