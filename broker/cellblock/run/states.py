"""The state machine of one run, as pure data; `run` tells its theory."""

from __future__ import annotations

from enum import StrEnum
from typing import Final


class State(StrEnum):
    """Says where a run is between its lease and its response."""

    SENT = "sent"
    """Says that the host has the script, and that no worker has been promised yet."""

    RUNNING = "running"
    """Says that a worker has the script, and that the clock runs."""

    KILLING = "killing"
    """Says that the broker has asked for the worker's death."""

    OVER = "over"
    """Says that the response can be made; nothing more is believed."""


class Event(StrEnum):
    """Names what moves a run on."""

    LEASED = "leased"
    KILL = "kill"
    END = "end"


class Cause(StrEnum):
    """Says why the broker ends a run."""

    STOPPED = "stopped"
    """Says that its script did what it may not: a limit, or a breach of the protocol."""

    ABORTED = "aborted"
    """Says that its client has gone."""

    LEFT = "left"
    """Says that another broker goes on with it."""

    PARKED = "parked"
    """Says that it waits for people alone, and is written down to go on later."""


TRANSITIONS: Final[dict[tuple[State, Event], State]] = {
    (State.SENT, Event.LEASED): State.RUNNING,
    (State.SENT, Event.KILL): State.KILLING,
    (State.SENT, Event.END): State.OVER,
    (State.RUNNING, Event.KILL): State.KILLING,
    (State.RUNNING, Event.END): State.OVER,
    (State.KILLING, Event.END): State.OVER,
}


class Life:
    """Holds where one run is, and why the broker ends it, if it does.

    Attributes:
        state: As the table has it.
        cause: Why the broker ends it; None while it does not.
        had_worker: Whether a worker is known to have been given the script.
    """

    def __init__(self) -> None:
        self.state = State.SENT
        self.cause: Cause | None = None
        self.had_worker = False

    @property
    def is_running(self) -> bool:
        return self.state is State.RUNNING

    @property
    def is_over(self) -> bool:
        return self.state is State.OVER

    def move(self, event: Event) -> bool:
        """Takes an event; says whether the table has such a move: whoever caused another one broke the protocol."""
        after = TRANSITIONS.get((self.state, event))
        if after is None:
            return False
        self.state = after
        self.had_worker = self.had_worker or event is Event.LEASED
        return True

    def kill(self, cause: Cause) -> bool:
        """Ends the run for a cause; says whether it was not ending already."""
        if not self.move(Event.KILL):
            return False
        self.cause = cause
        return True

    def abort(self) -> bool:
        """Hears that nobody waits for the run, whatever state it is in: one that was parked is not any more. Says
        whether it had been."""
        was_parked = self.cause is Cause.PARKED
        if self.cause is None or was_parked:
            self.cause = Cause.ABORTED
        return was_parked
