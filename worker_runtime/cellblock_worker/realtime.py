"""Real-time priority (sched(7), SCHED_RR) for what stands between a short run and its answer. Off unless asked for.

Covers threads of this process (the host's, or those of the broker that a run goes through) and, for its first moment,
the run of a client that is known to be light (see `scheduling`). Linux only, and it takes CAP_SYS_NICE or a limit on
real-time priority (RLIMIT_RTPRIO). What these processes start has none: not workers, not upstream servers.
The kernel leaves a twentieth of each core to everything else (sched(7), sched_rt_runtime_us).
"""

from __future__ import annotations

import contextlib
import os
import sys
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Final

OWN_PRIORITY: Final = 2
"""Of broker and host: over that of runs, so that the host can always take a run's away."""

RUN_PRIORITY: Final = 1
"""Of a run's first moment."""

ZMQ_THREADS: Final = "ZMQbg"
"""Begins the names of ZeroMQ's own threads."""

_LINUX: Final = sys.platform.startswith("linux")

_FIX: Final = (
    f"it takes CAP_SYS_NICE or a limit of {OWN_PRIORITY} on real-time priority (LimitRTPRIO= of a systemd unit "
    "without RestrictRealtime=, rtprio in limits.conf)"
)


class Claim:
    """Threads of this process that go first.

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
                self.refused = "real-time priority: only Linux has it"
                return
            try:
                set_priority(thread, OWN_PRIORITY)
            except ProcessLookupError:
                continue
            except OSError as error:
                self.refused = f"real-time priority: {error.strerror}; {_FIX}"
                self.give_back()
                return
            self._threads.append(thread)

    @property
    def held(self) -> bool:
        """Whether there are any, and they do."""
        return bool(self._threads)

    def give_back(self) -> None:
        """They are scheduled like others again."""
        for thread in self._threads:
            with contextlib.suppress(OSError):
                set_priority(thread, 0)
        self._threads.clear()


def set_priority(thread: int, priority: int) -> None:
    """Gives a thread of this or another process a real-time priority, or with 0 takes it away. Raises OSError."""
    if not _LINUX:
        return
    # With the flag everywhere: only a privileged process could take it off again, and a thread that had the priority
    # when it started another must not hand it on.
    policy = (os.SCHED_RR if priority else os.SCHED_OTHER) | os.SCHED_RESET_ON_FORK
    os.sched_setscheduler(thread, policy, os.sched_param(priority))


def threads_of(pid: int | None = None) -> list[int]:
    """Thread ids of a process, this one by default; the first is its main thread. Raises OSError."""
    return [int(name) for name in os.listdir(f"/proc/{pid or os.getpid()}/task")]  # noqa: PTH208


def loop_threads() -> list[int]:
    """The calling thread, which runs the event loop, and ZeroMQ's own in this process, once they run."""
    found = [threading.get_native_id()]
    if _LINUX:
        for thread in threads_of():
            with contextlib.suppress(OSError):
                name = Path(f"/proc/self/task/{thread}/comm").read_text("ascii", "replace")
                found += [thread] if name.startswith(ZMQ_THREADS) else []
    return found
