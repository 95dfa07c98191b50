"""Decides whether a process may have another run of the same key, and keeps what its first one has bound it to.

Off unless the host is told so. Then each such run has a V8 context of its own, and the process goes back to its
host only when all that the run was allowed is as it was: its limits, its priority, and about its memory.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from cellblock_worker.wire import protocol
from cellblock_worker.worker.usage import Usage

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


MAX_RUNS: Final = 200
"""Caps the runs of one process, which grows to some 140 MiB by then: V8 leaves memory of short runs behind."""

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
    since: float
    served: int = 0
    seconds: float | None = None
    is_over: bool = False

    @classmethod
    def begin(cls, run: protocol.Run, usage: Usage) -> Bond:
        """Binds a process that gets its first run now."""
        return cls(run, usage, time.monotonic())

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
