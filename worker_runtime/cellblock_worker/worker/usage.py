"""Reads what a live process has used: CPU time from its clock and memory from /proc on Linux, and psutil elsewhere."""

from __future__ import annotations

import contextlib
import os
import sys
import time
from typing import Final, NamedTuple

FILE_BYTES: Final = 32 * 1024
"""Exceeds what the kernel says of a process, even of one in very many groups."""

_SCHEDULER_CLOCK: Final = 2
"""Names the kernel's CPUCLOCK_SCHED: what the process has run, counted at each switch."""

_LINUX: Final = sys.platform.startswith("linux")


class Usage(NamedTuple):
    """Holds the CPU time of all threads in seconds, the peak resident set size, VmData now and VmSize now (0: there is
    none).
    """

    cpu_seconds: float
    peak_bytes: int
    data_bytes: int = 0
    address_bytes: int = 0


def cpu_clock(pid: int) -> int:
    """Returns the clock of a process's CPU time for `time.clock_gettime`, as clock_getcpuclockid(3) makes it."""
    return ~pid << 3 | _SCHEDULER_CLOCK


def _has_clock() -> bool:
    try:
        return _LINUX and time.clock_gettime(cpu_clock(os.getpid())) > 0
    except OSError:
        return False


_HAS_CLOCK: Final = _has_clock()


class UsageReader:
    """Looks at one live process as often as wanted. What it reads stays open: opening takes longer than reading, and it
    can be read when no descriptor is left.

    Args:
        pid: The process. `read` looks at this very one, even when its pid has gone to another; `cpu_seconds` goes by
            the pid, and its caller ends with the process.

    Raises:
        OSError: It is gone, or no descriptor is left. Of a process that is gone later, so does every look.
    """

    def __init__(self, pid: int) -> None:
        self._pid = pid
        self._clock = cpu_clock(pid)
        self._status = os.open(f"/proc/{pid}/status", os.O_RDONLY | os.O_CLOEXEC) if _LINUX else -1

    def cpu_seconds(self) -> float:
        """Returns the CPU time, user and system, of all threads, to the nanosecond."""
        if _LINUX and self._status < 0:
            raise ProcessLookupError("no longer watched")
        if not _HAS_CLOCK:
            return _psutil_usage(self._pid).cpu_seconds
        try:
            return time.clock_gettime(self._clock)
        except OSError as error:
            raise ProcessLookupError(str(error)) from None

    def read(self) -> Usage:
        """Returns CPU time and memory."""
        if not _LINUX:
            return _psutil_usage(self._pid)
        if self._status < 0:
            raise ProcessLookupError("no longer watched")
        status = os.pread(self._status, FILE_BYTES, 0)
        memory = _field(status, b"VmHWM:"), _field(status, b"VmData:"), _field(status, b"VmSize:")
        return Usage(self.cpu_seconds(), *memory)

    def forget_peak(self) -> None:
        """Has the kernel count the peak resident size anew, from the present one on, where it lets this process."""
        with (
            contextlib.suppress(OSError),
            open(f"/proc/{self._pid}/clear_refs", "wb", buffering=0) as file,  # noqa: PTH123
        ):
            file.write(b"5")

    def close(self) -> None:
        """Ends the looks: each later one raises OSError."""
        if self._status >= 0:
            os.close(self._status)
            self._status = -1


def read_usage(pid: int) -> Usage:
    """Returns CPU time and peak memory of a live process, once. Raises OSError when it is gone."""
    with contextlib.closing(UsageReader(pid)) as reader:
        return reader.read()


def _field(status: bytes, name: bytes) -> int:
    """Returns a field that is given in KiB, in bytes; 0 for a zombie, which has none."""
    at = status.find(name)
    return int(status[at + len(name) : status.index(b"kB", at)]) * 1024 if at >= 0 else 0


def _psutil_usage(pid: int) -> Usage:
    # Not at the top: Linux has no need of it, and it takes two megabytes.
    import psutil

    try:
        process = psutil.Process(pid)
        cpu = process.cpu_times()
        return Usage(cpu.user + cpu.system, process.memory_info().rss)
    except psutil.Error as error:
        raise ProcessLookupError(str(error)) from None
