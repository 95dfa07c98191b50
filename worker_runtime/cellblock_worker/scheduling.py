"""Sets how a worker shares the machine's cores with others: its priority, and the cores it may use.

Covers who goes first among runs, for the light ones' sake. Not a cap: what a run may take is `run_limits`'s, and a
worker that has broken out can undo some of it. What the machine refuses is left out.
"""

from __future__ import annotations

import contextlib
import os
from typing import Final

from cellblock_worker.base import lifetime

LONG_RUN_NICE: Final = 5
"""Adds to the host's nice value for a run that has computed for long: a third of a short run's share of a busy core.
With less it would starve beside other programs of the machine."""

GIVE_WAY_NICE: Final = 10
"""Adds to the host's nice value for a run whose client gives way to others: a tenth of a short run's share of a busy
core."""


class Priority:
    """Schedules one booted worker.

    Args:
        pid: Its process id. The first thread is where V8 runs scripts.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._nice = 0
        self._leaves_a_core = False

    @property
    def is_lowered(self) -> bool:
        """Says whether the run lets others go first: this process's priority cannot be raised again."""
        return self._nice > 0 or self._leaves_a_core

    def long_run(self) -> None:
        """Lets short runs go before this one, which has computed for long."""
        self._lower(LONG_RUN_NICE)

    def give_way(self, others: bool) -> None:
        """Lets other runs go first, if there are any now. When there are none, the core is given back, the priority
        not."""
        if others:
            self._lower(GIVE_WAY_NICE)
        self._leave_a_core(others)

    def _lower(self, nice: int) -> None:
        # Only root could raise it again.
        if nice <= self._nice:
            return
        more, self._nice = nice - self._nice, nice
        with contextlib.suppress(OSError):
            os.setpriority(
                os.PRIO_PROCESS, self._pid, min(os.getpriority(os.PRIO_PROCESS, self._pid) + more, 19)
            )
        # Where sessions are scheduled as groups (sched(7), autogroup), the group's nice value counts, not the thread's.
        with (
            contextlib.suppress(OSError),
            open(f"/proc/{self._pid}/autogroup", "wb", buffering=0) as file,  # noqa: PTH123
        ):
            file.write(str(nice).encode())

    def _leave_a_core(self, leave: bool) -> None:
        if leave == self._leaves_a_core or not lifetime.LINUX:
            return
        self._leaves_a_core = leave
        cores = os.sched_getaffinity(0)
        if leave and len(cores) > 1:
            # The same for all.
            cores.discard(min(cores))
        # Each thread has its own; those to come take after the one that makes them.
        with contextlib.suppress(OSError):
            for thread in os.listdir(f"/proc/{self._pid}/task"):  # noqa: PTH208
                with contextlib.suppress(OSError):
                    os.sched_setaffinity(int(thread), cores)
