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

    PARKING = "parking"
    """Says that the run is being written down, so that it can go on later; what its worker says meanwhile is held
    back."""

    KILLING = "killing"
    """Says that the broker has asked for the worker's death."""

    OVER = "over"
    """Says that the response can be made; nothing more is believed."""


class Event(StrEnum):
    """Names what moves a run on."""

    LEASED = "leased"
    KILL = "kill"
    PARK = "park"
    UNPARK = "unpark"
    END = "end"


TRANSITIONS: Final[dict[tuple[State, Event], State]] = {
    (State.SENT, Event.LEASED): State.RUNNING,
    (State.SENT, Event.KILL): State.KILLING,
    (State.SENT, Event.END): State.OVER,
    (State.RUNNING, Event.KILL): State.KILLING,
    (State.RUNNING, Event.END): State.OVER,
    (State.RUNNING, Event.PARK): State.PARKING,
    (State.PARKING, Event.UNPARK): State.RUNNING,
    (State.PARKING, Event.KILL): State.KILLING,
    (State.PARKING, Event.END): State.OVER,
    (State.KILLING, Event.END): State.OVER,
}


def advance(state: State, event: Event) -> State | None:
    """Gives the state after `event`, or None when the table has no such move: whoever caused it broke the
    protocol."""
    return TRANSITIONS.get((state, event))
