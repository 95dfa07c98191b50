"""Finds out why a worker died that nobody killed: at its memory limit, at its CPU limit, or of a defect.

At RLIMIT_DATA, V8 mostly writes that it is out of memory. Sometimes it touches memory that the kernel has just
refused it, and dies of a signal without a word; then the kernel's own figures tell that from a crash.
"""

from __future__ import annotations

import math
import os
import signal
from dataclasses import dataclass
from typing import Final

from cellblock_worker.wire import protocol
from cellblock_worker.worker.usage import Usage, read_usage

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
