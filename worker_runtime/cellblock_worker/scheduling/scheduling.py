"""Sets how a worker shares the machine's cores with others: its priority, and the cores it may use.

Covers who goes first among runs, for the light ones' sake. Not a cap: what a run may take is `use_watch`'s, and a
worker that has broken out can undo some of it. What the machine refuses is left out.
"""

from __future__ import annotations

import contextlib
import logging
import os
from collections.abc import Callable
from typing import Final, Protocol

from cellblock_worker.base import lifetime
from cellblock_worker.scheduling import realtime

logger = logging.getLogger("cellblock.host")

LONG_RUN_NICE: Final = 5
"""Adds to the host's nice value for a run that has computed for long: a third of a short run's share of a busy core.
With less it would starve beside other programs of the machine."""

GIVE_WAY_NICE: Final = 10
"""Adds to the host's nice value for a run whose client gives way to others: a tenth of a short run's share of a busy
core."""

GO_FIRST_SECONDS: Final = 0.01
"""Bounds how long a light client's run goes before everything else, where that is asked for: most are over in 3 ms."""


class Scheduling:
    """Schedules one booted worker.

    Args:
        pid: Its process id. The first thread is where V8 runs scripts.

    Attributes:
        first: Whether its run goes before everything else now.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._nice = 0
        self._leaves_a_core = False
        self.first = False

    @property
    def is_lowered(self) -> bool:
        """Says whether the run lets others go first: this process's priority cannot be raised again."""
        return self._nice > 0 or self._leaves_a_core

    def go_first(self) -> None:
        """Lets the run go before everything else, for `GO_FIRST_SECONDS`, which the caller counts."""
        self.first = True
        self._set_realtime(realtime.RUN_PRIORITY)

    def take_turns(self) -> None:
        """Has the run take turns with everything else from here on."""
        if self.first:
            self.first = False
            self._set_realtime(0)

    def long_run(self) -> None:
        """Lets short runs go before this one, which has computed for long."""
        self._lower(LONG_RUN_NICE)

    def give_way(self, others: bool) -> None:
        """Lets other runs go first, if there are any now. When there are none, the core is given back, the priority
        not."""
        if others:
            self._lower(GIVE_WAY_NICE)
        self._leave_a_core(others)

    def _set_realtime(self, priority: int) -> None:
        self._on_threads(lambda thread: realtime.set_priority(thread, priority))

    def _on_threads(self, act: Callable[[int], None]) -> None:
        """Acts on each thread of the worker, as far as the machine lets it."""
        with contextlib.suppress(OSError):
            for thread in realtime.threads_of(self._pid):
                with contextlib.suppress(OSError):
                    act(thread)

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
        self._on_threads(lambda thread: os.sched_setaffinity(thread, cores))


class Placed(Protocol):
    """Stands for what can have the first place: a worker."""

    @property
    def goes_first(self) -> bool:
        """Says whether the worker's run goes before everything else now."""
        ...

    def take_turns(self) -> None:
        """Has the run take turns from here on, if it goes first."""
        ...


class FirstPlace:
    """The first place, before everything else, is for one run of a host at a time: if several had it, nothing else
    might get on.

    Args:
        wanted: Whether there is to be one.

    Attributes:
        missing: Why there is none, though it was asked for.
    """

    def __init__(self, *, wanted: bool) -> None:
        self._wanted = wanted
        self._claim = realtime.Claim(())
        self._holder: Placed | None = None
        self.missing: list[str] = []

    def open(self) -> None:
        """Gives this process's loop and ZeroMQ's threads priority over all runs, once those run and have names."""
        if self._wanted:
            self._claim = realtime.Claim(realtime.loop_threads())
        if self._claim.refused:
            self.missing = [self._claim.refused]
            logger.warning("%s", self._claim.refused)

    @property
    def is_free(self) -> bool:
        """Says whether a run may have the first place now; on an only core none may."""
        taken = self._holder is not None and self._holder.goes_first
        return self._claim.held and not taken and len(os.sched_getaffinity(0)) > 1

    def note(self, worker: Placed) -> None:
        """Takes note of a worker that has a run now, and of the place if that goes first."""
        self._holder = worker if worker.goes_first else self._holder

    def vacate(self) -> None:
        """Has the worker in the first place take turns from here on: before a spawn, as the host's loop waits for the
        child, which has no priority, and could take nobody's away meanwhile.
        """
        if self._holder is not None:
            self._holder.take_turns()

    def close(self) -> None:
        """Schedules this process like others again."""
        self._claim.give_back()
