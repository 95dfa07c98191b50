"""Owns one Deno child: spawn, write, read, kill, reap. Knows bytes, not messages."""

from __future__ import annotations

import asyncio
import contextlib
import os
import select
import signal
import sys
from typing import Final, Protocol

from cellblock_worker.base.lifetime import HAS_PIDFD
from cellblock_worker.launch.launching import Launcher, SpawnRequest, Started
from cellblock_worker.wire.outflow import Outflow

READ_CHUNK_BYTES: Final = 256 * 1024

STDERR_TAIL_BYTES: Final = 4096
_MAXRSS_UNIT: Final = 1 if sys.platform == "darwin" else 1024

NOT_STARTED: Final = 127
"""Names the exit code of a child that has not become the program it was to be, or that there was not."""

REAP_POLL_SECONDS: Final = 0.01
"""Sets how often a machine without pidfd looks whether a child has exited."""


class ProcessEvents(Protocol):
    """Hears what becomes of a `DenoProcess`, always from the event loop, never after `on_exit`."""

    def on_output(self, data: bytes) -> None:
        """Takes bytes from the child's stdout."""

    def on_exit(self, returncode: int, cpu_seconds: float, peak_bytes: int) -> None:
        """Hears that the child is reaped and its pipes are read to the end. Negative code: killed by that signal."""


class DenoProcess:
    """Owns one child process with pipes on its three standard streams, in a session of its own.

    It is started after this, and may be written to and killed before.

    Args:
        launcher: Starts it.
        order: What to start.
        events: Told about output and exit.
        max_unsent_bytes: Cap of what may wait for a child that does not read its stdin.

    Attributes:
        pid: 0 until it is there, and of one that never was.
        trouble: Why it could not be started; None: it could, or that is not known yet.

    Raises:
        OSError: The child cannot be asked for. When it turns out later that it cannot be started, it has exited with
            `NOT_STARTED`.
    """

    def __init__(
        self, launcher: Launcher, order: SpawnRequest, events: ProcessEvents, *, max_unsent_bytes: int
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self._launcher = launcher
        self._events = events
        self._stderr = bytearray()
        self._open_streams = 2
        self._status: tuple[int, float, int] | None = None
        self._exited = False
        self._killed = False
        self._pidfd = -1
        self._inner_pidfd = -1
        self.pid = 0
        self.trouble: OSError | None = None
        pairs = _pipes()
        (its_stdin, self._stdin), (self._stdout, its_stdout), (self._stderr_fd, its_stderr) = pairs
        try:
            launcher.start(order, (its_stdin, its_stdout, its_stderr), self._on_started)
        except OSError:
            self._close_pipes()
            raise
        finally:
            for fd in (its_stdin, its_stdout, its_stderr):
                os.close(fd)
        for fd in (self._stdin, self._stdout, self._stderr_fd):
            os.set_blocking(fd, False)
        self._out = Outflow(self._stdin, max_unsent_bytes)

    @property
    def stderr_tail(self) -> bytes:
        return bytes(self._stderr)

    def write(self, data: bytes) -> bool:
        """Sends bytes to the child's stdin, keeping what the pipe does not take yet.

        Returns:
            False when more than the cap is waiting: the child does not read, and nothing was added.
        """
        return self._exited or self._stdin < 0 or self._out.write(data)

    def close_input(self) -> None:
        """Closes the child's stdin, and drops what waits for it."""
        if self._stdin >= 0:
            self._out.close()
            os.close(self._stdin)
            self._stdin = -1

    def adopt(self, pid: int) -> None:
        """Names the process that does the work where the child only watches over it; `kill` ends both.

        Without pidfd the kernel does it: what the child watches over dies with it.

        Raises:
            OSError: It is gone.
        """
        if not HAS_PIDFD:
            return
        self._inner_pidfd = os.pidfd_open(pid)
        self._launcher.watch(self._inner_pidfd)

    def check_alive(self) -> None:
        """Raises ProcessLookupError when what does the work has exited, so that its pid may be another's."""
        pidfd = self._inner_pidfd if self._inner_pidfd >= 0 else self._pidfd
        if pidfd < 0:
            return
        poll = select.poll()
        poll.register(pidfd, select.POLLIN)
        if poll.poll(0):
            raise ProcessLookupError("it has exited")

    def rest(self, seconds: float) -> None:
        """Stops reading the child's output for so many seconds; only from `on_output`."""
        self._loop.remove_reader(self._stdout)
        # The pipe stays open meanwhile: its end, too, is only seen by reading it.
        self._loop.call_later(seconds, self._loop.add_reader, self._stdout, self._read_stdout)

    def kill(self) -> None:
        """Sends SIGKILL to the child's whole process group. Harmless when it is gone."""
        self._kill_inner()
        self._killed = True
        if self._status is None and self.pid:
            # Not reaped yet, so neither the pid nor the group can belong to anyone else.
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self.pid, signal.SIGKILL)
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, signal.SIGKILL)

    def _kill_inner(self) -> None:
        if self._inner_pidfd >= 0:
            with contextlib.suppress(ProcessLookupError):
                signal.pidfd_send_signal(self._inner_pidfd, signal.SIGKILL)

    def _on_started(self, started: Started | OSError) -> None:
        if isinstance(started, OSError):
            self.trouble = started
            self._status = (NOT_STARTED, 0.0, 0)
            self._open_streams = 0
            self._finish_if_over()
            return
        self.pid, self._pidfd = started
        if self._pidfd >= 0:
            self._launcher.watch(self._pidfd, started_here=True)
            self._loop.add_reader(self._pidfd, self._reap)
        else:
            self._loop.call_later(REAP_POLL_SECONDS, self._poll_reap)
        # Not before: what it says is told of a process that is known.
        self._loop.add_reader(self._stdout, self._read_stdout)
        self._loop.add_reader(self._stderr_fd, self._read_stderr)
        if self._killed:
            self.kill()

    def _close_pipes(self) -> None:
        for fd in (self._stdin, self._stdout, self._stderr_fd):
            if fd >= 0:
                os.close(fd)
        self._stdin = self._stdout = self._stderr_fd = -1

    def _read_stdout(self) -> None:
        if data := self._read(self._stdout):
            self._events.on_output(data)

    def _read_stderr(self) -> None:
        self._stderr += self._read(self._stderr_fd)
        del self._stderr[:-STDERR_TAIL_BYTES]

    def _read(self, fd: int) -> bytes:
        """Returns what a stream has to read; at its end, counts the stream as over."""
        try:
            data = os.read(fd, READ_CHUNK_BYTES)
        except BlockingIOError:
            return b""
        except OSError:
            data = b""
        if not data:
            self._loop.remove_reader(fd)
            self._open_streams -= 1
            self._finish_if_over()
        return data

    def _poll_reap(self) -> None:
        self._reap()
        if self._status is None:
            self._loop.call_later(REAP_POLL_SECONDS, self._poll_reap)

    def _end_the_rest(self) -> None:
        """Ends what an exited child has left.

        bubblewrap's own child, when it has not yet asked to die with it, is still in the group, and would become a Deno
        that holds the pipes open; one that has left the group by then ends with its stdin.
        """
        # It may have taken back its wish to die with what watches over it.
        self._kill_inner()
        # The child is not reaped yet, so the group is still this one's.
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.killpg(self.pid, signal.SIGKILL)
        self.close_input()

    def _reap(self) -> None:
        if self._pidfd >= 0:
            self._end_the_rest()
        pid, status, rusage = os.wait4(self.pid, os.WNOHANG)
        if pid == 0:
            return
        if self._pidfd >= 0:
            self._launcher.unwatch(self._pidfd)
            self._loop.remove_reader(self._pidfd)
            os.close(self._pidfd)
            self._pidfd = -1
        code = os.waitstatus_to_exitcode(status)
        self._status = (code, rusage.ru_utime + rusage.ru_stime, rusage.ru_maxrss * _MAXRSS_UNIT)
        self._finish_if_over()

    def _finish_if_over(self) -> None:
        if self._status is None or self._open_streams or self._exited:
            return
        self._exited = True
        if self._inner_pidfd >= 0:
            self._launcher.unwatch(self._inner_pidfd)
            os.close(self._inner_pidfd)
            self._inner_pidfd = -1
        self.close_input()
        self._close_pipes()
        self._events.on_exit(*self._status)


def _pipes() -> list[tuple[int, int]]:
    """Returns three pipes, for the standard streams of a process. Raises OSError, and leaves none."""
    pairs: list[tuple[int, int]] = []
    try:
        for _ in range(3):
            pairs.append(os.pipe())  # noqa: PERF401 - those made so far are closed
    except OSError:
        for fd in (end for pair in pairs for end in pair):
            os.close(fd)
        raise
    return pairs
