"""Keeps the time and the CPU time of one run within its caps: by a clock, and by looks at what it has used."""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Callable
from enum import Enum
from typing import Final

from cellblock_worker.base import lifetime
from cellblock_worker.wire import protocol
from cellblock_worker.worker.usage import MemoryEvidence, Usage, UsageReader, over_cpu

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


CPU_SAMPLE_MIN_SECONDS: Final = 0.01
"""Bounds the pause between two looks at a run's CPU time, from below."""

CPU_SAMPLE_SHARE: Final = 0.25
"""Sets after which share of the CPU time left the next look comes, since V8's helper threads count too."""

BLIND_PAUSE_SECONDS: Final = 0.1
"""Sets the pause until the next look after one that failed for want of a descriptor; RLIMIT_CPU holds meanwhile."""

LONG_RUN_CPU_SECONDS: Final = 0.05
"""Sets the CPU time after which a run is a long one; most runs never take as much."""

FIRST_SAMPLE_SECONDS: Final = 0.1
"""Bounds the pause before the first look; each later one may come twice as late, up to `LAST_SAMPLE_SECONDS`."""

LAST_SAMPLE_SECONDS: Final = 0.8


def is_gone(error: OSError) -> bool:
    """Says whether an error means that the process is no longer there."""
    return isinstance(error, ProcessLookupError | FileNotFoundError)


class UseWatch:
    """Looks now and then at what one run has used, from its lease until `cancel`: ends it at its cap, and has a long
    one yield to others.

    Args:
        reader: Looks at its worker.
        run: Its caps.
        before: What the worker had used at the lease.
        memory: Keeps each look, to tell later what a worker died of.
        kernel_limits: Whether the kernel keeps the memory cap; if not, it is kept here.
        kill: Ends the run with a reason and its words.
        computes: Told how much CPU time more a long run has used, in seconds.

    Attributes:
        reported: CPU seconds that `computes` has been told in all; 0 of a run that is not a long one.
        billed: CPU seconds that the run has cost the host; they count as its own.
        charged: CPU seconds that others use for the run; they count for its cap alone.
        live_at: CPU seconds that the run had used when its own cap began; None while it replays what it has done.
    """

    def __init__(
        self,
        reader: UsageReader,
        run: protocol.Run,
        before: Usage,
        *,
        memory: MemoryEvidence,
        kernel_limits: bool,
        kill: Callable[[protocol.EndReason, str], None],
        computes: Callable[[float], None],
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._reader = reader
        self._run = run
        self._before = before.cpu_seconds
        self._data_limit = before.data_bytes + run.memory_bytes
        self._memory = memory
        self._kernel_limits = kernel_limits
        self._kill = kill
        self._computes = computes
        self.reported = 0.0
        self.billed = 0.0
        self.charged = 0.0
        self.live_at: float | None = None if run.replay_ms else 0.0
        self._longest_pause = FIRST_SAMPLE_SECONDS
        self._timer = self._look_later((run.replay_ms or run.cpu_ms) / 1000)

    def cancel(self) -> None:
        """Ends the watch: the run is over."""
        self._timer.cancel()

    def live(self) -> bool:
        """Has the run's own CPU cap begin; says whether it had not."""
        if self.live_at is not None:
            return False
        # What cannot be read counts as the script's own: it is about to end.
        self.live_at = 0.0
        if (usage := self.now()) is not None:
            self.live_at = usage.cpu_seconds
        self._timer.cancel()
        self._timer = self._look_later(self._run.cpu_ms / 1000)
        return True

    def half(self, log_bytes: int) -> protocol.Lent:
        """Returns half of what is left to the run, with half of `log_bytes`. Raises OSError: It cannot be looked at."""
        usage = self._reader.read()
        memory = self._run.memory_bytes - usage.peak_bytes
        if self._kernel_limits:
            memory = self._data_limit - usage.data_bytes
        # A run that comes back to where it was has not begun to use its own cap.
        left = self._run.cpu_ms / 1000 - self.charged
        if self.live_at is not None:
            left = self._left(usage.cpu_seconds - self._before + self.billed)
        cpu_ms = int(1000 * left)
        return protocol.Lent(
            cpu_ms=max(0, cpu_ms // 2), memory_bytes=max(0, memory // 2), log_bytes=max(0, log_bytes // 2)
        )

    def charge(self, cpu_seconds: float) -> None:
        """Counts CPU time that is used elsewhere for the run, and looks at its cap at once."""
        self.charged += cpu_seconds
        self._timer.cancel()
        self._look()

    def now(self) -> Usage | None:
        """Returns the CPU time and memory that the run has used by now; None when that cannot be read."""
        try:
            usage = self._reader.read()
        except (OSError, ValueError):
            return None
        return usage._replace(cpu_seconds=usage.cpu_seconds - self._before + self.billed)

    def _look(self) -> None:
        try:
            usage = self._reader.read()
        except OSError as error:
            if not is_gone(error):
                self._cannot_look(error)
            return
        except ValueError:
            return
        self._memory.sample(usage)
        used = usage.cpu_seconds - self._before + self.billed
        left = self._left(used)
        if left <= 0:
            replays = self.live_at is None
            self._kill(
                "cpu", f"over {self._run.replay_ms} ms in a replay" if replays else over_cpu(self._run)
            )
        elif not self._kernel_limits and usage.peak_bytes > self._run.memory_bytes - self._memory.lent_bytes:
            self._kill("memory", f"over maxMemoryBytes = {self._run.memory_bytes} (resident size)")
        else:
            if used >= LONG_RUN_CPU_SECONDS:
                more, self.reported = used - self.reported, used
                self._computes(more)
            self._longest_pause = min(2 * self._longest_pause, LAST_SAMPLE_SECONDS)
            self._timer = self._look_later(left)

    def _left(self, used: float) -> float:
        if self.live_at is None:
            return self._run.replay_ms / 1000 - used
        return self._run.cpu_ms / 1000 - (used - self.live_at) - self.charged

    def _look_later(self, left: float) -> asyncio.TimerHandle:
        pause = CPU_SAMPLE_MIN_SECONDS
        if self._kernel_limits:
            pause = max(pause, min(left * CPU_SAMPLE_SHARE, self._longest_pause))
        return self._loop.call_later(pause, self._look)

    def _cannot_look(self, error: OSError) -> None:
        """Goes on without a descriptor to look at a living worker: the kernel's limits hold, where it keeps them."""
        if self._kernel_limits:
            self._timer = self._loop.call_later(BLIND_PAUSE_SECONDS, self._look)
        else:
            self._kill("crashed", f"its memory cannot be watched: {error.strerror or error}")


class ClockState(Enum):
    """A run's wall clock is in one of these states."""

    RUNNING = "running"
    STOPPED = "stopped"
    OVERDRAWN = "overdrawn"
    """Says that the clock runs again by itself, having stood still for as long as it may; the broker has yet to say
    that it goes on."""


class WallClock:
    """Counts what is left of a run's `timeoutMs`, from its construction. The broker may stop it, within an allowance
    given before.

    Args:
        seconds: Until `on_over`, while it runs.
        allowance: Seconds that it may stand still in all.
        on_over: Called once, when the time is over.
    """

    def __init__(self, seconds: float, allowance: float, on_over: Callable[[], None]) -> None:
        self._loop = asyncio.get_running_loop()
        self._on_over = on_over
        self._left = seconds
        self._allowance = allowance
        self._since = self._loop.time()
        self._timer = self._loop.call_later(seconds, on_over)
        self.state = ClockState.RUNNING

    def stop(self) -> bool:
        """Stops the clock of a run. False: it does already, or must not any more, and nothing has changed."""
        if self.state is not ClockState.RUNNING or self._allowance <= 0:
            return False
        self._left -= self._turn(ClockState.STOPPED)
        self._timer = self._loop.call_later(self._allowance, self._overdraw)
        return True

    def go_on(self) -> bool:
        """Lets the clock run again. False: it does already, and nothing has changed."""
        if self.state is ClockState.OVERDRAWN:
            # The word came when the allowance was used up; what has passed since counts.
            self.state = ClockState.RUNNING
            return True
        if self.state is not ClockState.STOPPED:
            return False
        self._allowance -= self._turn(ClockState.RUNNING)
        self._timer = self._loop.call_later(max(0.0, self._left), self._on_over)
        return True

    def restart(self, seconds: float) -> None:
        """Gives the run so many seconds from now on, while the clock runs."""
        self._left = seconds
        if self.state is not ClockState.STOPPED:
            self._turn(self.state)
            self._timer = self._loop.call_later(seconds, self._on_over)

    def cancel(self) -> None:
        """Ends the clock: the run is over."""
        self._timer.cancel()

    def _overdraw(self) -> None:
        self._turn(ClockState.OVERDRAWN)
        self._allowance = 0.0
        self._timer = self._loop.call_later(max(0.0, self._left), self._on_over)

    def _turn(self, state: ClockState) -> float:
        """Goes over to a state, and returns the seconds that were spent in the one before."""
        self._timer.cancel()
        now = self._loop.time()
        spent, self._since, self.state = now - self._since, now, state
        return spent
