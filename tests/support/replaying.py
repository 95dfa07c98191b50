"""Records scripts, replays them in other processes, cuts recordings and goes on from there, and changes scripts.

The scripts are made of a number: calls in a row, beside each other, raced and in loops; timers, randomness, dates,
errors, nested promises; and the tools that they call, one of a server that asks its user meanwhile.
"""

import asyncio
import json
import random
import re
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import mcp_types as types

from cellblock import tool
from cellblock.app.broker import Broker
from cellblock.app.config.load import parse_settings
from cellblock.app.replay import differences
from cellblock.record.journal import Journal
from cellblock.record.recording import Recording
from cellblock.run.plan import recorded_plan
from cellblock.run.policy.asking import Caller
from cellblock.run.response import RunResponse
from cellblock.script.imports import BLANK_BOUND_SECONDS, PARSE_BOUND_SECONDS, find_imports
from support.brokers import ready
from support.entries import entry, for_tests, forked_server

PRELUDE: Final = """import { answer, refuse } from "@codemode/servers/local";
import { input } from "@codemode/servers/asking";
import { CodemodeError } from "@codemode/errors";
import { listServers, listTools } from "@codemode/discovery";
const out = [];
let made = 0;
const note = (...values) => { out.push(values); };
const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms));
const ask = (site, ms, more = null) => answer({ key: `RUN/${++made}`, site, ms, more });
const consult = (site) => input({ key: `RUN/${++made}`, site });
const bad = (site, ms) => refuse({ key: `RUN/${++made}`, site, ms });
"""

MAX_MS: Final = 6
"""Sets the longest delay of a tool and of a timer: they are to overtake each other."""

CONSULTED: Final = 0.15
"""Sets how many of the calls are of the server that asks."""


class Tools:
    """Has the tools, and the ledger of what they were asked: how often, by key.

    Args:
        answers: The ledger of the server that asks.
    """

    def __init__(self, answers: Path) -> None:
        self._ledger: Counter[str] = Counter()
        self._answers, self._read = answers, 0

    @property
    def ledger(self) -> Counter[str]:
        """How often each key was asked by now."""
        if self._answers.exists():
            with self._answers.open("rb") as file:
                file.seek(self._read)
                for line in file.read().splitlines():
                    event = json.loads(line)
                    # A call that asks in rounds comes twice.
                    self._ledger[event["arguments"]["key"]] += event["event"] == "answer"
                self._read = file.tell()
        return self._ledger

    def functions(self) -> list[Any]:
        """The tools. What `answer` gives is a function of its input and of how often that key was asked."""
        ledger = self._ledger

        @tool()
        async def answer(key: str, site: int, ms: int, more: Any = None) -> dict[str, Any]:
            ledger[key] += 1
            count = ledger[key]
            await asyncio.sleep(ms / 1000)
            return {"key": key, "count": count, "more": more}

        @tool()
        async def refuse(key: str, site: int, ms: int) -> str:
            ledger[key] += 1
            await asyncio.sleep(ms / 1000)
            raise ValueError(f"refused {key} at {site}")

        return [answer, refuse]


class Generated:
    """A script, and the sites of its calls, each a number in its text as `/*N*/N`."""

    def __init__(self, number: int) -> None:
        self._random = random.Random(number)
        self.name = f"s{number}"
        self._sites = 0
        lines = [self._statement(0) for _ in range(self._random.randint(3, 8))]
        lines.append(self._end())
        self.code = PRELUDE.replace("RUN", self.name) + "\n".join(lines) + "\n"

    def mutant(self, site: int) -> str:
        """The script with another input in the call of a site."""
        return self.code.replace(f"/*{site}*/{site}", f"/*{site}*/{site + 1000}")

    def _ms(self) -> int:
        return self._random.randint(0, MAX_MS)

    def _site(self) -> str:
        self._sites += 1
        return f"/*{self._sites}*/{self._sites}"

    def _call(self) -> str:
        more = self._random.choice(
            [
                "",
                "",
                ", Math.random()",
                ", crypto.randomUUID()",
                ", Date.now()",
                ", new Date()",
                ", out.length",
            ]
        )
        if self._random.random() < CONSULTED:
            return f"consult({self._site()})"
        return f"ask({self._site()}, {self._ms()}{more})"

    def _maybe(self) -> str:
        return f"bad({self._site()}, {self._ms()})" if self._random.random() < 0.3 else self._call()

    def _promise(self) -> str:
        makers = [
            lambda: f'sleep({self._ms()}).then(() => "slept")',
            lambda: (
                f"{self._call()}.then((first) => {self._call()}.then((second) => [first.key, second.key]))"
            ),
            lambda: f"{self._call()}.finally(() => note('finally', Math.random()))",
            lambda: (
                f"(async () => {{ await null; await sleep({self._ms()}); return await {self._call()}; }})()"
            ),
            self._call,
        ]
        return self._random.choice(makers)()

    def _promises(self) -> str:
        return ", ".join(self._promise() for _ in range(self._random.randint(2, 4)))

    def _statement(self, depth: int) -> str:
        makers = [
            lambda: f"note(await {self._call()});",
            lambda: (
                f"note(await Promise.all([{self._promises()}].map(async (one, index) => "
                "{ const value = await one; note(index, value, Date.now()); return value; })));"
            ),
            lambda: f"note('race', await Promise.race([{self._promises()}]));",
            lambda: (
                f"note('any', await Promise.any([{self._maybe()}, {self._promise()}]).catch((e) => e.name));"
            ),
            lambda: (
                f"note((await Promise.allSettled([{self._maybe()}, {self._maybe()}]))"
                ".map((one) => one.value ?? one.reason.message));"
            ),
            lambda: (
                f"try {{ note(await {self._maybe()}); }} catch (error) "
                "{ note(error instanceof CodemodeError, error.name, error.message); }"
            ),
            lambda: (
                f"setTimeout(() => note('timer', new Date().toISOString()), {self._ms()}); "
                f"clearTimeout(setTimeout(() => note('never'), {self._ms()}));"
            ),
            lambda: (
                "note(Math.random(), crypto.randomUUID(), [...crypto.getRandomValues(new Uint8Array(3))]);"
            ),
            lambda: (
                "note(Date(), performance.now(), Temporal.Now.instant().epochMilliseconds, "
                "new Intl.DateTimeFormat('en', { timeStyle: 'medium' }).format());"
            ),
            lambda: (
                "{ const start = Date.now(); let turns = 0; while (Date.now() < start + 2) turns++; note(turns); }"
            ),
            lambda: "note((await import(`@codemode/servers/${'local'}`)).answer.length);",
            lambda: f"void {self._call()}.then((value) => note('late', value), () => note('lost'));",
            lambda: (
                "note((await Promise.all([listServers(), listTools('local')])).map((list) => list.length));"
            ),
            lambda: "console.log('so far', out.length, new Date());",
            lambda: (
                f"for await (const value of (async function* () {{ yield {self._call()}; await sleep(1); "
                f"yield {self._call()}; }})()) note('yielded', value);"
            ),
            lambda: "queueMicrotask(() => note('microtask', out.length));",
            lambda: (
                "note(new WeakRef(out).deref() === out, await new Promise((r) => setTimeout(r, 1, 'argument')));"
            ),
        ]
        if depth < 2:
            makers += [
                lambda: self._loop(depth),
                lambda: (
                    f"if (Math.random() < 0.5) {{ {self._statement(depth + 1)} }} "
                    f"else {{ {self._statement(depth + 1)} }}"
                ),
            ]
        return self._random.choice(makers)()

    def _loop(self, depth: int) -> str:
        body, turns = self._statement(depth + 1), self._random.randint(1, 3)
        return f"for (let turn = 0; turn < {turns}; turn++) {{ {body} await sleep({self._ms()}); }}"

    def _end(self) -> str:
        result = "globalThis.__codemode_result__ = out;"
        makers = [
            lambda: f"{result} throw new Error(`at the end ${{out.length}}`);",
            lambda: f"{result} void bad({self._site()}, 0).then(note); await sleep({MAX_MS + 2});",
            lambda: (
                f"{result} setTimeout(() => {{ throw new TypeError('in a timer'); }}, 1); await sleep(20);"
            ),
            lambda: "export default async () => { await sleep(1); return out; };",
            *[lambda: result] * 6,
        ]
        return self._random.choice(makers)()


class User:
    """Answers what servers ask: differently each time. Implements `upstream.requester.Requester`."""

    wants_progress = False

    def __init__(self) -> None:
        self.answers = 0

    async def elicit(self, params: types.ElicitRequestParams, key: str = "") -> types.ElicitResult:
        """Answers after a while."""
        self.answers += 1
        said = self.answers
        await asyncio.sleep(said % MAX_MS / 1000)
        return types.ElicitResult(action="accept", content={"name": f"answer {said}"})

    async def sample(self, *_: object) -> types.ErrorData:
        """Has no model, and no roots."""
        return types.ErrorData(code=types.METHOD_NOT_FOUND, message="it has none")

    roots = sample

    def progress(self, *_: object) -> None:
        """Is not told of any, nor of log messages."""

    logged = progress


@dataclass
class World:
    """A broker whose tools are counted, and one that has none."""

    tools: Tools
    live: Broker
    offline: Broker
    user: User

    async def record(self, code: str) -> Recording:
        """Runs a script, and gives its recording as another process would read it."""
        journal = Journal()
        await self.live.run_request({"code": code}, Caller(requester=self.user), journal=journal)
        return Recording.unpack(journal.snapshot().pack())

    async def replay(self, recording: Recording) -> tuple[RunResponse, list[dict[str, Any]]]:
        """Replays a recording; gives the response, and where it is not the recorded one."""
        journal = Journal(recording, offline=True)
        response = await self.offline.run_request(journal.request, journal=journal)
        again = journal.snapshot()
        assert recording.response and again.response
        found = differences(recording.response, again.response)
        asked = [(call.id, call.server, call.tool, call.digest) for call, _ in journal.trace]
        was = [(call.id, call.server, call.tool, call.digest) for call in recording.calls]
        return response, found if asked == was else [
            *found,
            {"path": "/calls", "recorded": was, "replayed": asked},
        ]

    async def resume(self, recording: Recording) -> Recording:
        """Goes on from the end of a recording, with the tools; gives the whole."""
        journal = Journal(recording)
        await self.live.run_request(journal.request, Caller(requester=self.user), journal=journal)
        return Recording.unpack(journal.snapshot().pack())


@asynccontextmanager
async def world() -> AsyncIterator[World]:
    """Both brokers, for a while."""
    section = for_tests({"typecheck": "off", "pool": {"capacity": 8}})
    with tempfile.TemporaryDirectory() as folder:
        answers = Path(folder) / "answers.jsonl"
        command = forked_server("asking_server.py", "stdio", "--ledger", answers)
        settings = parse_settings({"mcpServers": {"asking": entry(command)}, "cellblock": section})
        tools, none = Tools(answers), parse_settings({"cellblock": section})
        async with ready(settings, tools=tools.functions()) as live, Broker(none) as offline:
            yield World(tools, live, offline, User())


def pieces(text: str) -> list[str]:
    """Events, each a text of its own."""
    return re.findall(r"[a-z][^a-z]*", text)


def cuts(recording: Recording) -> list[Recording]:
    """The recording as it was after each event: what had no answer by then is not in it."""
    events = pieces(recording.events)
    found: list[Recording] = []
    for at in range(len(events)):
        seen = events[: at + 1]
        answered = {int(one[1:]) for one in seen if one.startswith("a")}
        calls = [call for call in recording.calls if call.id in answered]
        found.append(replace(recording, events="".join(seen), calls=calls, response=None, ended=None, logs=0))
    return found


def changed(recording: Recording, code: str) -> Recording:
    """The recording, as if it were of another script."""
    journal = Journal(recording, offline=True, other_script=code)
    imports = find_imports(code.encode(), PARSE_BOUND_SECONDS, BLANK_BOUND_SECONDS)
    body = recorded_plan(journal, code, imports).body
    return replace(recording, request={**recording.request, "code": code}, body=body)


def sites(recording: Recording) -> list[int]:
    """The sites whose calls were made."""
    return sorted({json.loads(call.input)["site"] for call in recording.calls if call.kind == "call"})


class Tally(Counter[str]):
    """What was found with some scripts: counts, and what is wrong, in words."""

    def __init__(self, **counts: int) -> None:
        super().__init__(counts)
        self.said = ""

    def add(self, other: "Tally") -> None:
        """Counts another's, too."""
        self.update(other)
        self.said += other.said

    def find(self, what: str, said: str) -> None:
        """Counts something that is wrong."""
        self[what] += 1
        self.said += f"{said}\n"


async def prove(place: World, number: int, *, all_of_it: bool = True) -> Tally:
    """Records one generated script, and tries what is promised of its recording: cut after every event, changed at
    every site; or a sample of that."""
    script, found = Generated(number), Tally(scripts=1)
    recording = await place.record(script.code)
    found["calls"] = len(recording.calls)
    whole = cuts(recording)
    found["events"] = len(whole)
    assert recording.ended == "finished", (number, recording.response)
    response, differing = await place.replay(recording)
    if differing:
        found.find("differing", f"script {number} is not replayed: {differing[:3]} {response.diagnostics}")
    for part in whole if all_of_it else whole[len(whole) // 2 :][:1]:
        found.add(await _resumed(place, number, part))
    made = sites(recording)
    for site in made if all_of_it else made[number % 3 :][:1]:
        found["mutants"] += 1
        response, _ = await place.replay(changed(recording, script.mutant(site)))
        if "REPLAY_DIVERGED" not in {diagnostic.code for diagnostic in response.diagnostics}:
            said = f"script {number}: a mutant at site {site} is not found: {response.diagnostics}"
            found.find("undetected", said)
    return found


async def _resumed(place: World, number: int, part: Recording) -> Tally:
    found = Tally(cut=1)
    keys = [json.loads(call.input)["key"] for call in part.calls if call.kind == "call"]
    before = {key: place.tools.ledger[key] for key in keys}
    resumed = await place.resume(part)
    again = [key for key in keys if place.tools.ledger[key] != before[key]]
    if again:
        found.find("made_again", f"script {number}: made again after {part.events!r}: {again}")
    codes = {entry["code"] for entry in (resumed.response or {}).get("diagnostics", [])}
    response, differing = await place.replay(resumed)
    if (
        resumed.ended != "finished"
        or not resumed.events.startswith(part.events)
        or differing
        or "REPLAY_DIVERGED" in codes
    ):
        found.find(
            "resumed_wrongly",
            f"script {number}: resumed after {part.events!r}: {resumed.ended} {codes} {differing[:3]} "
            f"{response.diagnostics}",
        )
    return found
