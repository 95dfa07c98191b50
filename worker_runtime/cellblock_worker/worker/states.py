"""The life of one worker, as a table: its states, what moves it on, and what it may say in each. No I/O, no clock.

A worker is one process. Its life goes one way, from its boot to its exit, but for one loop: a process that may have
several runs of one key goes round it once for each::

    BOOTING --READY--> WARM --LEASE--> RUNNING --SETTLE--> RETURNING --READY--> WARM
    each of these --KILL--> ENDING --EXIT--> GONE, and each --EXIT--> GONE

* BOOTING: it is spawned, and has yet to say `Ready`.
* WARM: it waits for a run, with no code of a script that has anything to do: what it says now, it should not.
* RUNNING: it has a run, whose limits are on it and whose clock counts. It may say what a script can.
* RETURNING: its script has settled, the run's end is told, and it makes the context of the next one, within a bound.
* ENDING: it is sent SIGKILL, or will be in a moment: its script has settled, and it may have no other run. Only logs
  that were in the pipe are still of use.
* GONE: it is reaped, and its pipes are read to their end.

What follows from the table, and is kept by `worker`:

* A lease has one end, told when RUNNING is left: with the script's outcome by SETTLE, or by KILL where the process has
  no other run; with the reason of a kill, or of its own death, by EXIT, or when that is overdue.
* The first reason counts: KILL in ENDING is no move, so what comes after a settled script or a cap changes nothing.
* What is said where it may not be said breaks the protocol, and ends the worker; in ENDING it is judged already.

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
