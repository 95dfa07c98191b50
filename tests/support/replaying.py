"""Records scripts, replays them in other processes, cuts recordings and goes on from there, and changes scripts."""

import asyncio
import json
import tempfile
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import mcp_types as types

from cellblock.app.broker import Broker
from cellblock.app.config.load import parse_settings
from cellblock.app.replay import differences
from cellblock.record.journal import Journal
from cellblock.record.recording import Recording
from cellblock.run.hook import pieces
from cellblock.run.plan import recorded_plan
from cellblock.run.policy.asking import Caller
from cellblock.run.response import RunResponse
from cellblock.script.imports import BLANK_BOUND_SECONDS, PARSE_BOUND_SECONDS, find_imports
from support.brokers import ready
from support.entries import entry, for_tests, forked_server
from support.replay_scripts import MAX_MS, Generated, Tools


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

    async def sample(self, params: types.CreateMessageRequestParams, key: str = "") -> types.ErrorData:
        """Has no model."""
        return types.ErrorData(code=types.METHOD_NOT_FOUND, message="no model")

    async def roots(self, key: str = "") -> types.ErrorData:
        """Has no roots."""
        return types.ErrorData(code=types.METHOD_NOT_FOUND, message="no roots")

    def progress(self, *_: object) -> None:
        """Is not told of any."""

    def logged(self, params: types.LoggingMessageNotificationParams) -> None:
        """Is not told of any."""


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
        assert recording.response is not None
        assert again.response is not None
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


@dataclass
class Tally:
    """What was found with some scripts."""

    scripts: int = 0
    events: int = 0
    calls: int = 0
    differing: int = 0
    cut: int = 0
    resumed_wrongly: int = 0
    made_again: int = 0
    mutants: int = 0
    undetected: int = 0
    said: str = ""

    @property
    def is_well(self) -> bool:
        """Whether nothing was wrong."""
        return not (self.differing or self.resumed_wrongly or self.made_again or self.undetected)

    def add(self, other: "Tally") -> None:
        """Counts another's, too."""
        for name in self.__dataclass_fields__:
            setattr(self, name, getattr(self, name) + getattr(other, name))


async def prove(place: World, number: int, *, all_of_it: bool = True) -> Tally:
    """Records one generated script, and tries what is promised of its recording: cut after every event, changed at
    every site; or a sample of that."""
    script, found = Generated(number), Tally(scripts=1)
    recording = await place.record(script.code)
    found.calls = len(recording.calls)
    whole = cuts(recording)
    found.events = len(whole)
    assert recording.ended == "finished", (number, recording.response)
    response, differing = await place.replay(recording)
    if differing:
        found.differing = 1
        found.said += f"script {number} is not replayed: {differing[:3]} {response.diagnostics}\n"
    for part in whole if all_of_it else whole[len(whole) // 2 :][:1]:
        found.add(await _resumed(place, number, part))
    made = sites(recording)
    for site in made if all_of_it else made[number % 3 :][:1]:
        found.mutants += 1
        response, _ = await place.replay(changed(recording, script.mutant(site)))
        if "REPLAY_DIVERGED" not in {diagnostic.code for diagnostic in response.diagnostics}:
            found.undetected += 1
            found.said += f"script {number}: a mutant at site {site} is not found: {response.diagnostics}\n"
    return found


async def _resumed(place: World, number: int, part: Recording) -> Tally:
    found = Tally(cut=1)
    keys = [json.loads(call.input)["key"] for call in part.calls if call.kind == "call"]
    before = {key: place.tools.ledger[key] for key in keys}
    resumed = await place.resume(part)
    again = [key for key in keys if place.tools.ledger[key] != before[key]]
    if again:
        found.made_again = 1
        found.said += f"script {number}: made again after {part.events!r}: {again}\n"
    codes = {entry["code"] for entry in (resumed.response or {}).get("diagnostics", [])}
    response, differing = await place.replay(resumed)
    if (
        resumed.ended != "finished"
        or not resumed.events.startswith(part.events)
        or differing
        or "REPLAY_DIVERGED" in codes
    ):
        found.resumed_wrongly = 1
        found.said += (
            f"script {number}: resumed after {part.events!r}: {resumed.ended} {codes} {differing[:3]} "
            f"{response.diagnostics}\n"
        )
    return found
