"""The life of one worker is one table: its states, what moves it on, and what it may say in each.

States and events are texts, whose hash the interpreter keeps: that of another enumeration is a call each time.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Final

from cellblock_worker.wire import protocol


class State(StrEnum):
    """A worker is in one of these states of its one-way life; one that is reused is warm and running again."""

    BOOTING = "booting"
    WARM = "warm"
    RUNNING = "running"
    RETURNING = "returning"
    ENDING = "ending"
    GONE = "gone"


class Event(StrEnum):
    """An event moves a worker on."""

    READY = "ready"
    LEASE = "lease"
    SETTLE = "settle"
    KILL = "kill"
    EXIT = "exit"


TRANSITIONS: Final[dict[tuple[State, Event], State]] = {
    (State.BOOTING, Event.READY): State.WARM,
    (State.BOOTING, Event.KILL): State.ENDING,
    (State.BOOTING, Event.EXIT): State.GONE,
    (State.WARM, Event.LEASE): State.RUNNING,
    (State.WARM, Event.KILL): State.ENDING,
    (State.WARM, Event.EXIT): State.GONE,
    (State.RUNNING, Event.SETTLE): State.RETURNING,
    (State.RUNNING, Event.KILL): State.ENDING,
    (State.RUNNING, Event.EXIT): State.GONE,
    (State.RETURNING, Event.READY): State.WARM,
    (State.RETURNING, Event.KILL): State.ENDING,
    (State.RETURNING, Event.EXIT): State.GONE,
    (State.ENDING, Event.EXIT): State.GONE,
}

MAY_SAY: Final[dict[State, tuple[type[protocol.Message], ...]]] = {
    State.BOOTING: (protocol.Ready,),
    State.WARM: (),
    State.RUNNING: (
        protocol.Log,
        protocol.Call,
        protocol.Query,
        protocol.Took,
        protocol.Notice,
        protocol.Noted,
        protocol.Live,
        protocol.Done,
        protocol.Failed,
    ),
    State.RETURNING: (protocol.Ready,),
    # What was in the pipe when the worker was killed: only its logs are still of use.
    State.ENDING: (protocol.Log,),
    State.GONE: (),
}


class IllegalTransition(RuntimeError):
    """Tells that the host asked for a move that the table does not have: a defect of the host, never of a worker."""


def advance(state: State, event: Event) -> State:
    """Returns the state after `event`. Raises IllegalTransition when the table has no such move."""
    try:
        return TRANSITIONS[state, event]
    except KeyError:
        raise IllegalTransition(f"{event.name} in {state.name}") from None
