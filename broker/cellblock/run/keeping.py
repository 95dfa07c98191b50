"""Says what the executor needs of whoever writes runs down: to look at them later, and to go on with them."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Awaitable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from cellblock.record.journal import Journal
from cellblock.record.parked import Parked
from cellblock.record.recording import Recording
from cellblock.run.events import CallFacts, Watcher
from cellblock.run.policy.asking import EarlierQuestions
from cellblock.run.response import RunResponse

if TYPE_CHECKING:
    from cellblock.run.questions import OpenQuestion

REFUSED_FOR_NOW: Final = frozenset(("OVERLOADED", "WORKER_UNAVAILABLE"))
"""Names diagnostics of a run that was not started, and may be later."""


class KeptRun(Watcher, ABC):
    """Watches one run that may be written down.

    Attributes:
        run_id: Names the run, also over its parks; empty for a new run until it has begun.
        principal: Whom it is for.
        client: Whose place in the queue it has.
        journal: Records the run.
        parks: Whether the run is parked where it waits for a person who cannot be asked now.
        is_durable: Whether the run is written down as it goes: it goes on when its worker or host is lost.
        turn: Counts how often the run was parked.
        earlier: What became of its questions before it was parked.
        earlier_cpu_ms: CPU time that its script has used before, as far as that is known; its replays do not count.
        used_ms: Wall time that it has used before, in its latest process here.
        resumed: Counts how often it has gone on in another process.
        adopted: Counts how often its broker was lost.
        losses: What its response says of each time that its process was lost, and its broker was not.
        is_left: Whether its end here is none: another process goes on with it.
    """

    run_id: str = ""
    principal: str
    client: str = ""
    journal: Journal
    parks: bool = False
    is_durable: bool = False
    turn: int = 0
    earlier: EarlierQuestions | None = None
    earlier_cpu_ms: int = 0
    used_ms: int = 0
    resumed: int = 0
    adopted: int = 0
    losses: tuple[str, ...] = ()
    is_left: bool = False

    @abstractmethod
    async def before_call(self, call_id: int) -> None:
        """Waits until the journal says that a call is made, where whoever goes on with the run must know; bounded.

        Raises:
            ToolCallError: That is not certain, so the call is not made.
        """

    @abstractmethod
    async def named(self, response: RunResponse) -> RunResponse:
        """Gives the response, with the id of the run where it is certain that it is kept. Called when all watchers have
        been told of the end; bounded."""

    @abstractmethod
    async def sends(self, call_id: int) -> None:
        """Waits until the journal says that a call, which asks in rounds, goes on with its answers, as
        `before_call`."""

    @abstractmethod
    def park(
        self,
        recording: Recording,
        parked: Parked,
        calls: Sequence[asyncio.Task[None]],
        asked: Sequence[OpenQuestion],
    ) -> Awaitable[bool]:
        """Writes the run down to go on later, and gives what says whether that is certain; bounded. Where it is not,
        nobody goes on with the run.

        Args:
            recording: The run so far.
            parked: What it waits for.
            calls: The tasks of calls whose servers wait in their sessions: the run goes on when they have ended.
            asked: What those ask.
        """

    @abstractmethod
    def take_back(self, outcome: str) -> None:
        """Ends a run that was parked a moment ago: its client has gone."""

    @abstractmethod
    def came(self, call_id: int, call: CallFacts, ok: bool, body: bytes) -> None:
        """Takes the answer of a call that goes on for a parked run, before its task ends."""

    @abstractmethod
    def asks(self, question: OpenQuestion) -> None:
        """Takes a question of the server of such a call."""

    @abstractmethod
    def asks_no_more(self, question: OpenQuestion) -> None:
        """Hears that such a question needs no answer any more."""

    @abstractmethod
    def goes_on(self, recording: Recording) -> None:
        """Hears that the run goes on from a recording of itself, here: its process was lost."""

    @abstractmethod
    def parked(self) -> None:
        """Hears that the process of a run that is parked has ended; what it has used is known now."""


class RunKeeper(Protocol):
    """Writes runs down; `durable.keeper.Keeper` does."""

    def opened(self, principal: str, *, client: str, may_park: bool, durable: bool) -> KeptRun | None:
        """Gives what watches a new run of a client; None where it is not to be written down.

        Args:
            principal: Whom the run is for.
            client: Whose place in the queue it has.
            may_park: Whether it may wait for a person.
            durable: Whether its request wants it to survive the loss of its process.
        """
        ...
