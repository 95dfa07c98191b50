"""The life of one worker, as a table: its states, what moves it on, and what it may say in each; and whether it may
have another run of the same key.

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

A process has several runs only where the host is told so. Then each of them has a V8 context of its own, and the
process goes back to its host only when all that the run was allowed is as it was: its limits, its priority, and about
its memory. A `Bond` keeps what its first run has bound it to.

States and events are texts, whose hash the interpreter keeps: that of another enumeration is a call each time.
"""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final

from cellblock_worker.wire import protocol
from cellblock_worker.worker.usage import Usage


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


RETURN_CPU_SECONDS: Final = 0.02
"""Bounds the CPU time from a run's outcome to `Ready`; making the next context takes 1 to 2 ms. What the run has left,
such as a chain of promises without end, keeps the process from saying it. Not the time: on a busy machine it waits for
a core."""

CONTEXT_SECONDS: Final = 0.002
"""Is what a process is likely to need from an outcome to `Ready`."""

RETURN_POLL_SECONDS: Final = 0.005
"""Sets the pause between two looks at a process on its way from an outcome to `Ready`."""

RETURN_POLLS: Final = 200
"""Bounds the looks at a process on its way to `Ready`, to a second: one that neither computes nor says `ready` is of
no use."""

GROWTH_BYTES: Final = 128 * 1024 * 1024
"""Caps how much more data a process may have than before its first run: V8 lets dead contexts lie, of 200 short runs 94
MiB (`confinement.CONTEXTS_OLD_SPACE_MB`)."""

CPU_SECONDS: Final = 20.0
"""Caps the CPU time of all runs of a process, beside that of the one that it has: RLIMIT_CPU can only be lowered, so
the kernel's backstop is set once."""

MAX_RUNS: Final = 150
"""Caps the runs of one process, whose private memory grows from 14 to some 58 MiB by then: V8 leaves memory of short
runs behind."""

MAX_AGE_SECONDS: Final = 3600.0
"""Caps the time from a process's first run to its last."""

IDLE_SECONDS: Final = 300.0
"""Bounds how long a process waits for another run."""


@dataclass(slots=True)
class Bond:
    """Binds a process to the key of its first run, and to that run's limits as the most of later ones.

    Attributes:
        served: Runs that it has had, and whose end is told.
        seconds: The mean of how long a run took of late, from its lease to the next context; None before the first.
        is_over: Whether the process ends with the run that it has.
    """

    first: protocol.Run
    usage: Usage
    since: float = field(default_factory=time.monotonic)
    served: int = 0
    seconds: float | None = None
    is_over: bool = False

    def fits(self, run: protocol.Run) -> bool:
        """Says whether the process may have this run: of its key, and within limits that can still be put on it."""
        return (
            run.key == self.first.key
            and run.memory_bytes <= self.first.memory_bytes
            and run.cpu_ms <= self.first.cpu_ms
        )

    def lasts(self) -> bool:
        """Says whether the process may have one more run after the one that ends now."""
        is_young = self.served + 1 < MAX_RUNS and time.monotonic() - self.since < MAX_AGE_SECONDS
        return is_young and not self.is_over

    def took(self, seconds: float) -> None:
        """Counts the time of a run into the mean, of which it is a quarter."""
        self.seconds = seconds if self.seconds is None else self.seconds + (seconds - self.seconds) / 4

    def within(self, usage: Usage) -> bool:
        """Says whether the process, without a run, is about as it was before its first one."""
        return (
            usage.data_bytes - self.usage.data_bytes <= GROWTH_BYTES
            and usage.cpu_seconds - self.usage.cpu_seconds <= CPU_SECONDS
        )
