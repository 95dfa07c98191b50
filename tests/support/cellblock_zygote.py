"""`cellblock` for many commands in a row: one process that has imported it, and forks for each.

Python's start and Cellblock's imports are most of what a short command costs, and tests start hundreds. The fork runs
`cellblock.app.cli.main` with the caller's arguments, folder, environment and open files, as the console script does, in
a session of its own; it begins with random numbers, streams and signals of its own. What it shares with its siblings or
lacks: the hash seed and `sys.flags`; its caller's limits, terminal and group; its words and environment in `/proc`; an
interpreter that takes its modules apart at the end. Tests of those, of how a process begins and dies and of what is
below it start the console script, `entries.CELLBLOCK`; `git grep CELLBLOCK tests` shows them. What is said here is
tested in test_cli_streams.py.

Servers that tests write with the MCP SDK take as long to import it; they are forked, too. So are the worker hosts of
forked commands and, in tests/integration and tests/unit/broker, of brokers in this process, but for tests marked
`real_host`: a host's imports are half of what its start costs. A forked host is no child of its broker's; the lifeline
alone ends it. It takes over what the zygote has found out about bubblewrap and makes no self-test: those of
tests/conformance, tests/security and tests/unit/worker_runtime make theirs.

    forked_cellblock()                     is the program for tests: a caller of this process's own zygote
    forked_python()                        is the same for `-I FILE`, `-m MODULE` and `-c CODE`, with the SDK imported
    started(ARGUMENT...)                   starts one as asyncio does, with the pid of the command itself
    fork_hosts(True)                       has brokers of this process fork their hosts
    with_constants({"MODULE.NAME": 1})     is the environment for one with other constants than the product's
    python cellblock_zygote.py SOCKET      serves; says "ready" on stdout
    python -IS caller.py ARGUMENT...       is `cellblock` (`install` writes it). It ends as the command does and passes
                                           signals on; where it is killed, so is the command
"""

import asyncio
import atexit
import contextlib
import fcntl
import functools
import gc
import importlib
import json
import marshal
import os
import runpy
import selectors
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any, NoReturn

PRELOADED = (
    "cellblock.app.cli.main",
    "cellblock.app.cli.recordings",
    "cellblock.app.cli.serve_http",
    "cellblock.app.broker",
    "cellblock.app.cli.doctor",
    "cellblock.serve.mcp.mcp_server",
    "cellblock.serve.http.server",
    "cellblock.app.cli.auth",
    "cellblock.app.cli.tools",
    "cellblock.app.config.named_secrets",
    "cellblock.base.settings.problems",
    "cellblock.record.kept",
    "cellblock.record.parked_runs",
    "cellblock.serve.mcp.first_reference",
    "cellblock.serve.mcp.proxied_resources",
    "cellblock.serve.mcp.run_tool",
    "cellblock.serve.mcp.tasks",
    "cellblock.types.lookup",
    "cellblock.types.typescript",
    "cellblock.run.executor",
    "cellblock.types.learning.outputs",
    "cellblock.types.check.checker",
    "cellblock.tools.upstream.auth.login",
    "cellblock.tools.upstream.registry",
    "cellblock.tools.upstream.session",
    "cellblock.pool.start",
    "cellblock_worker.__main__",
    # Of both, and of the servers.
    "anyio._backends._asyncio",
    "mcp.server.auth.routes",
    "mcp.server.mcpserver",
    "mcp.server.sse",
    "mcp.server.stdio",
    "mcp.server.subscriptions",
    "uvicorn",
)

CONSOLE_SCRIPT = Path(sys.executable).parent / "cellblock"

CONSTANTS = "CELLBLOCK_TEST_CONSTANTS"
"""The variable with the constants of `with_constants`; servers that the command starts do not see it."""

SHARED = "CELLBLOCK_TEST_ZYGOTE"
"""The variable with the folder of one that several processes use: each would take 2 s of CPU to begin."""

BOUND_SECONDS = 60.0
"""Longest wait for the other side of a connection, and for commands that are told to end; each takes milliseconds."""

MAX_FILES = 250
"""The kernel passes 253 descriptors at once."""

PASSED_ON = tuple(
    map(int, (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1, signal.SIGUSR2, signal.SIGWINCH))
)

# Only modules that are compiled into Python: `socket` and `json` would take longer than all the rest.
CALLER = """#!{python} -IS
import _signal, _socket, array, marshal, posix, sys
files = []
for name in posix.listdir("/dev/fd"):
    try:
        posix.fstat(int(name))
    except OSError:
        continue
    files.append(int(name))
ends = _socket.socket(_socket.AF_UNIX, _socket.SOCK_STREAM)
ends.connect({path!r})
umask = posix.umask(0)
posix.umask(umask)
told = marshal.dumps(({kind!r}, posix.getpid(), files, umask, posix.getcwdb(), sys.argv[1:], dict(posix.environ)))
ends.sendmsg([len(told).to_bytes(4, "big")], [(_socket.SOL_SOCKET, _socket.SCM_RIGHTS, array.array("i", files))])
ends.sendall(told)
for file in files:
    posix.close(file)
said = b""
def line(number):
    global said
    while said.count(b"\\n") <= number and (more := ends.recv(64)):
        said += more
    return int(said.split(b"\\n")[number] or 70)
pid = line(0)
for number in {signals}:
    _signal.signal(number, lambda number, _: posix.kill(pid, number))
code = line(1)
if code < 0:
    if -code != _signal.SIGKILL:
        _signal.signal(-code, _signal.SIG_DFL)
    posix.kill(posix.getpid(), -code)
posix._exit(code)
"""


def install(folder: Path, path: Path, name: str = "cellblock") -> Path:
    """Writes the caller, `cellblock` or `python`, into a folder for PATH."""
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / name
    words = {"python": sys.executable, "path": str(path), "kind": name.encode(), "signals": PASSED_ON}
    file.write_text(CALLER.format(**words), encoding="utf-8")
    file.chmod(0o755)
    return file


@contextlib.contextmanager
def zygote(path: Path, *before: str) -> Iterator[subprocess.Popen[str]]:
    """Runs one; `before` are the words in front of the program, as bubblewrap's. Afterwards it is gone."""
    words = [*before, sys.executable, __file__, str(path)]
    # The end of its stdin is its end, so that it dies with the tests whatever happens.
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout.readline() == "ready\n", f"{words} does not start"
        yield process


_begun_by: Path | None = None
_tried: Any = None
"""What the zygote has found out about bubblewrap."""


def _own_zygote() -> Path:
    """The folder of the zygote that has forked this process, or else of its own."""
    return _begun_by or _started()


@functools.cache
def _started() -> Path:
    """That of one for all processes of a test run, or else of one that starts at the first call and ends with this
    process."""
    if shared := os.environ.get(SHARED):
        return Path(shared)
    stack = contextlib.ExitStack()
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="cb-", dir="/tmp")))
    stack.enter_context(zygote(folder / "s"))
    atexit.register(stack.close)
    for name in ("cellblock", "python"):
        install(folder, folder / "s", name)
    # A server's command is the same in all processes.
    os.environ[SHARED] = str(folder)
    return folder


def forked_cellblock() -> Path:
    """The command `cellblock`, for what it does."""
    return _own_zygote() / "cellblock"


def forked_python() -> Path:
    """Python, for programs with the MCP SDK or the embedding API."""
    return _own_zygote() / "python"


class Command:
    """A command that the zygote has started: asyncio's Process, with the command's own pid."""

    def __init__(self, process: asyncio.subprocess.Process) -> None:
        self._process = process

    @functools.cached_property
    def pid(self) -> int:
        return pid_of(self._process.pid)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._process, name)

    def send_signal(self, number: int) -> None:
        if self._process.returncode is None:
            # It may have ended, and the zygote be about to say so.
            with contextlib.suppress(ProcessLookupError):
                os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


async def started(*arguments: object, program: Path | None = None, **options: Any) -> Command:
    """Starts `cellblock` or the other one; the options are those of `asyncio.create_subprocess_exec`."""
    words = (program or forked_cellblock(), *map(str, arguments))
    return Command(await asyncio.create_subprocess_exec(*words, **options))


def with_constants(constants: Mapping[str, Any]) -> dict[str, str]:
    """This process's environment, and constants by `module.NAME`."""
    return {**os.environ, CONSTANTS: json.dumps(dict(constants))}


def pid_of(caller: int) -> int:
    """The pid of the command of a caller, a process that was started as one of the two programs."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(BOUND_SECONDS)
        asking.connect(str(_own_zygote() / "s"))
        told = marshal.dumps(caller)
        asking.sendall(len(told).to_bytes(4, "big") + told)
        return int(asking.recv(64))


def fork_hosts(yes: bool) -> None:
    """Has the brokers of this process start their worker hosts by a fork, or as users' brokers do."""
    local_host, spawning = map(
        importlib.import_module, ("cellblock.pool.local_host", "cellblock_worker.launch.spawning")
    )

    async def forked(_python: str, *words: str, **options: Any) -> Command:
        program = await asyncio.to_thread(forked_python)
        return Command(await spawning.spawn(str(program), *words, **options))

    local_host.spawn = forked if yes else spawning.spawn


# ---- the zygote's own process ----------------------------------------------------------------------------------------


@dataclass
class Order:
    """What a caller wants run."""

    program: bytes
    caller: int
    numbers: list[int]
    """The descriptors that the caller had."""
    umask: int
    folder: bytes
    arguments: list[str]
    environment: dict[bytes, bytes]
    here: list[int]
    """What the descriptors are here."""

    def carry_out(self) -> int:
        """Runs the command in this process, as if it had begun here. Returns the exit code."""
        above = max(*self.numbers, *self.here, 2) + 1
        moved = {
            file: fcntl.fcntl(here, fcntl.F_DUPFD, above)
            for file, here in zip(self.numbers, self.here, strict=True)
        }
        for here in self.here:
            os.close(here)
        for file in (0, 1, 2):
            if file not in moved:
                os.close(file)
        for file, here in moved.items():
            os.dup2(here, file)
            os.close(here)
        os.chdir(self.folder)
        os.umask(self.umask)
        os.environb.clear()
        os.environb.update(self.environment)
        time.tzset()
        sys.stdin = sys.__stdin__ = self._stream(0, "r", "strict")
        sys.stdout = sys.__stdout__ = self._stream(1, "w", "strict")
        sys.stderr = sys.__stderr__ = self._stream(2, "w", "backslashreplace")
        sys.path[1:1] = filter(None, os.environ.get("PYTHONPATH", "").split(os.pathsep))
        if self.program == b"python":
            return run_python(*self.arguments)
        sys.argv = [str(CONSOLE_SCRIPT), *self.arguments]
        for name, value in json.loads(os.environ.pop(CONSTANTS, "{}")).items():
            module, _, constant = name.rpartition(".")
            assert hasattr(importlib.import_module(module), constant), name
            setattr(importlib.import_module(module), constant, value)
        # One that serves in a network of its own has installed no such program.
        fork_hosts(forked_python().exists())
        from cellblock.app.cli.main import main

        return main()

    def _stream(self, file: int, mode: str, errors: str) -> Any:
        if file not in self.numbers:
            return None
        by_line = file == 2 or os.isatty(file)
        return open(file, mode, 1 if by_line else -1, errors=errors, closefd=False)


class Zygote:
    """Forks for each caller until stdin ends."""

    def __init__(self, path: str) -> None:
        self._listening = socket.socket(socket.AF_UNIX)
        self._listening.bind(path)
        self._listening.listen(64)
        self._woken, self._wakes = socket.socketpair()
        self._wakes.setblocking(False)
        self._selector = selectors.DefaultSelector()
        for one in (self._listening, self._woken, sys.stdin):
            self._selector.register(one, selectors.EVENT_READ)
        self._callers: dict[int, socket.socket] = {}
        """Those of the commands that run, by the commands' pids."""
        self._pids: dict[int, tuple[int, str | None]] = {}
        """The pids of all commands by their callers', and when the caller began: the system gives its pid to another
        before a suite is over."""
        self._asking: dict[int, socket.socket] = {}
        """Who has asked before the command was there, by the callers' pids."""
        signal.signal(signal.SIGCHLD, lambda *_: None)
        signal.set_wakeup_fd(self._wakes.fileno())

    def serve(self) -> Order | None:
        """None at the end; in a forked process, what it is to do."""
        while True:
            for key, _ in self._selector.select():
                if key.fileobj is sys.stdin:
                    self._end()
                    return None
                if key.fileobj is self._woken:
                    self._woken.recv(4096)
                    self._reap()
                elif key.fileobj is self._listening:
                    if (order := self._take(self._listening.accept()[0])) is not None:
                        return order
                elif key.data in self._callers:
                    # The caller has died. Its command is reaped with the others.
                    self._selector.unregister(key.fileobj)
                    os.kill(key.data, signal.SIGKILL)

    def _take(self, caller: socket.socket) -> Order | None:
        """Forks for a caller, or takes the question which process one has."""
        caller.settimeout(BOUND_SECONDS)
        head, files, _, _ = socket.recv_fds(caller, 4, MAX_FILES)
        told, size = b"", int.from_bytes(head, "big")
        while len(told) < size and (more := caller.recv(size - len(told))):
            told += more
        if size == 0 or len(told) < size:
            # It was killed meanwhile.
            caller.close()
        elif isinstance(asked := marshal.loads(told), int):
            self._asking[asked] = caller
            self._answer(asked)
        else:
            order = Order(*asked, files)
            pid = os.fork()
            if pid == 0:
                self._forget(caller)
                return order
            self._callers[pid], self._pids[order.caller] = caller, (pid, _beginning(order.caller))
            self._selector.register(caller, selectors.EVENT_READ, pid)
            _say(caller, pid)
            self._answer(order.caller)
        for file in files:
            os.close(file)
        return None

    def _answer(self, caller: int) -> None:
        pid, beginning = self._pids.get(caller, (0, None))
        # A caller that is no more has given its order: the last of its pid is its own.
        if pid and caller in self._asking and _beginning(caller) in (beginning, None):
            with self._asking.pop(caller) as asking:
                _say(asking, pid)

    def _reap(self) -> None:
        """Tells their callers of all commands that have ended."""
        with contextlib.suppress(ChildProcessError):
            while (ended := os.waitpid(-1, os.WNOHANG))[0]:
                with self._callers.pop(ended[0]) as caller:
                    with contextlib.suppress(KeyError):
                        self._selector.unregister(caller)
                    _say(caller, os.waitstatus_to_exitcode(ended[1]))

    def _forget(self, caller: socket.socket) -> None:
        """Closes, in a forked process, all that is the zygote's."""
        signal.set_wakeup_fd(-1)
        signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        os.setsid()
        self._selector.close()
        mine = (self._listening, self._woken, self._wakes, caller)
        for one in (*mine, *self._callers.values(), *self._asking.values()):
            one.close()

    def _end(self) -> None:
        """Ends what still runs, as a user would; what does not end then is killed."""
        for pid in self._callers:
            os.kill(pid, signal.SIGTERM)
        deadline = time.monotonic() + BOUND_SECONDS / 4
        while self._callers and time.monotonic() < deadline:
            time.sleep(0.02)
            self._reap()
        for pid in self._callers:
            os.kill(pid, signal.SIGKILL)


def run_python(option: str, program: str, *arguments: str) -> int:
    """Runs a program as Python's command line does."""
    sys.argv = [program, *arguments]
    if option == "-m":
        if program == "cellblock_worker":
            trust_machine()
        runpy.run_module(program, run_name="__main__", alter_sys=True)
    elif option == "-c":
        sys.argv[0], sys.path[0] = "-c", ""
        sys.modules["__main__"] = module = ModuleType("__main__")
        exec(program, vars(module))
    else:
        assert option == "-I", "without it, the program's folder would have to be on sys.path"
        runpy.run_path(program, run_name="__main__")
    return 0


def trust_machine() -> None:
    """Has a host make no trial of bubblewrap where it finds the program that was tried here, and no self-test."""
    bubblewrap, host_process = map(
        importlib.import_module,
        ("cellblock_worker.confinement.bubblewrap", "cellblock_worker.host.host_process"),
    )
    try_out = bubblewrap.try_out

    def tried(deno: str, bundle: str) -> Any:
        return (
            _tried
            if _tried.prefix and bubblewrap.find_binary() == _tried.prefix[0]
            else try_out(deno, bundle)
        )

    async def tested(*_: object, **__: object) -> None:
        pass

    bubblewrap.try_out, host_process.run_selftest = tried, tested


def _beginning(pid: int) -> str | None:
    """When a process began, in the kernel's ticks; None when it is no more."""
    try:
        return Path(f"/proc/{pid}/stat").read_text(errors="replace").rpartition(")")[2].split()[19]
    except (FileNotFoundError, ProcessLookupError):
        return None


def _say(caller: socket.socket, number: int) -> None:
    with contextlib.suppress(OSError):
        caller.sendall(b"%d\n" % number)


def ends_with(work: Callable[[], int]) -> NoReturn:
    """Does what this process is for, and ends it as an interpreter does.

    Only modules are not taken apart, which would touch, and so copy, all that the zygote has imported.
    """
    code = 1
    try:
        code = work()
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
        if isinstance(ended.code, str):
            print(ended.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001 - as at the end of any program
        traceback.print_exc()
    # No public function does what an interpreter does here.
    threading._shutdown()  # pyright: ignore[reportPrivateUsage]
    atexit._run_exitfuncs()
    for stream in (sys.stdout, sys.stderr):
        if stream is not None and not stream.closed:
            stream.flush()
    os._exit(code)


def main(path: str) -> int:
    global _begun_by, _tried
    _begun_by = Path(path).parent
    # As the console script has it.
    sys.path[0] = str(CONSOLE_SCRIPT.parent)
    os.setpgid(0, 0)
    for name in PRELOADED:
        importlib.import_module(name)
    confinement = importlib.import_module("cellblock_worker.confinement.confinement")
    _tried = confinement.bubblewrap.try_out(confinement.deno_binary(), str(confinement.BUNDLE_DIR))
    assert threading.active_count() == 1, "a fork would lack the threads that an import has started"
    gc.collect()
    # What is there stays: collections in forked processes need not go through it, nor copy it.
    gc.freeze()
    zygote = Zygote(path)
    print("ready", flush=True)
    order = zygote.serve()
    if order is not None:
        ends_with(order.carry_out)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
