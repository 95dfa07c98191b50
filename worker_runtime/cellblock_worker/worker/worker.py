"""A worker is a Deno process that serves one run and is then killed. Keeps the run's time, CPU and log caps.

It goes through the states of `life`, where their theory stands; where its host says so, it may serve other runs of
the same key before its end (see there, too). What moves it comes from four sides: its owner leases, delivers and kills;
its process says something (`hearing`) or exits; the run's clock and caps are over (`run_limits`).
"""

from __future__ import annotations

import asyncio
import contextlib
import time
from dataclasses import replace
from functools import partial
from typing import Final, Protocol

from cellblock_worker.confinement import bubblewrap, confinement
from cellblock_worker.confinement.cgroup_workers import WorkerGroup
from cellblock_worker.launch.deno_process import DenoProcess
from cellblock_worker.launch.launching import Launcher
from cellblock_worker.wire import protocol
from cellblock_worker.wire.frames import FrameError, encode_frame
from cellblock_worker.worker.hearing import Hearing
from cellblock_worker.worker.life import (
    CONTEXT_SECONDS,
    CPU_SECONDS,
    GROWTH_BYTES,
    MAY_SAY,
    RETURN_CPU_SECONDS,
    RETURN_POLL_SECONDS,
    RETURN_POLLS,
    Bond,
    Event,
    State,
    advance,
)
from cellblock_worker.worker.rehearsal import JOURNAL_FRAME, READY_FRAME, WARM_FRAME
from cellblock_worker.worker.run_limits import Priority, UseWatch, WallClock, is_gone
from cellblock_worker.worker.usage import (
    MemoryEvidence,
    Usage,
    UsageReader,
    over_memory,
    was_killed,
    why_it_did_not_boot,
    why_it_ended,
)

BOOT_BOUND_SECONDS: Final = 10.0
"""Bounds the time from spawn to `Ready`. A boot takes about 20 ms; a machine that needs 10 s cannot serve."""

EXIT_BOUND_SECONDS: Final = 2.0
"""Bounds the time from SIGKILL to the last byte of the pipes; after it the run is reported ended all the same."""

FAREWELL_SECONDS: Final = 0.005
"""Bounds the time from the end of a settled run to SIGKILL: the kernel needs a core for 2 ms to tear a process down,
and on kernels that do not preempt themselves the answer would wait for that on its way."""


class WorkerOwner(Protocol):
    """Owns workers: a host, as its workers know it."""

    has_journals: bool
    """Says whether a worker had a journaled run, which it notes here: new ones rehearse that, too."""

    @property
    def launcher(self) -> Launcher:
        """Gives the launcher that starts the worker's process."""
        ...

    def worker_ready(self, worker: Worker) -> None:
        """Hears that a worker is booted and warm."""

    def worker_says(self, worker: Worker, raw_header: bytes, body: bytes) -> None:
        """Takes a message of the run, checked and within its caps, to be relayed."""

    def worker_computes(self, worker: Worker, cpu_seconds: float) -> bool:
        """Hears that a long run has used so much CPU time more; what a run uses after the last such message is in its
        end.

        Gives whether it is to give way to the runs of others from now on.
        """
        ...

    def worker_ended(self, worker: Worker, ended: protocol.Ended, body: bytes) -> None:
        """Hears that a worker's run is over; the worker says nothing more of it. Exactly once per leased worker."""

    def worker_tidied(self, worker: Worker, cpu_seconds: float) -> None:
        """Hears how much CPU time a process has used from its run's end until it was ready again, or killed."""

    def worker_returned(self, worker: Worker) -> None:
        """Hears that a worker whose run is over can have another one of its key."""

    def worker_gone(self, worker: Worker) -> None:
        """Hears that the process is reaped. Exactly once per worker."""


class Worker:
    """Runs one Deno process, which it spawns at construction. All methods belong to the event loop's thread.

    Args:
        owner: The host, whose launcher starts it.
        max_frame_bytes: Cap of one frame from the worker, checked before it is collected.
        max_old_space_mb: V8's heap ceiling in MiB.
        rehearse: Whether it goes along a run's way once before it is ready (see `rehearsal`).
        lasts: Whether it boots with what several runs need, in a context each; else it serves one.

    Attributes:
        idle_since: When the worker was last ready for another run, in monotonic seconds.
        lane: The lane of the worker's latest run; 0 before it has one.
        detail: Why the worker ended, as far as it is known; empty until then.

    Raises:
        OSError: The process cannot be spawned.
    """

    def __init__(
        self,
        owner: WorkerOwner,
        *,
        max_frame_bytes: int,
        max_old_space_mb: int,
        rehearse: bool = True,
        lasts: bool = False,
    ) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self._hearing = Hearing(max_frame_bytes)
        self._timers: list[asyncio.TimerHandle] = []
        self._run: protocol.Run | None = None
        self.lane = 0
        self._clock: WallClock | None = None
        self._started = 0.0
        self._cpu_at_lease = self._cpu_at_outcome = 0.0
        self._watch: UseWatch | None = None
        self._priority: Priority | None = None
        self._reason: protocol.EndReason | None = None
        self.lasts = lasts
        self.idle_since = 0.0
        self._bond: Bond | None = None
        self._lent: protocol.Lent | None = None
        self.detail = ""
        self._last_usage: Usage | None = None
        self._reported_end = False
        self.state = State.BOOTING
        self.was_ready = False
        self.token = b""
        self._memory = MemoryEvidence()
        launcher = owner.launcher
        # whether there is a jail is known then.
        launcher.open()
        script = confinement.CONTEXTS_SCRIPT if lasts else confinement.BOOT_SCRIPT
        order = confinement.launch(max_old_space_mb, script, jail=launcher.jail)
        self._wrapped = not order.guarded
        self._group: WorkerGroup | None = None
        try:
            self._group = confinement.take_group()
            if self._group is not None:
                order = replace(order, entries=self._group.entries, group=self._group.born_in)
            self._process = DenoProcess(launcher, order, self, max_unsent_bytes=2 * max_frame_bytes)
        except OSError:
            self._give_back_group()
            raise
        finally:
            order.close()
        self._inner_pid: int | None = None
        self._usage_reader: UsageReader | None = None
        warm = JOURNAL_FRAME if owner.has_journals else WARM_FRAME
        self._process.write(warm if rehearse else READY_FRAME)
        overdue = f"no Ready within {BOOT_BOUND_SECONDS:g} s"
        self._timers.append(self._loop.call_later(BOOT_BOUND_SECONDS, self.kill, "boot_failed", overdue))

    @property
    def pid(self) -> int:
        """Returns the process id of Deno: the child, or once it is ready the one that bubblewrap watches over."""
        return self._inner_pid or self._process.pid

    @property
    def is_fresh(self) -> bool:
        """Says whether the worker boots, or is warm, and has had no run."""
        return self._bond is None and self.state in (State.BOOTING, State.WARM)

    @property
    def key(self) -> str:
        """Returns the key of the runs that this process may have; empty before its first, and where it has only one."""
        return self._bond.first.key if self._bond is not None else ""

    def may_have(self, run: protocol.Run, *, gives_way: bool) -> bool:
        """Says whether the worker, which has served a run of its key, may have this one once it is ready: where its
        priority was lowered for good, only one that is to give way."""
        if self._bond is None or not self._bond.fits(run):
            return False
        if self.state is State.RUNNING and not self._returns():
            return False
        if self.state not in (State.WARM, State.RUNNING, State.RETURNING):
            return False
        return gives_way or self._priority is None or not self._priority.is_lowered

    @property
    def ready_in(self) -> float | None:
        """Returns the seconds that a busy worker is likely to take until it is ready for another run."""
        return CONTEXT_SECONDS if self.state is State.RETURNING else self._bond and self._bond.seconds

    @property
    def cpu_reported(self) -> float:
        """Returns the CPU seconds that `worker_computes` has told of its run."""
        return self._watch.reported if self._watch is not None else 0.0

    def lease(
        self,
        token: bytes,
        run: protocol.Run,
        body: bytes,
        *,
        gives_way: bool = False,
    ) -> None:
        """Gives the warm worker a run; its clock starts here.

        `gives_way`: others' runs go first.
        """
        self.state = advance(self.state, Event.LEASE)
        self.token, self._run, self.lane = token, run, run.lane
        self._reason, self._reported_end, self._last_usage, self._lent = None, False, None, None
        reused = self._bond is not None
        in_context = self.lasts and run.key != ""
        self._started = time.monotonic()
        self._hearing.begin(run, self._started)
        try:
            if reused:
                self._usage.forget_peak()
            before = self._usage.read()
            self._process.check_alive()
            if self._group is not None:
                self._group.limit_run(run.memory_bytes)
                if reused:
                    self._group.forget_peak()
            kernel_limits = confinement.limit_at_lease(
                self.pid,
                before.data_bytes + run.memory_bytes,
                before.cpu_seconds + (run.cpu_ms + run.replay_ms) / 1000,
                before.address_bytes + run.memory_bytes if self._group is None else None,
                spare=(GROWTH_BYTES, CPU_SECONDS) if in_context else (0, 0.0),
            )
        except OSError as error:
            if not is_gone(error):
                # It is there, but this machine does not let it be limited: it must not run.
                self.kill("boot_failed", f"the run's limits cannot be put on a worker: {error.strerror}")
            # Else it died while warm; the exit that is on its way ends the run as crashed.
            return
        self._cpu_at_lease = before.cpu_seconds
        if reused:
            self._memory = MemoryEvidence(reused=True)
        elif in_context:
            self._bond = Bond(run, before)
        self._memory.sample(before)
        priority = self._priority = self._priority or Priority(self.pid)
        if gives_way:
            priority.give_way(True)
        start = protocol.Start(log_bytes=run.log_bytes, message_bytes=run.message_bytes, context=in_context)
        # Its limits are on it: it wakes while the rest is set up, and nothing that it says is heard before that.
        taken = self._process.write(encode_frame(start.packed(), body))
        over = partial(self.kill, "timeout", f"over timeoutMs = {run.timeout_ms}")
        bound_ms = run.timeout_ms + protocol.REPLAY_WALL_TIMES * run.replay_ms
        self._clock = WallClock(bound_ms / 1000, run.pause_ms / 1000, over)
        self._watch = UseWatch(
            self._usage,
            run,
            before,
            memory=self._memory,
            kernel_limits=kernel_limits,
            kill=self.kill,
            computes=partial(self._computes, priority, in_context),
        )
        if not taken:
            self.kill("protocol", f"a script and modules of {len(body)} bytes are over the cap")

    def deliver(self, raw_header: bytes, body: bytes) -> None:
        if self.state is State.RUNNING and not self._process.write(encode_frame(raw_header, body)):
            self.kill("protocol", "the worker does not read its input")

    def hold_clock(self, message: protocol.Pause | protocol.Resume) -> bool:
        """Stops the run's wall clock, or lets it go on. False: that does not fit its state, and nothing has changed."""
        if self.state is not State.RUNNING or self._clock is None:
            # It ended while this was on its way.
            return True
        return self._clock.stop() if isinstance(message, protocol.Pause) else self._clock.go_on()

    def lend(self) -> protocol.Lent:
        """Takes half of what is left to its run from it, for another run."""
        if self.state is not State.RUNNING or self._watch is None or self._lent is not None:
            return protocol.Lent()
        try:
            lent = self._watch.half(self._hearing.logs.room)
            self._take(lent.cpu_ms, lent.memory_bytes, lent.log_bytes)
        except OSError:
            # Nobody can look at it, or its group is full.
            return protocol.Lent()
        self._lent = lent
        return lent

    def repay(self, used: protocol.Repay) -> None:
        """Gives its run back what it has lent, but for what was used."""
        lent, self._lent = self._lent, None
        if self.state is not State.RUNNING or lent is None:
            return
        try:
            self._take(used.cpu_ms - lent.cpu_ms, -lent.memory_bytes, used.log_bytes - lent.log_bytes)
        except OSError as error:
            if not is_gone(error):
                self.kill("crashed", f"its limits cannot be put back: {error.strerror or error}")

    def _take(self, cpu_ms: int, memory_bytes: int, log_bytes: int) -> None:
        """Takes so much of what its run may use, or gives it back where that is negative. Raises OSError."""
        # A group that is full refuses: then nothing is taken.
        if self._group is not None:
            self._group.take(memory_bytes)
        confinement.take_memory(self.pid, memory_bytes)
        self._memory.lent_bytes += memory_bytes
        self._hearing.logs.lend(log_bytes)
        if self._watch is not None:
            self._watch.charge(cpu_ms / 1000)

    def end_with_run(self) -> None:
        """Has the process serve no other run."""
        if self._bond is not None:
            self._bond.is_over = True

    def kill(self, reason: protocol.EndReason, detail: str = "") -> None:
        """Kills the worker with SIGKILL. The run, if there is one, ends with `reason`; a later call changes nothing."""
        if self.state in (State.ENDING, State.GONE):
            return
        leased = self.state is State.RUNNING
        if self.state is State.RETURNING:
            self._tell_tidied()
        self.state = advance(self.state, Event.KILL)
        self._reason, self.detail = reason, detail
        self._cancel_timers()
        self._last_usage = self._watch.now() if leased and self._watch is not None else None
        self._process.kill()
        self._timers.append(self._loop.call_later(EXIT_BOUND_SECONDS, self._exit_overdue))

    def _finish(self, message: protocol.Done | protocol.Failed, body: bytes) -> None:
        """Ends a run whose script has settled: its outcome and its end are one message, and soon the worker is killed,
        or is ready for another run.

        Nothing else that it still says is heard, and the kernel's limits stay on it.
        """
        returns = self._returns()
        self.state = advance(self.state, Event.SETTLE if returns else Event.KILL)
        self._reason = "finished"
        self._cancel_timers()
        usage = (self._watch and self._watch.now()) or Usage(0.0, 0)
        self._tell_end(usage, message, body)
        if returns:
            self._run = None
            self._reason = None
            with contextlib.suppress(OSError):  # Else its exit is on the way.
                self._cpu_at_outcome = self._usage.cpu_seconds()
                self._await_return(RETURN_POLLS)
        else:
            self._timers.append(self._loop.call_later(FAREWELL_SECONDS, self._process.kill))

    def _returns(self) -> bool:
        """Says whether this process, whose script has settled, may have another run."""
        return self._bond is not None and self._bond.lasts()

    # ---- what the process tells ----------------------------------------------------------------------

    def on_output(self, data: bytes) -> None:
        if self.state is State.GONE or (self._reported_end and self.state is State.ENDING):
            return
        try:
            rest = self._hearing.hear(data, self._accept)
        except FrameError as error:
            self.kill("protocol", str(error))
            return
        if self._watch is not None and self.state is not State.RETURNING:
            self._watch.billed = self._hearing.cost_seconds
        if rest > 0 and self.state is not State.ENDING:
            self._process.rest(rest)

    def on_exit(self, returncode: int, cpu_seconds: float, peak_bytes: int) -> None:
        """Tells the end of a process that is reaped (ProcessEvents)."""
        if self._reason is None:
            self._reason, self.detail = self._why_it_died(returncode, cpu_seconds, peak_bytes)
        self._cancel_timers()
        if self._usage_reader is not None:
            self._usage_reader.close()
        self.state = advance(self.state, Event.EXIT)
        if self._run is not None:
            # What was read before the kill is Deno's own; a reaped child's peak is at least its parent's size at the
            # spawn, and a bubblewrap that is killed has not counted its child.
            cpu = cpu_seconds - self._cpu_at_lease + self._hearing.cost_seconds
            self._tell_end(self._last_usage or Usage(cpu, peak_bytes))
        self._give_back_group()
        self._owner.worker_gone(self)

    # ---- inside --------------------------------------------------------------------------------------

    def _accept(self, message: protocol.FromWorker, raw_header: bytes, body: bytes) -> None:
        if self._reported_end and self.state is State.ENDING:
            return
        if not isinstance(message, MAY_SAY[self.state]):
            if self.state is State.ENDING:
                return
            raise FrameError(f"a worker that is {self.state.value} may not say {message.t}")
        match message:
            case protocol.Call():
                self._owner.worker_says(self, raw_header, body)
            case protocol.Ready():
                self._on_ready(message)
            case protocol.Log():
                if (kept := self._hearing.logs.take(message, raw_header, body)) is not None:
                    self._owner.worker_says(self, raw_header, kept)
                if self._hearing.logs.holds:
                    self._owner.worker_says(self, protocol.Held().packed(), b"")
            case protocol.Done() | protocol.Failed():
                self._finish(message, body)
            case protocol.Live():
                if self._run and self._watch and self._clock and self._watch.live():
                    self._clock.restart(self._run.timeout_ms / 1000)
                self._owner.worker_says(self, raw_header, body)
            case _:
                if isinstance(message, protocol.Noted):
                    self._owner.has_journals = True
                self._owner.worker_says(self, raw_header, body)

    def _on_ready(self, message: protocol.Ready) -> None:
        if message.protocol != protocol.PROTOCOL_VERSION:
            raise FrameError(f"worker speaks protocol {message.protocol}, host {protocol.PROTOCOL_VERSION}")
        returned = self.state is State.RETURNING
        self.state = advance(self.state, Event.READY)
        self._cancel_timers()
        if returned:
            self._on_return()
            return
        try:
            if self._wrapped:
                self._find_deno()
            self._process.check_alive()
            self._usage_reader = UsageReader(self.pid)
            confinement.limit_at_boot(self.pid)
        except OSError as error:
            # Without its own pid or its limits it must not serve, whether it is gone or the machine is at its end.
            self.kill("boot_failed", f"a worker cannot be limited: {error.strerror or error}")
            return
        self.was_ready = True
        self._owner.worker_ready(self)

    def _await_return(self, looks: int) -> None:
        """Kills the process unless it is ready again in its time."""
        try:
            used = self._usage.cpu_seconds() - self._cpu_at_outcome
        except OSError:
            # Its exit is on the way.
            return
        if used >= RETURN_CPU_SECONDS or looks == 0:
            self.kill("finished", "it was not ready for another run in its time")
        else:
            self._timers.append(self._loop.call_later(RETURN_POLL_SECONDS, self._await_return, looks - 1))

    def _tell_tidied(self) -> None:
        with contextlib.suppress(OSError):
            self._owner.worker_tidied(self, self._usage.cpu_seconds() - self._cpu_at_outcome)

    def _on_return(self) -> None:
        assert self._bond is not None
        self._tell_tidied()
        try:
            usage = self._usage.read()
        except OSError as error:
            self.kill("crashed", f"it cannot be looked at: {error.strerror or error}")
            return
        self.idle_since = time.monotonic()
        self._bond.took(self.idle_since - self._started)
        # Should it be gone at its next lease: what earlier runs have used is not that one's.
        self._cpu_at_lease = usage.cpu_seconds
        if self._bond.within(usage):
            self._owner.worker_returned(self)
        else:
            self.kill("finished", "it has grown, or has computed, for more than one process may")

    @property
    def _usage(self) -> UsageReader:
        assert self._usage_reader is not None
        return self._usage_reader

    def _find_deno(self) -> None:
        inner = bubblewrap.inner_pid(self._process.pid)
        if inner is None:
            raise ProcessLookupError("bubblewrap has no child")
        self._process.adopt(inner)
        if bubblewrap.inner_pid(self._process.pid) != inner:
            # The pid was another's by the time that it was taken hold of.
            raise ProcessLookupError("bubblewrap's child is gone")
        self._inner_pid = inner

    def _give_back_group(self) -> None:
        if self._group is not None:
            confinement.give_back(self._group)
            self._group = None

    def _cancel_timers(self) -> None:
        if self._clock is not None:
            self._clock.cancel()
        if self._watch is not None:
            self._watch.cancel()
        for timer in self._timers:
            timer.cancel()
        self._timers.clear()

    def _computes(self, priority: Priority, in_context: bool, cpu_seconds: float) -> None:
        gives_way = self._owner.worker_computes(self, cpu_seconds)
        if gives_way or not in_context:
            # A process that others may need is lowered only for those who wait: it cannot be raised again.
            priority.long_run()
        priority.give_way(gives_way)

    def _why_it_died(
        self, returncode: int, cpu_seconds: float, peak_bytes: int
    ) -> tuple[protocol.EndReason, str]:
        killed_for = self._group.killed_for() if self._group is not None and was_killed(returncode) else None
        if killed_for == "shared" or (killed_for and self._run is None):
            reason = "boot_failed" if self.state is State.BOOTING else "total_memory"
            return reason, confinement.why_all_were_over()
        stderr = self._process.stderr_tail
        if self.state is State.BOOTING:
            return "boot_failed", why_it_did_not_boot(returncode, stderr, self._process.trouble)
        if self._run is None:
            return "crashed", f"exit code {returncode}"
        if killed_for is not None:
            return "memory", over_memory(self._run)
        cpu_seconds -= self._cpu_at_lease
        return why_it_ended(
            returncode, stderr, self._memory, self._run, cpu_seconds=cpu_seconds, peak_bytes=peak_bytes
        )

    def _exit_overdue(self) -> None:
        if self._run is not None:
            self._tell_end(self._last_usage or Usage(0.0, 0))

    def _replayed(self, usage: Usage) -> float:
        """Returns the CPU seconds of `usage` that the run has used before it was live."""
        live_at = 0.0 if self._watch is None else self._watch.live_at
        return usage.cpu_seconds if live_at is None else live_at

    def _tell_end(
        self, usage: Usage, outcome: protocol.Done | protocol.Failed | None = None, body: bytes = b""
    ) -> None:
        if self._reported_end:
            return
        self._reported_end = True
        assert self._reason is not None
        for raw_header, kept in self._hearing.logs.rest():
            self._owner.worker_says(self, raw_header, kept)
        # What is no memory of one process's own, such as System V segments, only the group sees.
        group_peak = self._group.peak_bytes() if self._group is not None else 0
        ended = protocol.Ended(
            reason=self._reason,
            outcome="none"
            if outcome is None
            else outcome.kind
            if isinstance(outcome, protocol.Failed)
            else "done",
            detail=self.detail[: protocol.MAX_DETAIL_CHARS],
            wall_ms=int((time.monotonic() - self._started) * 1000),
            cpu_ms=max(0, int(usage.cpu_seconds * 1000)),
            replay_cpu_ms=max(0, int(self._replayed(usage) * 1000)),
            peak_bytes=max(usage.peak_bytes, group_peak),
            dropped_log_bytes=self._hearing.logs.dropped_bytes,
            reused=self._bond.served if self._bond is not None else 0,
        )
        if self._bond is not None:
            self._bond.served += 1
        if outcome is None:
            body = self._process.stderr_tail[-protocol.STDERR_TAIL_BYTES :]
        self._owner.worker_ended(self, ended, body)
