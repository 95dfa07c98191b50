"""The launcher is a small process beside a host that starts its workers. Run as a file, with nothing of the package.

For each order that comes through its socket it makes one child of the host's (CLONE_PARENT) in the child's own cgroup,
and sends back a pidfd that was made with it. Under v2 the child is born there (CLONE_INTO_CGROUP); under v1 it moves
itself before it becomes another program: a thread that moves itself alone takes no lock over the machine. The launcher
outlives the host for a moment, and ends all that is left of its workers: one can take back its PDEATHSIG, but not this.

It imports little, for the sake of its memory, and has one thread: a child is a copy of it until its exec.
"""

from __future__ import annotations

import _socket
import ctypes
import errno
import marshal
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    # A megabyte by itself.
    from typing import Final

    Order = tuple[list[str], dict[str, str], int, list[int], list[str], str]
    """Command line, environment, the parent whose death is to be its own (or 0), the places of its descriptors, files
    of v1 groups that take a thread, folder of the v2 group to be born in (or nothing)."""

MAX_ORDER_BYTES: Final = 128 * 1024
"""Caps an order; a command line has about 4 KB."""

MAX_FDS: Final = 16

_FD_BYTES: Final = 4

_CLONE_PIDFD: Final = 0x1000
_CLONE_PARENT: Final = 0x8000
_CLONE_INTO_CGROUP: Final = 0x200000000

# Numbers of Linux: the module `signal` would cost half a megabyte.
_SIGKILL: Final = 9
_SIGCHLD: Final = 17
_IGNORED_BY_PYTHON: Final = (13, 25)
"""Names SIGPIPE and SIGXFSZ."""

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_NO_NEW_PRIVS: Final = 38

_CLONE: Final = {"x86_64": 56, "aarch64": 220}
_CLONE3: Final = 435
_PIDFD_SEND_SIGNAL: Final = 424

_NOT_STARTED: Final = 127
"""Is the exit code of a child that has not become another program, as a shell's."""

# PyDLL, unlike CDLL, keeps Python's lock meanwhile, and a child needs it.
_libc: Final = ctypes.PyDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


def clone(into: int | None) -> tuple[int, int]:
    """Forks as fork(2) does, for a child of this process's parent. Gives its pid (0 in the child itself) and a pidfd.

    Args:
        into: Descriptor of the v2 cgroup that it is to be born in; None: this process's own.

    Raises:
        OSError: It cannot be made.
    """
    pidfd = ctypes.c_int(-1)
    none = ctypes.c_ulong(0)
    if into is None:
        flags = ctypes.c_ulong(_CLONE_PARENT | _CLONE_PIDFD | _SIGCHLD)
        pid = _libc.syscall(
            ctypes.c_long(_CLONE.get(os.uname().machine, -1)), flags, none, ctypes.byref(pidfd), none, none
        )
    else:
        # struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal (that of the caller, with CLONE_PARENT),
        # stack, stack_size, tls, set_tid, set_tid_size, cgroup.
        wanted = _CLONE_PARENT | _CLONE_PIDFD | _CLONE_INTO_CGROUP
        asked = (ctypes.c_uint64 * 11)(wanted, ctypes.addressof(pidfd), 0, 0, 0, 0, 0, 0, 0, 0, into)
        size = ctypes.c_size_t(ctypes.sizeof(asked))
        pid = _libc.syscall(ctypes.c_long(_CLONE3), ctypes.byref(asked), size)
    if pid < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return pid, pidfd.value


def clone_into(group: str) -> tuple[int, int, bool]:
    """Forks as `clone` does, into the v2 cgroup of this path; also gives whether the child is there already. Raises
    OSError.
    """
    folder = os.open(group, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        return *clone(folder), True
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
    finally:
        os.close(folder)
    # Some containers' filters let nobody call clone3.
    return *clone(None), False


def become(order: Order, fds: list[int]) -> None:
    """Enters the groups in a child, puts the descriptors in their places, and becomes the program. Raises OSError."""
    argv, environment, parent, targets, entries, _ = order
    for entry in entries:
        group = os.open(entry, os.O_WRONLY)
        # 0 is the writer itself, whatever its pid is outside of its namespace.
        os.write(group, b"0")
        os.close(group)
    os.setsid()
    if parent:
        _libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
        _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        if os.getppid() != parent:
            os._exit(_NOT_STARTED)
    for number in _IGNORED_BY_PYTHON:
        _libc.signal(number, None)
    clear: list[int] = []
    for fd in fds:
        # None may lie where another belongs.
        while fd in targets:
            fd = os.dup(fd)
        clear.append(fd)
    for fd, target in zip(clear, targets, strict=True):
        os.dup2(fd, target)
    os.chdir("/")
    os.execve(argv[0], argv, environment)


def start(order: Order, fds: list[int]) -> tuple[int, int]:
    """Carries out one order. Gives pid and pidfd. Raises OSError."""
    argv, _, _, _, entries, group = order
    pid, pidfd, inside = clone_into(group) if group else (*clone(None), True)
    if pid == 0:
        try:
            if not inside:
                entries.append(f"{group}/cgroup.procs")
            become(order, fds)
        except OSError as error:
            # The third is its stderr.
            os.write(fds[2], f"{argv[0]} cannot be started: {error}".encode())
        finally:
            os._exit(_NOT_STARTED)
    return pid, pidfd


def signal_all(pidfds: list[int], number: int) -> list[int]:
    """Sends a signal to each process, and gives back the pidfds of those that are there; the others are closed."""
    left: list[int] = []
    none = ctypes.c_ulong(0)
    for pidfd in pidfds:
        call = ctypes.c_long(_PIDFD_SEND_SIGNAL), ctypes.c_long(pidfd), ctypes.c_long(number)
        if _libc.syscall(*call, none, none) == 0:
            left.append(pidfd)
        else:
            os.close(pidfd)
    return left


def serve(channel: _socket.socket) -> None:
    """Carries out orders until the host is gone. One that is None hands over a pidfd to watch over."""
    living: list[int] = []
    space = _socket.CMSG_SPACE(MAX_FDS * _FD_BYTES)
    while True:
        data, ancillary, _, _ = channel.recvmsg(MAX_ORDER_BYTES, space, _socket.MSG_CMSG_CLOEXEC)
        if not data:
            break
        fds = [fd for _, _, packed in ancillary for fd in memoryview(packed).cast("i")]
        order = marshal.loads(data)
        living = signal_all(living, 0)
        if order is None:
            living += fds
            continue
        given: list[tuple[int, int, bytes]] = []
        try:
            answer, pidfd = start(order, fds)
        except OSError as error:
            answer = -(error.errno or errno.EIO)
        else:
            living.append(pidfd)
            given = [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, pidfd.to_bytes(_FD_BYTES, sys.byteorder))]
        for fd in fds:
            os.close(fd)
        channel.sendmsg([marshal.dumps(answer)], given)
    signal_all(living, _SIGKILL)


if __name__ == "__main__":
    try:
        # No child may have it: it would be its host's, and would keep the host's end open.
        os.set_inheritable(int(sys.argv[1]), False)
        serve(_socket.socket(fileno=int(sys.argv[1])))
    finally:
        # Nothing is left to tidy up, and the host waits for the exit.
        os._exit(0)
