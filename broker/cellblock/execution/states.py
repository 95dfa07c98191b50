"""Describes the life of one run as one table."""

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
