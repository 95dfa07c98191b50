"""Plays a scenario before real servers: what its scripts were given, who was asked what, and what each server got."""

import asyncio
import base64
import binascii
import json
import re
import sys
from collections import defaultdict
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, cast
from urllib.parse import unquote_plus

from cellblock import Broker, Grantee, LogEntry, Observer, Question, RunResponse, Verdict, tool
from integration.flows.world import LABELS, MARKER, SECRET, SERVERS
from support.asking_client import Asked, asking, over_http, stdio
from support.brokers import ready
from support.entries import ledger, settings, write_config
from support.http_daemon import daemon
from support.waits import within

MOST_PARKS = 20
"""No script here waits more often."""

MODES = ("auto", "legacy")
"""Of the protocol's generations: that of a client's first connection, and of its second one."""

SHELF: dict[str, str] = {}
"""What the Python tools keep; a scenario begins without."""


HELD = asyncio.Event()
"""Is set when a scenario is over."""


@tool()
def keep(name: str, text: str) -> str:
    "Keeps a text in the program."
    SHELF[name] = text
    return "kept"


@tool()
def recall(name: str) -> str:
    "Gives a text back, spelled as base64."
    return base64.b64encode(SHELF.get(name, "nothing").encode()).decode()


@tool()
async def hold() -> str:
    "Waits until the scenario is over."
    await HELD.wait()
    return "held"


@tool()
def total(numbers: list[float]) -> float:
    "Adds numbers."
    return sum(numbers)


@dataclass(frozen=True, slots=True)
class Step:
    """One script, or, without one, a call of the profile `proxy`, a parked run's end, or a look at a resource.

    Args:
        code: The script. `$SECRET` is the secret's text as a string, if the model was given it by then.
        client: Whose run it is, in an embedded broker; `principal`: with which grants.
        durable: The run may be parked. All that it waits for is answered, unless `left`.
        anew: First the broker of this state directory, or the client's connection, begins anew.
        call: In place of a script: a tool of the profile `proxy`, with these arguments.
        resumed: In place of a script: the run that was left is answered.
        resource: In place of a script: the model reads this resource, or `kept`, the output that was kept.
        limits: Of the run.
        under_way: The next step comes when the run has said something, and holds.
        together: In place of a script: several at once.
        defines: What servers are from this life on, by their names.
    """

    code: str = ""
    client: str = "model"
    principal: str = "embedding"
    durable: bool = False
    left: bool = False
    anew: bool = False
    call: tuple[str, dict[str, str]] | None = None
    resumed: bool = False
    resource: str = ""
    limits: Mapping[str, int] | None = None
    under_way: bool = False
    together: tuple[str, ...] = ()
    defines: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(frozen=True, slots=True)
class Scenario:
    """What somebody asks of a model, or a stranger has it do.

    Args:
        servers: Which of `SERVERS` there are.
        labelled: Which of these have the labels of `LABELS`; the others have none.
        steps: What the model sends.
        reads: The tool whose result is needed; it must have been called.
        judged: In an attack: patterns of the tools that must not get the secret.
        forbidden: In an attack: a tool that must not be called at all.
        effects: In an honest task: what each tool was sent, and how often it was called.
        acceptable_questions: How many an honest task may ask.
        over: `embedding`, `http`, `stdio` (a client that cannot be asked) or `proxy`.
        trust_ifc: Servers whose `_meta.ifc` counts.
        policy: More of the policy; `section`: more of the configuration.
    """

    servers: str
    steps: tuple[Step, ...]
    labelled: str = ""
    reads: str = ""
    judged: tuple[str, ...] = ()
    forbidden: str = ""
    effects: Mapping[str, tuple[str, int]] = field(default_factory=dict[str, tuple[str, int]])
    acceptable_questions: int = 0
    over: str = "embedding"
    trust_ifc: tuple[str, ...] = ()
    policy: Mapping[str, Any] = field(default_factory=dict[str, Any])
    section: Mapping[str, Any] = field(default_factory=dict[str, Any])


@dataclass(slots=True)
class Play:
    """One scenario in a folder of its own, with a person who says the same to every question."""

    scenario: Scenario
    folder: Path
    guard: bool
    yes: bool
    asked: list[str] = field(default_factory=list[str])
    given: str = ""
    """All that the model was given so far."""
    last: dict[str, Any] = field(default_factory=dict[str, Any])
    waiting: str = ""
    runs: list[asyncio.Task[RunResponse]] = field(default_factory=list[asyncio.Task[RunResponse]])
    defined: dict[str, Any] = field(default_factory=SERVERS.copy)

    async def play(self) -> "Play":
        """All steps, each life of the broker or of the connection after the other."""
        SHELF.clear()
        HELD.clear()
        lives: list[list[Step]] = [[]]
        for step in self.scenario.steps:
            if step.anew:
                lives.append([])
            lives[-1].append(step)
        async with AsyncExitStack() as stack:
            profile = ["--profile", "proxy"] if self.scenario.over == "proxy" else []
            served = (
                await stack.enter_async_context(
                    daemon(self.folder, *profile, servers=self.servers, **self.section)
                )
                if self.scenario.over in ("http", "proxy")
                else None
            )
            for life, mode in zip(lives, MODES, strict=False):
                for step in life:
                    self.defined |= step.defines
                if self.scenario.over == "embedding":
                    async with ready(
                        settings(self.folder / "s", self.servers, **self.section),
                        tools=[hold, keep, recall, total],
                    ) as broker:
                        for step in life:
                            self.take(await self._embedded(broker, step))
                        HELD.set()
                        await within(asyncio.gather(*self.runs))
                else:
                    async with self._client(served, mode) as client:
                        for step in life:
                            self.take(await self._connected(client, step))
        return self

    def take(self, response: Any) -> None:
        """What the model is given."""
        self.last = response
        self.given += json.dumps(response)

    @property
    def servers(self) -> dict[str, Any]:
        """The entries of the servers."""
        made: dict[str, Any] = {}
        for name in self.scenario.servers.split():
            file = self.folder / f"{name}.json"
            file.write_text(json.dumps(self.defined[name]), encoding="utf-8")
            made[name] = {
                "command": sys.executable,
                "args": [
                    "-I",
                    str(Path(__file__).with_name("told_server.py")),
                    str(file),
                    str(self.ledger(name)),
                ],
            }
        return made

    def ledger(self, name: str) -> Path:
        """What a server records."""
        return self.folder / f"{name}.jsonl"

    @property
    def section(self) -> dict[str, Any]:
        """The section of the configuration, with or without the guard."""
        policy = dict(self.scenario.policy)
        if not self.guard:
            policy.pop("flows", None)
        else:
            labelled = self.scenario.labelled.split()
            policy.setdefault("flows", "guard")
            policy["labels"] = {key: said for key, said in LABELS.items() if key.split(".")[0] in labelled}
            policy["trustIfc"] = list(self.scenario.trust_ifc)
        return {"auth": {"keyring": "off"}, "typecheck": "off", "policy": policy, **self.scenario.section}

    def script(self, text: str) -> str:
        """What the model writes, who can write down only what it was given."""
        return text.replace("$SECRET", json.dumps(SECRET if MARKER in self.given else "nothing"))

    async def _approve(self, question: Question) -> Verdict:
        self.asked.append(f"{question.server_id}.{question.tool_name}")
        return Verdict.ACCEPTED if self.yes else Verdict.DECLINED

    async def _embedded(self, broker: Broker, step: Step) -> Any:
        if step.resumed:
            return (await self._resume(broker, self.waiting)).as_json()
        grantee = Grantee(step.principal, None if step.durable else self._approve)
        if step.together:
            runs = (broker.run(code, client=step.client, grantee=grantee) for code in step.together)
            responses = await within(asyncio.gather(*runs))
            assert all(response.ok for response in responses), responses
            return [response.as_json() for response in responses]
        heard: asyncio.Queue[LogEntry] = asyncio.Queue()
        ran = broker.run(
            self.script(step.code),
            client=step.client,
            grantee=grantee,
            durable=step.durable or None,
            limits=step.limits,
            observer=Observer(on_log=heard.put_nowait),
        )
        if step.under_way:
            self.runs.append(asyncio.create_task(ran))
            return (await within(heard.get())).message
        response = await within(ran)
        if response.parked:
            self.waiting = str(response.usage.run_id)
            if step.left:
                return response.as_json()
            response = await self._resume(broker, self.waiting)
        return response.as_json()

    async def _resume(self, broker: Broker, run_id: str) -> RunResponse:
        for _ in range(MOST_PARKS):
            for run in await broker.parked():
                self.asked += [f"{one.server}.{one.tool}" for one in run.questions if run.id == run_id]
            response = await within(broker.resume(run_id, "accepted" if self.yes else "declined"))
            if not response.parked:
                return response
        raise AssertionError(f"it was parked {MOST_PARKS} times: {self.asked}")

    @asynccontextmanager
    async def _client(self, served: Any, mode: str) -> AsyncGenerator[Asked]:
        async with AsyncExitStack() as stack:
            if served is None:
                transport: Any = stdio(
                    write_config(self.folder, self.servers, **self.section), self.folder / "s"
                )
            else:
                transport = await stack.enter_async_context(over_http(served))
            elicits = self.scenario.over != "stdio"
            client = await stack.enter_async_context(asking(transport, mode, elicits=elicits, name="model"))

            async def answer(question: str) -> str:
                self.asked.append(question)
                return "accept" if self.yes else "decline"

            client.answer = answer
            yield client

    async def _connected(self, client: Asked, step: Step) -> Any:
        if step.call is not None:
            name, arguments = step.call
            secret = json.loads(self.script("$SECRET"))
            sent = {key: value.replace("$SECRET", secret) for key, value in arguments.items()}
            return (await within(client.client.call_tool(name, sent))).model_dump(mode="json")
        if step.resource:
            uri = self.last["outputs"][0]["uri"] if step.resource == "kept" else step.resource
            return (await within(client.client.read_resource(uri))).model_dump(mode="json")
        return await client.run(self.script(step.code))

    def sent(self, *patterns: str) -> list[Any]:
        """The arguments of the calls of such tools, in the order of each server."""
        return [
            event["arguments"]
            for name in self.scenario.servers.split()
            for event in ledger(self.ledger(name))
            if any(fnmatchcase(f"{name}.{event['tool']}", pattern) for pattern in patterns)
        ]

    @property
    def leaked(self) -> bool:
        """Whether the secret has arrived where it must not, or what is forbidden has been done."""
        if self.scenario.forbidden:
            return bool(self.sent(self.scenario.forbidden))
        by_place: dict[str, list[str]] = defaultdict(list)
        for arguments in self.sent(*self.scenario.judged):
            for place, text in strings(arguments):
                by_place[place].append(text)
                by_place[""].append(text)
        return any(MARKER.lower() in read.lower() for texts in by_place.values() for read in readings(texts))


def strings(value: Any, place: str = ".") -> Iterator[tuple[str, str]]:
    """Every key and every value, with where it stands."""
    if isinstance(value, dict):
        for key, one in cast("dict[str, Any]", value).items():
            yield f"{place} key", key
            yield from strings(one, f"{place}{key}.")
    elif isinstance(value, list):
        for one in cast("list[Any]", value):
            yield from strings(one, place)
    elif value is not None:
        yield place, str(value)


def readings(texts: Iterable[str]) -> Iterator[str]:
    """What somebody who gets these texts can read in them: each decoded, and all of them put together."""
    texts = list(texts)
    for text in (*texts, "".join(texts)):
        yield text
        yield text[::-1]
        yield unquote_plus(text)
        for spelled in re.findall(r"[A-Za-z0-9+/_-]{8,}", text):
            with_sign = spelled.translate(str.maketrans("-_", "+/"))
            yield base64.b64decode(with_sign[: len(with_sign) // 4 * 4]).decode("latin-1")
        for spelled in re.findall(r"(?:[0-9a-fA-F]{2}){4,}", text):
            yield binascii.unhexlify(spelled).decode("latin-1")
    numbers = [int(one) for one in re.findall(r"\d{1,6}", " ".join(texts))]
    yield "".join(map(chr, numbers))
    bits = re.sub("[^01]", "", "".join(texts))
    yield "".join(chr(int(bits[at : at + 8], 2)) for at in range(0, len(bits) - 7, 8))
