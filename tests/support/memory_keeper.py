"""Keeps runs in memory in place of the journals' file: a test says when a park is written, and whether it is."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from cellblock.execution.events import CallFacts
from cellblock.execution.keeping import KeptRun, RunKeeper
from cellblock.execution.response import RunResponse
from cellblock.journal.journal import Journal
from cellblock.journal.parked import Parked
from cellblock.journal.recording import Recording
from cellblock.policy.asking import EarlierQuestions, Verdict

NO_CALLS = "a run that parks for people alone has left a call with its tool"


@dataclass
class Park:
    """One run that is being parked, or is."""

    kept: MemoryKept
    packed: bytes
    parked: Parked
    written: asyncio.Future[bool]


class MemoryKept(KeptRun):
    """Parks as soon as all that its run waits for is people, and survives the loss of its host. `is_taken`: somebody
    has the parked run, and it cannot be had back."""

    is_taken = False

    def __init__(self, keeper: MemoryKeeper, journal: Journal) -> None:
        self.keeper, self.journal = keeper, journal
        self.principal, self.is_durable, self.park_seconds = "embedding", True, 0.0

    async def before_call(self, call_id: int) -> None:
        """Nothing needs to be written."""

    async def named(self, response: RunResponse) -> RunResponse:
        return response

    async def park(self, recording: Recording, parked: Parked, turn: int) -> bool:
        written = asyncio.get_running_loop().create_future()
        self.keeper.on_park(Park(self, recording.pack(), parked, written))
        return await written

    def hold(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        raise AssertionError(NO_CALLS)

    def came(self, call_id: int, call: CallFacts, ok: bool, body: bytes) -> None:
        raise AssertionError(NO_CALLS)

    def given_up(self) -> None:
        """Nobody waits for a run that is parked here."""

    async def unpark(self) -> bool:
        return not self.is_taken

    def goes_on(self, recording: Recording) -> None:
        self.journal = Journal.resuming(recording)

    def begins_anew(self) -> None:
        raise AssertionError("a durable run goes on from where it was")

    def parked(self) -> None:
        """Nobody bounds it here."""


class MemoryKeeper(RunKeeper):
    """Keeps what asks for it.

    Args:
        on_park: Hears of each run that is to be written down; what it does with `written` is the disk's answer.
    """

    def __init__(self, on_park: Callable[[Park], None]) -> None:
        self.on_park = on_park

    def opened(self, principal: str, *, client: str, may_park: bool, durable: bool) -> KeptRun | None:
        return MemoryKept(self, Journal.recording()) if durable else None

    def is_off(self, principal: str) -> bool:
        return True

    def woken(self, park: Park, verdicts: Mapping[int, Verdict]) -> MemoryKept:
        """Gives a parked run with its answers, as another broker would take it."""
        kept = MemoryKept(self, Journal.resuming(Recording.unpack(park.packed)))
        kept.run_id, kept.turn, kept.resumed = park.kept.run_id, park.kept.turn + 1, park.kept.resumed + 1
        kept.earlier = EarlierQuestions(asked=park.parked.asked, verdicts=verdicts)
        return kept
