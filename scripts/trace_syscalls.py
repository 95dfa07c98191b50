"""Which system calls workers and the type checker's compiler make, and which of them their lists do not have.

    scripts/trace_syscalls                     the workers of tests that need much, on one core and on all
    scripts/trace_syscalls tests/conformance   the workers of these tests; what is given goes to pytest
    scripts/trace_syscalls --all …             every call, not only those that are not on a list
    scripts/trace_syscalls --check …           exit code 1 if a call is not on its list, or is always refused

For a new Deno: run it without arguments and over the whole suite, look at each call that it prints, put it into
`cellblock_worker/confinement/syscall_lists.py`, and add the version there. Linux only, as root.

A `bwrap` that comes first on the PATH installs one filter more, which asks this process about each call that is not
listed. The answer is always that the call goes on; so nothing is slowed down but what is asked about.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import errno
import fcntl
import os
import platform
import select
import selectors
import socket
import struct
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Generator
from pathlib import Path
from typing import Final, NamedTuple

from cellblock_worker.confinement import bubblewrap, seccomp, syscall_lists
from cellblock_worker.confinement.syscall_lists import NUMBERS

ROOT: Final = Path(__file__).resolve().parents[1]
DEFAULT: Final = [
    "tests/conformance",
    "tests/integration/test_typecheck.py",
    "tests/integration/test_caps.py",
]

LEFT_OUT: Final = ("tests/security/native", "tests/security/test_syscalls.py")
"""A program that is not Deno, and a tracer of its own."""

_RECEIVE: Final = 0xC0502100
_SEND: Final = 0xC0182101
_NOTICE: Final = struct.Struct("=QIIiIQ6Q")
_ANSWER: Final = struct.Struct("=QqiI")
_GO_ON: Final = 1
_PIDFD_OPEN: Final = 434
_PIDFD_GETFD: Final = 438

ARGUMENTS: Final[dict[str, tuple[int, ...]]] = {
    "clone": (0,),
    "prctl": (0,),
    "arch_prctl": (0,),
    "fcntl": (1,),
    "ioctl": (1,),
    "mmap": (2, 3),
    "mprotect": (2,),
    "mremap": (3,),
    "madvise": (2,),
    "futex": (1,),
    "openat": (2,),
    "open": (1,),
    "socketpair": (0, 1),
    "socket": (0, 1),
    "pipe2": (1,),
    "eventfd2": (1,),
    "epoll_create1": (0,),
    "dup3": (2,),
    "memfd_create": (1,),
    "getrandom": (2,),
    "sched_getaffinity": (1,),
    "rt_sigaction": (0,),
    "rt_sigprocmask": (0,),
    "set_robust_list": (1,),
    "rseq": (2,),
    "membarrier": (0,),
    "statx": (2,),
    "faccessat2": (3,),
    "timer_create": (0,),
    "clock_nanosleep": (0,),
    "setitimer": (0,),
    "clone3": (1,),
    "kill": (1,),
    "tgkill": (2,),
    "tkill": (1,),
}
"""The arguments that are told of a call: those that say what it does."""

NULL_OR_NOT: Final = {"prlimit64": 2}
"""Arguments of which is only told whether they are null."""

STARTER: Final = """#!{python} -IS
import ctypes, os, socket, sys
is_tsc = any(word.endswith("/tsc") for word in sys.argv)
if "--bind" in sys.argv or not (is_tsc or {deno!r} in sys.argv):
    # It fills a folder for workers, with no script in it; or is a test's own, with who knows what below.
    os.execv({bwrap!r}, [{bwrap!r}, *sys.argv[1:]])
if "--block-fd" in sys.argv:
    sys.exit("who is to be traced needs a bubblewrap of its own, not a room")
link = socket.socket(socket.AF_UNIX)
link.connect({path!r})
link.sendall(b"tsc " if is_tsc else b"deno")
program = link.recv(1 << 17)
count = len(program) // 8
text = ctypes.create_string_buffer(program, len(program))
class Prog(ctypes.Structure):
    _fields_ = [("len", ctypes.c_ushort), ("filter", ctypes.c_void_p)]
prog = Prog(count, ctypes.addressof(text))
libc = ctypes.CDLL(None, use_errno=True)
spare = os.dup(0)
os.close(spare)
link.sendall(b"%8d" % spare)
libc.prctl(38, 1, 0, 0, 0)
# From here on it may wait for a tracer that is gone: then it ends with what started it.
libc.prctl(1, 9, 0, 0, 0)
if libc.syscall({seccomp}, 1, 8, ctypes.byref(prog)) != spare:
    sys.exit("trace_syscalls: no filter: " + os.strerror(ctypes.get_errno()))
link.recv(1)
link.close()
arguments = sys.argv[1:]
if "--seccomp" in arguments:
    at = arguments.index("--seccomp")
    os.close(int(arguments[at + 1]))
    del arguments[at : at + 2]
os.execv({bwrap!r}, [{bwrap!r}, *arguments])
"""


PROGRAMS: Final[dict[str, syscall_lists.Program]] = {"deno": "deno", "tsc": "tsc"}


class Seen(NamedTuple):
    """A call of one program, by its name and the arguments that matter."""

    program: str
    call: str
    arguments: tuple[int, ...]


DONE_WITHOUT: Final = frozenset(
    {
        Seen("deno", "socket", (1, 0x80801)),
        Seen("deno", "process_vm_readv", ()),
        Seen("tsc", "fanotify_init", ()),
    }
)
"""Has calls that are always refused, and not missed: libc asks a name service (nscd) for its user, Deno reads its own
memory after a panic, and the compiler asks whether it can watch files."""


class Tracer(threading.Thread):
    """Answers the filters of all traced processes, and counts.

    Args:
        path: Of the socket that they come to.
        of_all: Whether it is asked about every call.
    """

    def __init__(self, path: Path, *, of_all: bool) -> None:
        super().__init__(daemon=True)
        self.seen: Counter[Seen] = Counter()
        self.refused: Counter[Seen] = Counter()
        """Counts calls that a worker never gets, by its list or without one, and that were not made before."""

        self.started = 0
        self._of_all = of_all
        self._libc = ctypes.CDLL(None, use_errno=True)
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(str(path))
        self._listening.listen(128)
        self._selector = selectors.DefaultSelector()
        self._selector.register(self._listening, selectors.EVENT_READ)
        column = list(seccomp.ARCHITECTURES).index(platform.machine())
        self._names = {row[column]: name for name, row in NUMBERS.items() if row[column] >= 0}
        self._names |= _header_names()
        self._programs: dict[tuple[int, int], str] = {}

    def run(self) -> None:
        """Serves until the process ends."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is self._listening:
                    self._welcome()
                else:
                    self._answer(key.fd)

    def _welcome(self) -> None:
        link, _ = self._listening.accept()
        # Who was killed meanwhile says nothing.
        with link, contextlib.suppress(OSError, ValueError, KeyError):
            pid = struct.unpack("3i", link.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0]
            program = PROGRAMS[link.recv(4).decode().strip()]
            link.sendall(syscall_lists.asking_program(program, of_all=self._of_all))
            there = int(link.recv(8))
            while not _is_listener(Path(f"/proc/{pid}/fd/{there}")):
                time.sleep(0.0005)
            pidfd = self._libc.syscall(_PIDFD_OPEN, pid, 0)
            listener = self._libc.syscall(_PIDFD_GETFD, pidfd, there, 0)
            os.close(pidfd)
            if listener < 0:
                sys.exit(f"trace_syscalls: no listener: {os.strerror(ctypes.get_errno())}")
            self._selector.register(listener, selectors.EVENT_READ)
            self.started += 1
            link.sendall(b"+")

    def _answer(self, listener: int) -> None:
        notice = bytearray(_NOTICE.size)
        try:
            fcntl.ioctl(listener, _RECEIVE, notice)
        except FileNotFoundError:
            # Who asked was killed meanwhile, or nobody is left who could ask.
            poll = select.poll()
            poll.register(listener, select.POLLIN)
            if any(events & select.POLLHUP for _, events in poll.poll(0)):
                self._selector.unregister(listener)
                os.close(listener)
            return
        ident, pid, _, number, _, _, *arguments = _NOTICE.unpack(notice)
        refused = self._judge(listener, pid, number, arguments)
        with contextlib.suppress(FileNotFoundError):
            fcntl.ioctl(listener, _SEND, _ANSWER.pack(ident, 0, -refused, 0 if refused else _GO_ON))

    def _judge(self, listener: int, pid: int, number: int, arguments: list[int]) -> int:
        """Counts a call. Gives the errno that it always gets, or 0."""
        program = self._programs.get((listener, pid))
        if program is None:
            try:
                program = Path(f"/proc/{pid}/exe").readlink().name
            except OSError:
                return 0
            if program not in PROGRAMS:
                return 0
            self._programs[listener, pid] = program
        name = self._names.get(number, str(number))
        told = tuple(arguments[index] & 0xFFFFFFFF for index in ARGUMENTS.get(name, ()))
        if name in NULL_OR_NOT:
            told = (int(arguments[NULL_OR_NOT[name]] != 0),)
        call = Seen(program, name, told)
        if name in syscall_lists.REFUSED:
            if call not in DONE_WITHOUT:
                self.refused[call] += 1
            return errno.EPERM
        if name in syscall_lists.OTHER_ERRNO:
            # What it does then is known.
            return syscall_lists.OTHER_ERRNO[name]
        self.seen[call] += 1
        return 0


def _is_listener(descriptor: Path) -> bool:
    """Whether it has been made already. Raises OSError once its process is gone."""
    try:
        return str(descriptor.readlink()).startswith("anon_inode:seccomp")
    except FileNotFoundError:
        descriptor.parent.stat()
        return False


def _header_names() -> dict[int, str]:
    """The machine's calls by number, if it has the headers."""
    done = subprocess.run(
        ["cc", "-E", "-dM", "-include", "sys/syscall.h", "-"],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
    )
    rows = (line.split() for line in done.stdout.splitlines() if line.startswith("#define __NR_"))
    return {int(row[2]): row[1].removeprefix("__NR_") for row in rows if row[2].isdecimal()}


@contextlib.contextmanager
def tracing(*, of_all: bool = False) -> Generator[tuple[Tracer, dict[str, str]]]:
    """Traces what the caller starts with the environment that this gives."""
    real = bubblewrap.find_binary()
    if real is None or not sys.platform.startswith("linux"):
        sys.exit("trace_syscalls: there is no bubblewrap here")
    with tempfile.TemporaryDirectory(prefix="cellblock-trace-") as name:
        folder = Path(name)
        tracer = Tracer(folder / "socket", of_all=of_all)
        tracer.start()
        starter = folder / "bwrap"
        number = {"x86_64": 317, "aarch64": 277}[platform.machine()]
        text = STARTER.format(
            python=sys.executable,
            path=str(folder / "socket"),
            seccomp=number,
            bwrap=real,
            deno=bubblewrap.DENO_INSIDE,
        )
        starter.write_text(text)
        starter.chmod(0o755)
        yield tracer, {**os.environ, "PATH": f"{folder}{os.pathsep}{os.environ['PATH']}"}


def trace(arguments: list[str], *, of_all: bool, one_core: bool) -> tuple[Counter[Seen], Counter[Seen]]:
    """What the workers of a run of pytest call, and what of it is refused; its own verdict is only told."""
    left_out = [f"--ignore={name}" for name in LEFT_OUT]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *left_out, *arguments]
    core = min(os.sched_getaffinity(0))
    with tracing(of_all=of_all) as (tracer, environment):
        started = subprocess.Popen(command, env=environment, cwd=ROOT, stdout=subprocess.PIPE, text=True)
        if one_core:
            os.sched_setaffinity(started.pid, {core})
        said, _ = started.communicate()
        cores = "one core" if one_core else f"{os.cpu_count()} cores"
        print(f"on {cores}: {said.strip().splitlines()[-1] if said.strip() else 'pytest said nothing'}")
        return tracer.seen, tracer.refused


def main() -> int:
    """Traces, and prints what was seen."""
    parser = argparse.ArgumentParser(
        prog="scripts/trace_syscalls", description=(__doc__ or "").partition("\n")[0]
    )
    parser.add_argument(
        "--all", action="store_true", help="every call, not only those that are not on a list"
    )
    parser.add_argument("--check", action="store_true", help="exit code 1 if a call is not on its list")
    parser.add_argument("--cores", choices=("one", "all", "both"), default="both", help="(default both)")
    options, arguments = parser.parse_known_args()
    if os.geteuid() != 0:
        parser.error("only root may look into the processes that it traces")
    seen: Counter[Seen] = Counter()
    refused: Counter[Seen] = Counter()
    for one_core in {"one": [True], "all": [False], "both": [False, True]}[options.cores]:
        asked, never = trace(arguments or DEFAULT, of_all=options.all, one_core=one_core)
        seen += asked
        refused += never
    for found, why in ((seen, ""), (refused, "  always refused")):
        for (program, call, told), count in sorted(found.items()):
            shown = ", ".join(map(hex, told))
            print(f"{count:9} {program:5} {call}({shown}){why}")
    if not options.all:
        missing = len(seen) + len(refused)
        print(f"{missing} calls that are not on a list" if missing else "all calls are on their list")
    return int(options.check and bool(seen or refused))


if __name__ == "__main__":
    sys.exit(main())
