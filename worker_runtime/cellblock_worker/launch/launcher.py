"""The launcher is a small process beside a host that starts its workers. Run as a file, with nothing of the package.

For each order that comes through its socket it makes one child of the host's (CLONE_PARENT) in the child's own cgroup,
and sends back a pidfd that was made with it. Under v2 the child is born there (CLONE_INTO_CGROUP); under v1 it moves
itself before it becomes another program: a thread that moves itself alone takes no lock over the machine. The launcher
outlives the host for a moment, and ends all that is left of its workers: one can take back its PDEATHSIG, but not this.

It may be told to enter a jail: the user and mount namespaces, root, network and host name that bubblewrap makes once,
and that all workers of a host then share. Each of them gets its own pid, ipc and uts namespaces at its birth, and gives
up every capability before it becomes the program. None can be had by a program there: the launcher has emptied its own
bounding set, which they have from it.

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

    SpawnRequest = tuple[list[str], dict[str, str], int, list[int], list[str], str, bool]
    """Command line, environment, the parent whose death is to be its own (or 0), the places of its descriptors, files
    of v1 groups that take a thread, folder of the v2 group to be born in (or nothing), whether it is a worker in the
    jail."""

    Jail = tuple[list[str], bytes]
    """Command line of bubblewrap without a program, and the seccomp filter of those who live in the jail (or
    nothing)."""

MAX_ORDER_BYTES: Final = 64 * 1024
"""Caps an order; a command line has about 4 KB. For twice as much, the C library would ask the kernel each time."""

MAX_FDS: Final = 16

LOOK_ORDERS: Final = 16
"""Sets after how many orders the launcher closes what it holds of processes that are gone: to ask for each at each
order would take longer the more workers live."""

_FD_BYTES: Final = 4

_CLONE_PIDFD: Final = 0x1000
_CLONE_PARENT: Final = 0x8000
_CLONE_INTO_CGROUP: Final = 0x200000000
_OWN_NAMESPACES: Final = 0x04000000 | 0x08000000 | 0x20000000
"""Names the namespaces that workers in a jail do not share: CLONE_NEWUTS, NEWIPC and NEWPID."""

_NETWORK_OPTION: Final = "--unshare-net"
_NO_PROGRAM: Final = "/worker/no-program"
"""Names a program that does not exist: bubblewrap's failure to execute it says that the root is as it is to be."""

_NO_SUCH_PROGRAM: Final = b"execvp " + _NO_PROGRAM.encode()
_INFO_BYTES: Final = 4096

# Numbers of Linux: the module `signal` would cost half a megabyte.
_SIGKILL: Final = 9
_SIGCHLD: Final = 17
_IGNORED_BY_PYTHON: Final = (13, 25)
"""Names the signals that Python ignores: SIGPIPE and SIGXFSZ."""

_PR_SET_PDEATHSIG: Final = 1
_PR_SET_SECCOMP: Final = 22
_PR_CAPBSET_DROP: Final = 24
_PR_SET_NO_NEW_PRIVS: Final = 38
_PR_CAP_AMBIENT: Final = 47
_PR_CAP_AMBIENT_CLEAR_ALL: Final = 4
_SECCOMP_MODE_FILTER: Final = 2
_CAPABILITY_VERSION_3: Final = 0x20080522
_FILTER_OP_BYTES: Final = 8

_CLONE: Final = {"x86_64": 56, "aarch64": 220}.get(os.uname().machine, -1)
_CLONE3: Final = 435
_PIDFD_SEND_SIGNAL: Final = 424

_NOT_STARTED: Final = 127
"""Names the exit code of a child that has not become another program, as a shell's."""

# PyDLL, unlike CDLL, keeps Python's lock meanwhile, and a child needs it.
_libc: Final = ctypes.PyDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


_machine: Final = os.open("/", os.O_PATH | os.O_DIRECTORY)
"""Holds the machine's root, in which the cgroups are: a jail has none."""


class Filter(ctypes.Structure):
    """A seccomp filter is an array of instructions (`struct sock_fprog`)."""

    _fields_ = (("length", ctypes.c_ushort), ("program", ctypes.c_char_p))


def clone(into: int | None, namespaces: int = 0) -> tuple[int, int]:
    """Forks as fork(2) does, for a child of this process's parent. Gives its pid (0 in the child itself) and a pidfd.

    Args:
        into: Descriptor of the v2 cgroup that it is to be born in; None: this process's own.
        namespaces: Flags of clone(2) for namespaces of its own.

    Raises:
        OSError: It cannot be made.
    """
    pidfd = ctypes.c_int(-1)
    none = ctypes.c_ulong(0)
    if into is None:
        flags = ctypes.c_ulong(_CLONE_PARENT | _CLONE_PIDFD | _SIGCHLD | namespaces)
        pid = _libc.syscall(ctypes.c_long(_CLONE), flags, none, ctypes.byref(pidfd), none, none)
    else:
        # struct clone_args: flags, pidfd, child_tid, parent_tid, exit_signal (that of the caller, with CLONE_PARENT),
        # stack, stack_size, tls, set_tid, set_tid_size, cgroup.
        wanted = _CLONE_PARENT | _CLONE_PIDFD | _CLONE_INTO_CGROUP | namespaces
        asked = (ctypes.c_uint64 * 11)(wanted, ctypes.addressof(pidfd), 0, 0, 0, 0, 0, 0, 0, 0, into)
        size = ctypes.c_size_t(ctypes.sizeof(asked))
        pid = _libc.syscall(ctypes.c_long(_CLONE3), ctypes.byref(asked), size)
    if pid < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    return pid, pidfd.value


def clone_into(group: str, namespaces: int = 0) -> tuple[int, int, bool]:
    """Forks as `clone` does, into the v2 cgroup of this path; also gives whether the child is there already. Raises
    OSError.
    """
    folder = os.open(_below(group), os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=_machine)
    try:
        return *clone(folder, namespaces), True
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
    finally:
        os.close(folder)
    # Some containers' filters let nobody call clone3.
    return *clone(None, namespaces), False


def enter(argv: list[str]) -> None:
    """Moves this process into the namespaces and the root that bubblewrap makes, for good. Raises OSError.

    bubblewrap is held back until its namespaces are in hand, and has made the root when it fails to find its program.
    """
    info, its_info = os.pipe()
    its_go, go = os.pipe()
    complaints, its_complaints = os.pipe()
    maker = os.fork()
    if maker == 0:
        try:
            os.dup2(its_complaints, 2)
            for fd in (its_info, its_go):
                os.set_inheritable(fd, True)
            held = ["--info-fd", str(its_info), "--block-fd", str(its_go)]
            os.execve(argv[0], [argv[0], *held, *argv[1:], _NO_PROGRAM], {})
        finally:
            os._exit(_NOT_STARTED)
    for fd in (its_info, its_go, its_complaints):
        os.close(fd)
    names = ["user", "mnt", "uts", *(["net"] if _NETWORK_OPTION in argv else [])]
    namespaces: list[int] = []
    try:
        pid = _number_behind(b'"child-pid":', os.read(info, _INFO_BYTES))
        namespaces = [os.open(f"/proc/{pid}/ns/{name}", os.O_RDONLY) for name in names]
    finally:
        os.close(go)
        said = b""
        while more := os.read(complaints, _INFO_BYTES):
            said += more
        # Not before: there is more of it, and who writes to nobody ends.
        for fd in (info, complaints):
            os.close(fd)
        os.waitpid(maker, 0)
    if _NO_SUCH_PROGRAM not in said:
        raise OSError(errno.EPERM, said.decode("utf-8", "replace"))
    for fd in namespaces:
        if _libc.setns(fd, 0) != 0:
            raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
        os.close(fd)
    # Entering a user namespace has filled it.
    empty_bounding_set()


def _number_behind(word: bytes, text: bytes) -> int:
    """Finds a number in a text. Raises OSError: there is none."""
    digits = text.partition(word)[2].split(b",")[0].strip(b" \n}")
    if not digits.isdigit():
        raise OSError(errno.EPERM, "bubblewrap makes no namespaces")
    return int(digits)


def empty_bounding_set() -> None:
    """Takes from all programs that this process and its children become every capability (capabilities(7)). What this
    process has, it keeps. Raises OSError.
    """
    number = 0
    while _libc.prctl(_PR_CAPBSET_DROP, number, 0, 0, 0) == 0:
        number += 1
    if ctypes.get_errno() != errno.EINVAL:
        raise OSError(ctypes.get_errno(), "its bounding set cannot be emptied")


def give_up_rights() -> None:
    """Takes every capability that a child has from it, for good; its bounding set is empty. Raises OSError."""
    _libc.prctl(_PR_CAP_AMBIENT, _PR_CAP_AMBIENT_CLEAR_ALL, 0, 0, 0)
    # The effective, permitted and inheritable sets, in two halves.
    header, none = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION_3, 0), (ctypes.c_uint32 * 6)()
    if _libc.capset(header, none) != 0:
        raise OSError(ctypes.get_errno(), "its capabilities cannot be given up")


def _below(path: str) -> str:
    return path.lstrip("/")


def become(order: SpawnRequest, fds: list[int], program: Filter | None) -> None:
    """Enters the groups in a child, puts the descriptors in their places, and becomes the program. Raises OSError."""
    argv, environment, parent, targets, entries, _, in_jail = order
    for entry in entries:
        group = os.open(_below(entry), os.O_WRONLY, dir_fd=_machine)
        # 0 is the writer itself, whatever its pid is outside of its namespace.
        os.write(group, b"0")
        os.close(group)
    os.setsid()
    if in_jail:
        give_up_rights()
    if parent:
        _libc.prctl(_PR_SET_PDEATHSIG, _SIGKILL, 0, 0, 0)
        _libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0)
        # The first process of a namespace sees no parent; if that is gone, this launcher ends the child.
        if os.getppid() != (0 if in_jail else parent):
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
    # The last call but one: what is above is on no list.
    if (
        in_jail
        and program is not None
        and _libc.prctl(_PR_SET_SECCOMP, _SECCOMP_MODE_FILTER, ctypes.byref(program), 0, 0)
    ):
        raise OSError(ctypes.get_errno(), "its system calls cannot be filtered")
    os.execve(argv[0], argv, environment)


def start(order: SpawnRequest, fds: list[int], program: Filter | None) -> tuple[int, int]:
    """Starts the process of one order. Gives pid and pidfd. Raises OSError."""
    argv, _, _, _, entries, group, in_jail = order
    namespaces = _OWN_NAMESPACES if in_jail else 0
    pid, pidfd, inside = clone_into(group, namespaces) if group else (*clone(None, namespaces), True)
    if pid == 0:
        try:
            if not inside:
                entries.append(f"{group}/cgroup.procs")
            become(order, fds, program)
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
    """Carries out orders until the host is gone. One that is None hands over a pidfd to watch over, and one of two
    parts names the jail to enter."""
    living: list[int] = []
    orders = 0
    program: Filter | None = None
    has_room = False
    space = _socket.CMSG_SPACE(MAX_FDS * _FD_BYTES)
    while True:
        data, ancillary, _, _ = channel.recvmsg(MAX_ORDER_BYTES, space, _socket.MSG_CMSG_CLOEXEC)
        if not data:
            break
        fds = [fd for _, _, packed in ancillary for fd in memoryview(packed).cast("i")]
        order = marshal.loads(data)
        orders += 1
        if orders % LOOK_ORDERS == 0:
            living = signal_all(living, 0)
        if order is None:
            living += fds
            continue
        given: list[tuple[int, int, bytes]] = []
        try:
            if len(order) == 2:
                argv, instructions = order
                enter(argv)
                program = (
                    Filter(len(instructions) // _FILTER_OP_BYTES, instructions) if instructions else None
                )
                has_room = True
                channel.sendmsg([marshal.dumps(0)])
                continue
            if order[-1] and not has_room:
                raise OSError(errno.EPERM, "there is no jail")
            answer, pidfd = start(order, fds, program)
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
