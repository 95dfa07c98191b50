"""Says what the executor needs of whoever writes runs down: to look at them later, and to go on with them."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Final, Protocol

from cellblock.execution.events import CallFacts, Watcher
from cellblock.execution.response import RunResponse
from cellblock.journal.journal import Journal
from cellblock.journal.parked import Parked
from cellblock.journal.recording import Recording
from cellblock.policy.asking import EarlierQuestions

if TYPE_CHECKING:
    # It has the journals' file and the keyring come in, which most runs do without.
    from cellblock.journal.at_work import OpenQuestion

REFUSED_FOR_NOW: Final = frozenset(("OVERLOADED", "WORKER_UNAVAILABLE"))
"""Names diagnostics of a run that was not started, and may be later."""


class KeptRun(Watcher, ABC):
    """Watches one run that may be written down.

    Attributes:
        run_id: Names the run, also over its parks; empty for a new run until it has begun.
        principal: Whom it is for.
        client: Whose place in the queue it has.
        journal: Records the run.
        park_seconds: How long the run waits for a person in its process; None for one that is never parked.
        park_asked_seconds: How long it waits for an answer to a server in its process, where its client is away; None
            for one that such a question never parks.
        park_tools_seconds: How long a tool may be at work before the run is parked; None: as long as it takes.
        is_durable: Whether the run is written down as it goes: it goes on when its worker or host is lost.
        is_waited_for: Whether its client waits for the response when it is parked for tools alone.
        turn: Counts how often the run was parked.
        earlier: What became of its questions before it was parked.
        earlier_cpu_ms: CPU time that its script has used before, as far as that is known; its replays do not count.
        used_ms: Wall time that it has used before, in its latest process here.
        resumed: Counts how often it has gone on in another process.
        adopted: Counts how often its broker was lost.
        losses: What its response says of each time that its process was lost, and its broker was not.
        is_left: Whether its end here is none: another process goes on with it.
        on_taken: Hears that a run of which `park` was not certain was parked, and that others have taken it since: no
            more of it may be done here.
    """

    run_id: str = ""
    principal: str
    client: str = ""
    journal: Journal
    park_seconds: float | None = None
    park_asked_seconds: float | None = None
    park_tools_seconds: float | None = None
    is_durable: bool = False
    is_waited_for: bool = False
    turn: int = 0
    earlier: EarlierQuestions | None = None
    earlier_cpu_ms: int = 0
    used_ms: int = 0
    resumed: int = 0
    adopted: int = 0
    losses: tuple[str, ...] = ()
    is_left: bool = False
    on_taken: Callable[[], None] | None = None

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
    async def park(self, recording: Recording, parked: Parked, turn: int) -> bool:
        """Writes the run down to go on later, and says whether that is certain; bounded."""

    @abstractmethod
    def hold(self, tasks: Sequence[asyncio.Task[None]]) -> None:
        """Takes over the calls of a run that was parked while tools are at work; it goes on when they have ended."""

    @abstractmethod
    def came(self, call_id: int, call: CallFacts, ok: bool, body: bytes) -> None:
        """Takes the answer of a call that goes on for a parked run, before its task ends."""

    def patience(self, *, client_leaves: bool) -> float | None:
        """Gives how long the run waits for a server's answer, or a login, in its process; None where that never parks
        it. With `client_leaves` its client comes back for it."""
        return self.park_asked_seconds if self.park_seconds is None and client_leaves else self.park_seconds

    def asks(self, question: OpenQuestion, *, is_written: bool) -> None:
        """Takes a question of the server of a call that goes on for a parked run; one that comes when the run is
        parked is not written yet."""

    async def sends(self, call_id: int) -> None:
        """Waits until the journal says that a call, which asks in rounds, goes on with its answers."""

    def asks_no_more(self, question: OpenQuestion) -> None:
        """Hears that a server's question needs no answer any more."""

    @abstractmethod
    def given_up(self) -> None:
        """Hears that the client of a run that was parked has gone: one that it waits for ends, with its calls."""

    @abstractmethod
    async def unpark(self) -> bool:
        """Takes a park back, as the run goes on where it is. Says whether nobody else has taken the run; bounded."""

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
