"""Describes the life of one run, from its lease to its response, as one table.

The host has the script (`SENT`) and promises a worker by its first word of the run (`RUNNING`): its clock begins, and
calls are made. From there a run ends in one of two ways. Its worker ends by itself, or its host is lost (`END`). Or the
broker wants it to end (`KILL`): for a limit, a breach of the protocol, a client that has gone, or since the run waits
for people alone and is written down. What the worker says after that is as if it had never been, but for its logs, and
`END` comes when the host confirms it or breaks its word. There is no way back: a run that goes on, from its journal or
from where it was parked, is another run of this table. Why it ended, and what its response is, the table does not say.
"""

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


TRANSITIONS: Final[dict[tuple[State, Event], State]] = {
    (State.SENT, Event.LEASED): State.RUNNING,
    (State.SENT, Event.KILL): State.KILLING,
    (State.SENT, Event.END): State.OVER,
    (State.RUNNING, Event.KILL): State.KILLING,
    (State.RUNNING, Event.END): State.OVER,
    (State.KILLING, Event.END): State.OVER,
}


def advance(state: State, event: Event) -> State | None:
    """Gives the state after `event`, or None when the table has no such move: whoever caused it broke the
    protocol."""
    return TRANSITIONS.get((state, event))
