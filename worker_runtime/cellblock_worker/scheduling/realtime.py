"""Gives real-time priority (sched(7), SCHED_RR) to what stands between a short run and its answer. Off unless asked
for.

Covers threads of this process (the host's, or those of the broker that a run goes through) and, for its first moment,
the run of a client that is known to be light (see `scheduling`). Linux only, and it takes CAP_SYS_NICE or a limit on
real-time priority (RLIMIT_RTPRIO); a host that is not root's is in a user namespace, where only the limit counts.
What these processes start has none: not workers, not upstream servers.
The kernel leaves a twentieth of each core to everything else (sched(7), sched_rt_runtime_us).
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

OWN_PRIORITY: Final = 2
"""Sets the priority of broker and host, over that of runs, so that the host can always take a run's away."""

RUN_PRIORITY: Final = 1
"""Sets the priority of a run's first moment."""

ZMQ_THREADS: Final = "ZMQbg"
"""Begins the names of ZeroMQ's own threads."""

_WHAT: Final = "real-time priority:"

_LINUX: Final = sys.platform.startswith("linux")

_FIX: Final = (
    f"it takes a limit of {OWN_PRIORITY} on real-time priority (LimitRTPRIO= of a systemd unit without "
    "RestrictRealtime=, rtprio in limits.conf), or root with CAP_SYS_NICE"
)


@dataclass(slots=True)
class _Before:
    """Keeps how a thread was scheduled, and by how many claims it is held."""

    policy: int
    claims: int = 0


_held: Final[dict[int, _Before]] = {}
"""Holds the threads of this process with a priority of ours: several brokers may share a loop."""


class Claim:
    """A claim lets threads of this process go first. One that has real-time priority already keeps what it has.

    Args:
        threads: Their thread ids.

    Attributes:
        refused: Why they do not; None when they do, and when there are none.
    """

    def __init__(self, threads: Iterable[int]) -> None:
        self._threads: list[int] = []
        self.refused: str | None = None
        for thread in threads:
            if not _LINUX:
                self.refused = f"{_WHAT} only Linux has it"
                return
            try:
                self._take(thread)
            except ProcessLookupError:
                continue
            except OSError as error:
                self.refused = f"{_WHAT} {error.strerror}; {_FIX}"
                self.give_back()
                return

    @property
    def held(self) -> bool:
        """Says whether the claim has threads, and they go first."""
        return bool(self._threads)

    def give_back(self) -> None:
        """Schedules the threads as before again, but for those that another claim holds."""
        for thread in self._threads:
            _held[thread].claims -= 1
            if not _held[thread].claims:
                with contextlib.suppress(OSError):
                    _set(thread, _held.pop(thread).policy, 0)
        self._threads.clear()

    def _take(self, thread: int) -> None:
        if thread not in _held:
            before = os.sched_getscheduler(thread) & ~os.SCHED_RESET_ON_FORK
            if before in (os.SCHED_OTHER, os.SCHED_BATCH, os.SCHED_IDLE):
                set_priority(thread, OWN_PRIORITY)
                _held[thread] = _Before(before)
        if thread in _held:
            _held[thread].claims += 1
            self._threads.append(thread)


def is_refusal(said: str) -> bool:
    """Says whether what is missing at a host is this priority."""
    return said.startswith(_WHAT)


def set_priority(thread: int, priority: int) -> None:
    """Gives a thread of this or another process a real-time priority, or with 0 takes it away. Raises OSError."""
    if not _LINUX:
        return
    _set(thread, os.SCHED_RR if priority else os.SCHED_OTHER, priority)


def _set(thread: int, policy: int, priority: int) -> None:
    # With the flag everywhere: only a privileged process could take it off again, and a thread that has the priority
    # when it starts another must not hand it on.
    os.sched_setscheduler(thread, policy | os.SCHED_RESET_ON_FORK, os.sched_param(priority))


def threads_of(pid: int | None = None) -> list[int]:
    """Returns the thread ids of a process, this one by default; the first is its main thread. Raises OSError."""
    return [int(name) for name in os.listdir(f"/proc/{pid or os.getpid()}/task")]  # noqa: PTH208


def zmq_threads() -> set[int]:
    """Finds ZeroMQ's own threads in this process, those that run: before, they have no name."""
    found: set[int] = set()
    if _LINUX:
        for thread in threads_of():
            with contextlib.suppress(OSError):
                name = Path(f"/proc/self/task/{thread}/comm").read_text("ascii", "replace")
                found |= {thread} if name.startswith(ZMQ_THREADS) else set()
    return found


def loop_threads() -> set[int]:
    """Returns the calling thread, which runs the event loop, and ZeroMQ's own in this process, once they run."""
    return {threading.get_native_id(), *zmq_threads()}
