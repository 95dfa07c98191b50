"""Reads what a live process has used, CPU time from its clock and memory from /proc on Linux, and psutil elsewhere; and
finds out why a worker died that nobody killed: at its memory limit, at its CPU limit, or of a defect.

At RLIMIT_DATA, V8 mostly writes that it is out of memory. Sometimes it touches memory that the kernel has just refused
it, and dies of a signal without a word; then the kernel's own figures tell that from a crash.
"""

from __future__ import annotations

import contextlib
import math
import os
import signal
import sys
import time
from dataclasses import dataclass
from typing import Final, NamedTuple

from cellblock_worker.wire import protocol

FILE_BYTES: Final = 32 * 1024
"""Exceeds what the kernel says of a process, even of one in very many groups."""

_SCHEDULER_CLOCK: Final = 2
"""Names the kernel's CPUCLOCK_SCHED: what the process has run, counted at each switch."""

_LINUX: Final = sys.platform.startswith("linux")

OUT_OF_MEMORY_MARKS: Final = (
    b"out of memory",
    b"Out of memory",
    b"memory allocation of",
    b"OOM",
    b"Cannot allocate memory",
    # V8 says so on a worker thread that got no memory; Deno panics then, and exits with 1.
    b"Check failed: allocation.",
)

OVERFLOW_MARK: Final = b"has overflowed its stack"
"""Matches the words of Rust's guard page: the death is no matter of the memory limit, however much was in use."""

SHELL_SIGNAL_BASE: Final = 128
"""Stands before a signal in an exit code: bubblewrap exits with this plus the number of the signal that killed what it
watched over."""

REFUSED_MEMORY_SIGNALS: Final = frozenset(
    {signal.SIGSEGV, signal.SIGBUS, signal.SIGTRAP, signal.SIGABRT, signal.SIGILL}
)
"""Names the signals that a process dies of that was refused memory. SIGKILL is not among them: someone else sent it."""

NEAR_LIMIT_SHARE: Final = 0.75
"""Sets the share of the run's memory at which a worker that died of one of `REFUSED_MEMORY_SIGNALS` is taken to have
been refused more. V8 grows in steps of up to a few MiB, and was seen at 0.93 of 32 MiB and above."""

REUSED_NEAR_SHARE: Final = 0.4
"""Sets the share of the run's memory for a process that has served other runs: V8 keeps room of earlier runs that is
data, and not resident."""

MAPPED_FILE_BYTES: Final = 8 * 1024 * 1024
"""Allows for resident growth of a run that is no data: the parts of Deno's binary that its first script touches."""

STDERR_SHOWN_BYTES: Final = 200
"""Caps what is shown of the stderr of a worker that did not boot."""


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


def was_killed(returncode: int) -> bool:
    """Says whether the exit is that of a SIGKILL, or of a bubblewrap whose child got one."""
    return returncode in (-signal.SIGKILL, SHELL_SIGNAL_BASE + signal.SIGKILL)


@dataclass(slots=True)
class MemoryEvidence:
    """Keeps what was seen of one run's memory, and how much of what it may use it has lent."""

    first: Usage | None = None
    most_data: int = 0
    lent_bytes: int = 0
    reused: bool = False

    def sample(self, usage: Usage) -> None:
        """Adds a look at the live process; the first is the baseline."""
        if self.first is None:
            self.first = usage
        self.most_data = max(self.most_data, usage.data_bytes)

    def near(self, memory_bytes: int, peak_bytes: int) -> bool:
        """Says whether the process was near its limit.

        Args:
            memory_bytes: What the run was given over the baseline.
            peak_bytes: Peak resident size that the kernel counted until the exit.
        """
        if self.first is None:
            return False
        enough = (memory_bytes - self.lent_bytes) * (REUSED_NEAR_SHARE if self.reused else NEAR_LIMIT_SHARE)
        if self.most_data - self.first.data_bytes >= enough:
            return True
        # A process that has served others has touched the file already.
        grown = peak_bytes - self.first.peak_bytes - (0 if self.reused else MAPPED_FILE_BYTES)
        return grown >= enough and peak_bytes > own_peak()


def own_peak() -> float:
    """Returns this process's peak resident size: a reaped child's is at least what its parent's was at the fork, since
    it was counted from before its exec. Without bound where it cannot be read.
    """
    try:
        # Not getrusage: that has what this process itself inherited, which is not passed on.
        return read_usage(os.getpid()).peak_bytes
    except OSError:
        return math.inf


def why_it_ended(
    returncode: int,
    stderr: bytes,
    evidence: MemoryEvidence,
    run: protocol.Run,
    *,
    cpu_seconds: float,
    peak_bytes: int,
) -> tuple[protocol.EndReason, str]:
    """Says why a leased worker exited by itself, with the words for it.

    Args:
        returncode: Negative: killed by that signal; or the exit code of a bubblewrap that watched over it.
        stderr: The last bytes that the worker wrote there; nothing of a script's can be among them.
        evidence: What was seen of its memory.
        run: Its run.
        cpu_seconds: What the run has used.
        peak_bytes: Peak resident size that the kernel counted until the exit.
    """
    number = -returncode if returncode < 0 else returncode - SHELL_SIGNAL_BASE
    # The first process of a namespace ignores SIGXCPU, so that the hard limit's SIGKILL comes.
    used_up = was_killed(returncode) and cpu_seconds >= (run.cpu_ms + run.replay_ms) / 1000
    if number == signal.SIGXCPU or used_up:
        return "cpu", over_cpu(run)
    if any(mark in stderr for mark in OUT_OF_MEMORY_MARKS):
        return "memory", over_memory(run)
    was_refused = number in REFUSED_MEMORY_SIGNALS and OVERFLOW_MARK not in stderr
    if was_refused and evidence.near(run.memory_bytes, peak_bytes):
        return "memory", over_memory(run)
    return "crashed", f"exit code {returncode}"


def over_cpu(run: protocol.Run) -> str:
    return f"over maxCpuMs = {run.cpu_ms}"


def over_memory(run: protocol.Run) -> str:
    return f"over maxMemoryBytes = {run.memory_bytes}"


def why_it_did_not_boot(returncode: int, stderr: bytes, trouble: OSError | None) -> str:
    """Returns what is known of a worker that exited before it was ready."""
    said = trouble or stderr[:STDERR_SHOWN_BYTES].decode("utf-8", "replace").strip()
    return f"exit code {returncode} before Ready" + (f": {said}" if said else "")
