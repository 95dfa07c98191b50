"""A world of servers for scenarios of flows: what each answers, what each was sent, and what a person was asked."""

import asyncio
import json
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

from cellblock import Broker
from cellblock.base.questions import Answer
from cellblock.run.policy.asking import Grantee, Question, Verdict
from cellblock.run.response import RunResponse
from support.brokers import ready
from support.entries import ledger, plain_server, settings
from support.waits import within

Tools = Mapping[str, Mapping[str, Any]]
"""What a server offers: by a tool's name `text` or `result` that it answers with, `meta`, `annotations`,
`description`."""


@dataclass(frozen=True, kw_only=True)
class Scenario:
    """Some scripts of one person's agents, and what may become of them.

    `runs` are scripts, or scripts with options of `World.run`. `calls` says how often tools are called in the end,
    and `asks` how often the person is asked; None: that is not looked at.
    """

    name: str
    servers: Mapping[str, Tools]
    runs: Sequence[str | Mapping[str, Any]]
    calls: Mapping[str, int]
    asks: int | None = None
    policy: Mapping[str, Any] = field(default_factory=dict[str, Any])
    settings: Mapping[str, Any] = field(default_factory=dict[str, Any])
    says_yes: bool = False


class World:
    """A broker in front of such servers."""

    def __init__(self, folder: Path, scenario: Scenario) -> None:
        self.folder, self.scenario = folder, scenario
        self.questions: list[Question] = []
        self.waited = 0
        """Counts the questions of runs that were parked."""
        self.broker: Broker | None = None

    def entries(self) -> dict[str, Any]:
        """What the configuration has of the servers; what one offers stays as it was defined last."""
        for name, tools in self.scenario.servers.items():
            if not (self.folder / f"{name}.json").exists():
                self.define(name, tools)
        files = {name: self.folder / f"{name}.json" for name in self.scenario.servers}
        return {
            name: plain_server("--definitions", file, "--ledger", file.with_suffix(".log"))
            for name, file in files.items()
        }

    def define(self, name: str, tools: Tools) -> None:
        """Writes down what a server offers, which it reads anew each time."""
        page = [
            {
                "name": tool,
                "description": about.get("description", f"Does {tool}"),
                "inputSchema": {"type": "object"},
                **({"annotations": about["annotations"]} if "annotations" in about else {}),
            }
            for tool, about in tools.items()
        ]
        answers = {tool: _result(about) for tool, about in tools.items()}
        offered = json.dumps({"pages": [page], "answers": answers})
        (self.folder / f"{name}.json").write_text(offered, encoding="utf-8")

    @asynccontextmanager
    async def connected(self) -> AsyncGenerator[Broker]:
        """A broker, and with it connections: another one knows what one before has kept."""
        policy = {"flows": "guard", **self.scenario.policy}
        options = {"policy": policy, **self.scenario.settings}
        async with ready(settings(self.folder / "state", self.entries(), **options)) as broker:
            self.broker = broker
            yield broker

    async def run(
        self, code: str, *, principal: str = "token", answer: str = "", asks: bool = True, **options: Any
    ) -> RunResponse:
        """One script; with `answer` it is durable, and what it waits for is answered so, again and again. `asks` says
        whether its client can be asked."""
        assert self.broker is not None
        if not asks:
            return await within(self.broker.run(code, grantee=Grantee(principal), **options))
        if answer:
            grantee = Grantee(principal)
            response = await within(self.broker.run(code, grantee=grantee, durable=True, **options))
            while response.parked:
                self.waited += len((await self.broker.parked())[0].questions)
                response = await within(
                    self.broker.resume(str(response.usage.run_id), cast("Answer", answer))
                )
            return response
        return await within(self.broker.run(code, grantee=Grantee(principal, self._asked), **options))

    async def _asked(self, question: Question) -> Verdict:
        self.questions.append(question)
        return Verdict.ACCEPTED if self.scenario.says_yes else Verdict.DECLINED

    def sent(self) -> dict[str, list[Any]]:
        """What each tool was sent, by `server.tool`."""
        found: dict[str, list[Any]] = {}
        for name in self.scenario.servers:
            for event in ledger(self.folder / f"{name}.log"):
                if event["event"] == "call":
                    found.setdefault(f"{name}.{event['tool']}", []).append(event["arguments"])
        return found

    async def play(self) -> None:
        """Plays the scenario, and looks what has become of it."""
        waiting = list(self.scenario.runs)
        while waiting:
            async with self.connected():
                while waiting:
                    step = waiting.pop(0)
                    about: dict[str, Any] = {"code": step} if isinstance(step, str) else dict(step)
                    if about.get("connect"):
                        break
                    if "define" in about:
                        self.define(about["define"], about["tools"])
                        await asyncio.sleep(0)
                        continue
                    if "together" in about:
                        await asyncio.gather(*(self.run(code) for code in about["together"]))
                        continue
                    works = about.pop("works", True)
                    response = await self.run(**about)
                    assert response.ok == works, response
        self.check()

    def check(self) -> None:
        """Looks what was called, and what was asked."""
        sent, scenario = self.sent(), self.scenario
        for tool, times in scenario.calls.items():
            assert len(sent.get(tool, [])) == times, (scenario.name, tool, sent)
        if scenario.asks is not None:
            assert len(self.questions) + self.waited == scenario.asks, (scenario.name, self.questions)


def _result(about: Mapping[str, Any]) -> Any:
    if "result" in about:
        return about["result"]
    result: dict[str, Any] = {"content": [{"type": "text", "text": about.get("text", "ok")}]}
    if "meta" in about:
        result["_meta"] = about["meta"]
    if about.get("error"):
        result["isError"] = True
    return result
