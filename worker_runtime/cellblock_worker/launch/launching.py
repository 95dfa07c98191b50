"""Starts a host's workers through its launcher (see `launcher`), so that the host's loop does not wait for their exec.

Where there is no launcher (macOS, machines whose kernel refuses its calls), the host starts them itself, as before.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import logging
import marshal
import os
import signal
import socket
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple

from cellblock_worker.base import lifetime
from cellblock_worker.base.lifetime import HAS_PIDFD
from cellblock_worker.launch import launcher

logger = logging.getLogger("cellblock.host")

HELLO_BOUND_SECONDS: Final = 10.0
"""Bounds the time for the launcher's first child; Python starts in about 15 ms."""

ANSWER_BOUND_SECONDS: Final = 10.0
"""Bounds the time from an order to its answer, which takes about a millisecond; a worker's boot has as long."""

END_BOUND_SECONDS: Final = 2.0
"""Bounds the time from the end of the socket to the launcher's exit; it takes well under a millisecond."""

SEND_BUFFER_BYTES: Final = 1024 * 1024
"""Bounds the orders that may wait for the launcher: some hundred, of which only as many are made as workers boot at a
time."""

_ANSWER_BYTES: Final = 64


@dataclass(frozen=True, slots=True)
class SpawnRequest:
    """An order says what to start, and where. Its descriptors must stay open in the child, and `close` closes them here
    after the spawn.

    Attributes:
        command: The program, by its path, and its arguments.
        environment: All of it.
        fds: Descriptors that it has too, under the same numbers.
        guarded: Whether it is to ask for PDEATHSIG and no_new_privs.
        entries: Files of v1 cgroups that take a thread.
        group: Folder of the v2 cgroup that it is born in, or nothing.
        in_jail: Whether it is a worker in the launcher's jail.
        preexec: Runs in the child when there is no launcher.
    """

    command: Sequence[str]
    environment: dict[str, str]
    fds: tuple[int, ...] = ()
    guarded: bool = False
    entries: tuple[str, ...] = ()
    group: str = ""
    in_jail: bool = False
    preexec: Callable[[], None] | None = None

    def close(self) -> None:
        """Closes this side's copies of the descriptors."""
        for fd in self.fds:
            os.close(fd)


class Jail(NamedTuple):
    """Says what all workers of a launcher share: the root and the namespaces that bubblewrap makes.

    Attributes:
        command: Command line of bubblewrap, without a program.
        filter: The seccomp filter of who lives there, as the kernel reads it; nothing: there is none.
    """

    command: tuple[str, ...]
    filter: bytes


class Started(NamedTuple):
    """A started process is a child of this one. `pidfd` is the receiver's to close; -1 where there is none."""

    pid: int
    pidfd: int


Answer = Callable[[Started | OSError], None]


class Launcher:
    """Owns the launcher process, which is there from the first order on, and is replaced at once when it ends.

    All methods belong to the event loop's thread, which must be the process's first: its children die with it.

    Args:
        alone: Whether to do without that process, for one child that need not be started quickly.
        jail: What the launcher is to enter, so that its workers are born there.

    Attributes:
        jail: What it has entered, or will; None where it could not, so that each worker needs a bubblewrap of its own.
    """

    def __init__(self, *, alone: bool = False, jail: Jail | None = None) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._channel: socket.socket | None = None
        self._waiting: deque[tuple[Answer, float]] = deque()
        self._overdue: asyncio.TimerHandle | None = None
        self._watched: set[int] = set()
        self._alone = alone or not lifetime.LINUX or not HAS_PIDFD
        self.jail = None if self._alone else jail

    @property
    def pid(self) -> int | None:
        return self._process.pid if self._process is not None else None

    def open(self) -> None:
        """Starts the launcher where there is none now, and waits until it has entered its jail. Raises OSError."""
        if self._alone or self._channel is not None:
            return
        self._channel = channel = self._begin()
        if (failed := _tried(channel, self.jail)) is not None:
            self._do_without(failed)
            return
        channel.setblocking(False)
        asyncio.get_running_loop().add_reader(channel, self._read)
        for pidfd in self._watched:
            self._send(marshal.dumps(None), [pidfd])

    def start(self, order: SpawnRequest, streams: tuple[int, int, int], answer: Answer) -> None:
        """Starts a child whose standard streams are `streams`, which may be closed afterwards.

        `answer` is called once, with the child or with why there is none, never before this has returned.

        Raises:
            OSError: The order cannot be given.
        """
        self.open()
        if self._channel is None:
            asyncio.get_running_loop().call_soon(answer, _start_alone(order, streams))
            return
        self._send(_written(order), [*streams, *order.fds])
        self._waiting.append((answer, time.monotonic()))
        if self._overdue is None:
            self._overdue = asyncio.get_running_loop().call_later(ANSWER_BOUND_SECONDS, self._look_overdue)

    def watch(self, pidfd: int, *, started_here: bool = False) -> None:
        """Has a process killed when this one is gone, whatever it does, until `unwatch`. Raises OSError.

        Args:
            pidfd: Names it.
            started_here: Whether this launcher has started it: only one that takes its place has to be told.
        """
        self._watched.add(pidfd)
        if self._channel is not None and not started_here:
            self._send(marshal.dumps(None), [pidfd])

    def unwatch(self, pidfd: int) -> None:
        """Forgets a process that is gone, and whose `pidfd` is about to be closed."""
        self._watched.discard(pidfd)

    def close(self) -> None:
        """Ends the launcher, and with it whatever it has started that still lives."""
        process, self._process = self._process, None
        if self._overdue is not None:
            self._overdue.cancel()
            self._overdue = None
        if self._channel is not None:
            with contextlib.suppress(RuntimeError):
                asyncio.get_running_loop().remove_reader(self._channel)
            self._channel.close()
            self._channel = None
        if process is not None:
            try:
                process.wait(END_BOUND_SECONDS)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()

    def _begin(self) -> socket.socket:
        """Starts the launcher's process. Raises OSError."""
        ours, its = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with its:
            ours.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SEND_BUFFER_BYTES)
            try:
                self._process = subprocess.Popen(
                    [sys.executable, "-I", "-S", str(Path(launcher.__file__)), str(its.fileno())],
                    env={},
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=subprocess.DEVNULL,
                    pass_fds=[its.fileno()],
                    # It must not go with the host's group: it has something to do then.
                    start_new_session=True,
                )
            except OSError:
                ours.close()
                raise
        return ours

    def _do_without(self, failed: _Failed) -> None:
        """Goes on where this machine refuses the launcher: with another one without a jail, or with none at all."""
        self.close()
        if failed.jail:
            logger.warning("each worker gets a bubblewrap of its own: %s", failed.error)
            self.jail = None
            self.open()
            return
        if failed.error.errno not in (errno.ENOSYS, errno.EINVAL, errno.EPERM):
            raise failed.error
        logger.warning("workers are started without a launcher: %s", failed.error)
        self._alone, self.jail = True, None

    def _send(self, data: bytes, fds: list[int]) -> None:
        assert self._channel is not None
        socket.send_fds(self._channel, [data], fds)

    def _read(self) -> None:
        assert self._channel is not None
        try:
            answer = _received(self._channel)
        except BlockingIOError:
            return
        except OSError as error:
            # It was killed, or has lost its memory: what was ordered last may live, and ends with its input.
            logger.error("the launcher is gone: %s", error)
            waiting, self._waiting = self._waiting, deque()
            self.close()
            for each, _ in waiting:
                each(OSError(errno.EIO, "the launcher is gone"))
            # At once: nobody else ends a worker that means to outlive its host.
            try:
                self.open()
            except OSError as failed:
                logger.error("there is no launcher until the next order: %s", failed)
            return
        each, _ = self._waiting.popleft()
        each(answer)

    def _look_overdue(self) -> None:
        """Ends a launcher's process that does not answer: its orders are answered then, and another takes its place.

        One timer is for all orders, which are answered in their order: most are answered in a millisecond.
        """
        self._overdue = None
        if not self._waiting or self._process is None:
            return
        left = self._waiting[0][1] + ANSWER_BOUND_SECONDS - time.monotonic()
        if left <= 0:
            self._process.kill()
        else:
            self._overdue = asyncio.get_running_loop().call_later(left, self._look_overdue)


class _Failed(NamedTuple):
    """Says what a launcher could not do: enter its jail, or start anything."""

    error: OSError
    jail: bool


def _tried(channel: socket.socket, jail: Jail | None) -> _Failed | None:
    """Has a launcher start something that ends at once, first as it is, then in its jail. Says what it cannot do."""
    channel.settimeout(HELLO_BOUND_SECONDS)
    entering = False
    try:
        _try_start(channel, SpawnRequest(["/"], {}))
        if jail is not None:
            entering = True
            channel.send(marshal.dumps((list(jail.command), jail.filter)))
            answer = _received(channel)
            if isinstance(answer, OSError):
                return _Failed(answer, jail=True)
            _try_start(channel, SpawnRequest(["/"], {}, guarded=True, in_jail=True))
    except TimeoutError:
        return _Failed(OSError(errno.ETIMEDOUT, "the launcher is silent"), entering)
    except OSError as error:
        return _Failed(error, entering)
    return None


def _try_start(channel: socket.socket, order: SpawnRequest) -> None:
    """Has a launcher start a program that ends at once. Raises OSError."""
    nothing = os.open(os.devnull, os.O_RDWR)
    try:
        socket.send_fds(channel, [_written(order)], [nothing] * 3)
        answer = _received(channel)
    finally:
        os.close(nothing)
    if isinstance(answer, OSError):
        raise answer
    os.close(answer.pidfd)
    os.waitpid(answer.pid, 0)


def _written(order: SpawnRequest) -> bytes:
    parent = os.getpid() if order.guarded else 0
    words = (
        list(order.command),
        order.environment,
        parent,
        [0, 1, 2, *order.fds],
        list(order.entries),
        order.group,
        order.in_jail,
    )
    return marshal.dumps(words)


def _received(channel: socket.socket) -> Started | OSError:
    """Returns the launcher's next answer. Raises OSError: it is gone, or has none yet."""
    data, fds, _, _ = socket.recv_fds(channel, _ANSWER_BYTES, 1)
    if not data:
        raise ConnectionResetError(errno.ECONNRESET, "it has ended")
    number = int(marshal.loads(data))
    if number < 0:
        return OSError(-number, os.strerror(-number))
    return Started(number, fds[0] if fds else -1)


def _start_alone(order: SpawnRequest, streams: tuple[int, int, int]) -> Started | OSError:
    """Starts the process of an order from this process. What fails after the fork is the child's exit."""
    if order.entries or order.group:
        return OSError(errno.ENOSYS, "without a launcher no worker can be put into a cgroup of its own")
    command = list(order.command)
    if order.guarded:
        command = lifetime.dying_with_this(command, no_new_privs=True, empty_environment=True)
    try:
        popen = subprocess.Popen(
            command,
            env=order.environment,
            cwd="/",
            stdin=streams[0],
            stdout=streams[1],
            stderr=streams[2],
            start_new_session=True,
            preexec_fn=lifetime.child_setup() if order.guarded else order.preexec,
            pass_fds=order.fds,
        )
    except OSError as error:
        return error
    # Its owner waits for the pid.
    popen.returncode = 0
    if not HAS_PIDFD:
        return Started(popen.pid, -1)
    try:
        return Started(popen.pid, os.pidfd_open(popen.pid))
    except OSError as error:
        # No descriptor left. Nobody would watch over this child.
        os.killpg(popen.pid, signal.SIGKILL)
        os.waitpid(popen.pid, 0)
        return error
