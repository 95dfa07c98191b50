"""The launcher: children of this process, watched over by another one; and one such child: pipes, unread stdin, output
floods, kill, reap, no descriptor left. Real small children.

And a process that is started while its starter may be cancelled at any of its steps; one from its start to its end:
what it reads, what it says, and what becomes of one that stays; and processes that die with their parent, also with
one that dies before they have asked for it."""

import asyncio
import inspect
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import psutil
import pytest

from cellblock_worker.base import lifetime
from cellblock_worker.confinement.selftest import run_once
from cellblock_worker.launch import launching, spawning
from cellblock_worker.launch.deno_process import NOT_STARTED, STDERR_TAIL_BYTES, DenoProcess
from cellblock_worker.launch.launcher import LOOK_ORDERS
from cellblock_worker.launch.launching import Launcher, SpawnRequest, Started
from cellblock_worker.launch.spawning import REAP_BOUND_SECONDS, kill, reaped, spawn
from support.processes import alive, gone
from support.waits import until, within
from support.worker_owner import MIB

with_pidfd = pytest.mark.skipif(not lifetime.LINUX or not lifetime.HAS_PIDFD, reason="Linux and pidfd")

SLEEP = [str(shutil.which("sleep")), "600"]

HOST = """
import asyncio, os, sys, time
from cellblock_worker.launch.launching import Launcher, SpawnRequest
async def main():
    launcher, answered = Launcher(), asyncio.get_running_loop().create_future()
    nothing = os.open(os.devnull, os.O_RDWR)
    launcher.start(SpawnRequest(sys.argv[1:], {}), (nothing,) * 3, answered.set_result)
    print((await answered).pid, flush=True)
    time.sleep(600)
asyncio.run(main())
"""


@pytest.fixture
async def launcher() -> AsyncIterator[Launcher]:
    made = Launcher()
    yield made
    made.close()


async def started(launcher: Launcher, order: SpawnRequest, *streams: int) -> Started | OSError:
    answered: asyncio.Future[Started | OSError] = asyncio.get_running_loop().create_future()
    nothing = os.open(os.devnull, os.O_RDWR)
    first, second, third = streams or (nothing,) * 3
    launcher.start(order, (first, second, third), answered.set_result)
    os.close(nothing)
    return await within(answered)


def ended(child: Started) -> int:
    _, status = os.waitpid(child.pid, 0)
    os.close(child.pidfd)
    return os.waitstatus_to_exitcode(status)


async def a_child(launcher: Launcher, order: SpawnRequest, *streams: int) -> Started:
    child = await started(launcher, order, *streams)
    assert isinstance(child, Started), child
    return child


async def output_of(launcher: Launcher, code: str, **changes: object) -> str:
    """What a Python program writes as such a child."""
    reader, writer = os.pipe()
    order = SpawnRequest([sys.executable, "-I", "-S", "-c", code], {"ONE": "two"}, **changes)  # pyright: ignore
    child = await a_child(launcher, order, reader, writer, writer)
    os.close(writer)
    ended(child)
    with open(reader, "rb") as said:  # noqa: ASYNC230, PTH123
        return said.read().decode()


@with_pidfd
async def test_it_is_this_processs_child_in_a_session_of_its_own(launcher: Launcher) -> None:
    code = "import os; print(os.getppid(), os.getsid(0) == os.getpid(), os.getcwd(), dict(os.environ)['ONE'])"
    assert await output_of(launcher, code) == f"{os.getpid()} True / two\n"


@with_pidfd
async def test_descriptors_arrive_under_their_own_numbers_and_no_others(launcher: Launcher) -> None:
    pipes = [os.pipe() for _ in range(4)]
    for number, (_, writer) in enumerate(pipes):
        os.write(writer, str(number).encode())
    readers = tuple(reader for reader, _ in pipes)
    # Also under such numbers as the launcher itself has in use.
    low = readers[3] if os.path.exists("/proc/self/fd/4") else os.dup2(readers[3], 4)  # noqa: ASYNC240, PTH110
    given = (*readers[:3], low)
    code = f"""
import os
found = [int(fd) for fd in os.listdir("/proc/self/fd")]
left = sorted(fd for fd in found if os.path.exists(f"/proc/self/fd/{{fd}}"))
print([os.read(fd, 9).decode() for fd in {given}], left)
"""
    said = await output_of(launcher, code, fds=given)
    assert said == f"{['0', '1', '2', '3']} {sorted({0, 1, 2, *given})}\n"
    for fd in {*given, *(end for pair in pipes for end in pair)}:
        os.close(fd)


@with_pidfd
async def test_guarded_it_asks_for_pdeathsig_and_no_new_privs(launcher: Launcher) -> None:
    code = """
import ctypes
signal = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(signal), 0, 0, 0)
print(signal.value, [line.split()[1] for line in open("/proc/self/status") if line.startswith("NoNewPrivs")])
"""
    assert await output_of(launcher, code, guarded=True) == "9 ['1']\n"
    # Where these tests have no new privileges themselves, as in some containers, nobody below them has.
    own = re.findall(r"NoNewPrivs:\s*(\d)", Path("/proc/self/status").read_text())  # noqa: ASYNC240
    assert await output_of(launcher, code) == f"0 {own}\n"


@with_pidfd
def test_what_it_has_started_ends_when_its_host_is_killed() -> None:
    """The child has asked for nothing, as a worker that was taken over can take back what it asked for."""
    command = [sys.executable, "-c", HOST, *SLEEP]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as host:
        child = psutil.Process(int(host.stdout.readline()))
        assert alive(child)
        host.kill()
    asyncio.run(until(lambda: not alive(child), "the child's end"))


@with_pidfd
async def test_what_is_handed_over_ends_with_it_too_and_what_is_gone_does_no_harm(launcher: Launcher) -> None:
    child = await a_child(launcher, SpawnRequest(SLEEP, {}))
    with subprocess.Popen(SLEEP) as foreign, subprocess.Popen(["true"]) as dead:  # noqa: ASYNC220
        pidfds = [os.pidfd_open(foreign.pid), os.pidfd_open(dead.pid)]
        for pidfd in pidfds:
            launcher.watch(pidfd)
        dead.wait()
        launcher.close()
        assert foreign.wait(timeout=120) == -signal.SIGKILL
    assert ended(child) == -signal.SIGKILL
    for fd in pidfds:
        os.close(fd)


@with_pidfd
async def test_what_it_holds_of_processes_that_are_gone_does_not_grow(launcher: Launcher) -> None:
    held: list[int] = []
    for _ in range(3 * LOOK_ORDERS):
        ended(await a_child(launcher, SpawnRequest([str(shutil.which("true"))], {})))
        held.append(psutil.Process(launcher.pid).num_fds())
    assert max(held) <= held[0] + LOOK_ORDERS


@with_pidfd
async def test_one_that_is_killed_is_replaced_at_once_and_its_children_live(launcher: Launcher) -> None:
    first = await a_child(launcher, SpawnRequest(SLEEP, {}))
    launcher.watch(first.pidfd, started_here=True)
    killed = psutil.Process(launcher.pid)
    killed.kill()
    await until(lambda: launcher.pid not in (None, killed.pid), "another one, though nothing is ordered")
    second = await a_child(launcher, SpawnRequest(SLEEP, {}))
    assert alive(psutil.Process(first.pid)) and alive(psutil.Process(second.pid))
    # The next one watches over the first one's children, too.
    launcher.close()
    assert [ended(child) for child in (first, second)] == [-signal.SIGKILL] * 2


@with_pidfd
async def test_what_is_ordered_of_one_that_is_killed_is_answered(launcher: Launcher) -> None:
    child = await a_child(launcher, SpawnRequest(SLEEP, {}))
    process = psutil.Process(launcher.pid)
    process.suspend()
    waiting = asyncio.create_task(started(launcher, SpawnRequest(SLEEP, {})))
    await asyncio.sleep(0)
    process.kill()
    assert isinstance(await within(waiting), OSError)
    os.kill(child.pid, signal.SIGKILL)
    ended(child)


@with_pidfd
async def test_one_that_is_silent_is_given_up(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher.open()
    psutil.Process(launcher.pid).suspend()
    monkeypatch.setattr(launching, "ANSWER_BOUND_SECONDS", 0.05)
    assert isinstance(await started(launcher, SpawnRequest(SLEEP, {})), OSError)


@with_pidfd
async def test_a_child_that_cannot_enter_its_group_is_not_started(launcher: Launcher, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    order = SpawnRequest(SLEEP, {}, entries=(str(tmp_path / "nowhere" / "tasks"),))
    child = await a_child(launcher, order, reader, writer, writer)
    os.close(writer)
    assert ended(child) == 127
    assert b"nowhere" in os.read(reader, 1000)
    os.close(reader)
    refused = await started(launcher, SpawnRequest(SLEEP, {}, group=str(tmp_path / "nowhere")))
    assert isinstance(refused, FileNotFoundError)


@with_pidfd
async def test_without_one_it_is_started_from_here_but_never_outside_of_its_group(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "_alone", True)
    assert await output_of(launcher, "import os; print(os.getppid())") == f"{os.getpid()}\n"
    assert launcher.pid is None
    assert isinstance(await started(launcher, SpawnRequest(SLEEP, {}, entries=("/tasks",))), OSError)
    assert isinstance(await started(launcher, SpawnRequest(["/no/such"], {})), FileNotFoundError)


@with_pidfd
async def test_a_machine_that_refuses_its_calls_does_without(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "launcher.py"
    text = inspect.getsource(launching.launcher)
    other.write_text(text.replace("_CLONE_PARENT: Final = 0x8000", "_CLONE_PARENT: Final = 0x10000"), "utf-8")
    monkeypatch.setattr(launching.launcher, "__file__", str(other))
    assert await output_of(launcher, "import os; print(os.getppid())") == f"{os.getpid()}\n"
    assert launcher.pid is None


BOUND = 60.0


class Watcher:
    """Collects what a process tells."""

    def __init__(self) -> None:
        self.output = bytearray()
        self.exits: list[tuple[int, float, int]] = []
        self.launcher = Launcher()

    def on_output(self, data: bytes) -> None:
        assert not self.exits, "output after the exit"
        self.output += data

    def on_exit(self, returncode: int, cpu_seconds: float, peak_bytes: int) -> None:
        self.exits.append((returncode, cpu_seconds, peak_bytes))
        self.launcher.close()

    async def until_exit(self) -> int:
        await until(lambda: self.exits, "its exit")
        return self.exits[0][0]

    async def until_output(self, text: bytes) -> None:
        await until(lambda: text in self.output, "its output")


def begun(*argv: str, max_unsent_bytes: int = MIB) -> tuple[DenoProcess, Watcher]:
    watcher = Watcher()
    order = SpawnRequest([(shutil.which(argv[0]) or argv[0]), *argv[1:]], {"PATH": "/usr/bin:/bin"})
    return DenoProcess(watcher.launcher, order, watcher, max_unsent_bytes=max_unsent_bytes), watcher


@asynccontextmanager
async def running(*argv: str, max_unsent_bytes: int = MIB) -> AsyncIterator[tuple[DenoProcess, Watcher]]:
    """One that goes on until it is killed, at the end."""
    process, watcher = begun(*argv, max_unsent_bytes=max_unsent_bytes)
    yield process, watcher
    process.kill()
    assert await watcher.until_exit() == -signal.SIGKILL


def descriptors() -> set[str]:
    return {f"{fd.name}->{fd.readlink()}" for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()}


async def test_usage_is_reported() -> None:
    _, watcher = begun(sys.executable, "-S", "-c", "x = bytearray(32 << 20)\nfor _ in range(2000000): pass")
    assert await watcher.until_exit() == 0
    _, cpu_seconds, peak_bytes = watcher.exits[0]
    assert 0.01 < cpu_seconds < BOUND
    # Linux counts a child from its parent's size at the spawn.
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert 32 * MIB < peak_bytes < max(200 * MIB, 2 * own)


async def test_the_environment_is_only_what_is_given_and_the_folder_is_the_root() -> None:
    _, watcher = begun("sh", "-c", "pwd; env")
    await watcher.until_exit()
    folder, *names = (line.partition("=")[0] for line in watcher.output.decode().splitlines())
    assert folder == "/" and set(names) <= {"PATH", "PWD", "SHLVL", "_", "OLDPWD"}


async def test_a_child_that_does_not_read_is_found_out_and_nothing_is_half_added() -> None:
    async with running("sleep", "60", max_unsent_bytes=MIB) as (process, _):
        block = b"x" * (256 * 1024)
        taken = 0
        while process.write(block):
            taken += 1
            assert taken < 100
        # The pipe's own 64 KiB come on top of the cap.
        assert taken * len(block) <= MIB + 2 * len(block)
        assert not process.write(block)


async def test_what_is_over_the_cap_at_once_is_refused_whole() -> None:
    async with running("cat", max_unsent_bytes=1000) as (process, watcher):
        assert not process.write(b"y" * 1001)
        assert process.write(b"x" * 1000)
        await watcher.until_output(b"x" * 1000)
        assert b"y" not in watcher.output


async def test_a_refused_write_leaves_no_writer_behind_for_the_next_child() -> None:
    for _ in range(3):
        async with running("sleep", "60", max_unsent_bytes=128 * 1024) as (process, watcher):
            while process.write(b"x" * 100_000):
                pass
    async with running("cat") as (process, watcher):
        assert process.write(b"still works")
        await watcher.until_output(b"still works")


async def test_much_input_arrives_whole_and_in_order() -> None:
    async with running("cat", max_unsent_bytes=16 * MIB) as (process, watcher):
        sent = b"".join(index.to_bytes(4, "big") for index in range(500_000))
        for at in range(0, len(sent), 70_000):
            assert process.write(sent[at : at + 70_000])
        await watcher.until_output(sent)
        assert bytes(watcher.output) == sent


async def test_an_output_flood_does_not_stall_the_loop() -> None:
    async with running("sh", "-c", "exec yes") as (_, watcher):
        await watcher.until_output(b"y\n" * 100_000)
        turns = 0
        deadline = time.monotonic() + 0.2
        while time.monotonic() < deadline:
            await asyncio.sleep(0)
            turns += 1
    assert turns > 20


async def test_the_last_of_stderr_is_kept_and_no_more() -> None:
    process, watcher = begun("sh", "-c", "head -c 1000000 /dev/zero >&2; printf 'the end' >&2")
    await watcher.until_exit()
    assert process.stderr_tail == b"the end".rjust(STDERR_TAIL_BYTES, b"\0")


async def test_output_before_the_exit_is_told_before_it() -> None:
    _, watcher = begun("sh", "-c", "head -c 3000000 /dev/zero")
    assert await watcher.until_exit() == 0
    assert len(watcher.output) == 3_000_000


@pytest.mark.parametrize("killed", [True, False], ids=["killed", "dies by itself"])
async def test_its_end_takes_the_whole_group_and_cannot_be_trapped(killed: bool) -> None:
    process, watcher = begun("sh", "-c", "trap '' TERM INT HUP; sleep 600 & echo $!; wait")
    await watcher.until_output(b"\n")
    grandchild = psutil.Process(int(watcher.output))
    if killed:
        process.kill()
    else:
        os.kill(process.pid, signal.SIGKILL)
    assert await watcher.until_exit() == -signal.SIGKILL
    # Its parent is gone: init reaps it, or it stays a zombie where nobody is init.
    await gone([grandchild])


async def test_what_has_left_the_group_finds_its_stdin_at_an_end() -> None:
    process, watcher = begun(
        "sh", "-c", "exec 3<&0; setsid sh -c 'echo there; read line <&3; echo end' & wait"
    )
    await watcher.until_output(b"there\n")
    os.kill(process.pid, signal.SIGKILL)
    assert await watcher.until_exit() == -signal.SIGKILL
    assert watcher.output.endswith(b"end\n")


async def test_kill_and_write_after_the_exit_do_nothing() -> None:
    process, watcher = begun("true")
    assert await watcher.until_exit() == 0
    process.kill()
    assert process.write(b"x")
    await asyncio.sleep(0)
    assert len(watcher.exits) == 1


async def test_writing_to_a_child_that_closed_its_stdin_is_no_error() -> None:
    async with running("sh", "-c", "exec 0<&-; echo closed; sleep 60") as (process, watcher):
        await watcher.until_output(b"closed")
        assert process.write(b"x")


async def test_a_program_that_does_not_exist() -> None:
    process, watcher = begun("/no/such/program")
    assert await watcher.until_exit() == NOT_STARTED
    assert "/no/such/program" in (process.trouble or process.stderr_tail.decode())


async def test_no_descriptor_and_no_zombie_is_left() -> None:
    _, watcher = begun("true")
    await watcher.until_exit()
    before = descriptors()
    for number in range(10):
        process, watcher = begun("sh", "-c", "echo out; echo err >&2; read x")
        if number % 2:
            process.kill()
        else:
            process.write(b"\n")
        await watcher.until_exit()
        with pytest.raises(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)  # noqa: ASYNC222 - does not wait
    assert descriptors() == before


PIPE = asyncio.subprocess.PIPE
STEPS = range(9)
"""Turns of the loop before the cancellation; after the last of them the process is there."""
A_SHELLS_START_SECONDS = 0.03


def pids_in(folder: Path) -> list[int]:
    return [int(text) for file in folder.iterdir() if (text := file.read_text())]


async def test_what_cannot_be_started_says_so() -> None:
    with pytest.raises(FileNotFoundError, match="no-such-program"):
        await spawn("/no-such-program", stdin=PIPE)


@pytest.mark.parametrize(
    "child",
    ["sleep 600", "setsid cat <&3"],
    ids=["in its group", "in a group of its own, at the end of its input"],
)
async def test_cancelled_at_any_step_it_ends_with_what_it_has_started(tmp_path: Path, child: str) -> None:
    cancelled = 0
    for steps in STEPS:
        file = tmp_path / str(steps)
        starting = asyncio.create_task(
            spawn(
                "/bin/sh",
                "-c",
                f"exec 3<&0; {child} & echo $! > {file}; wait",
                stdin=PIPE,
                stdout=PIPE,
                start_new_session=True,
            )
        )
        for _ in range(steps):
            await asyncio.sleep(0)
        # The loop is held: the shell starts its child, and the pipes stay as they are.
        time.sleep(A_SHELLS_START_SECONDS)  # noqa: ASYNC251
        starting.cancel()
        since = time.monotonic()
        await within(asyncio.wait([starting]))
        assert time.monotonic() - since < REAP_BOUND_SECONDS
        if starting.cancelled():
            cancelled += 1
        else:
            kill(starting.result(), group=True)
            await reaped(starting.result())
    assert cancelled > 1
    children = pids_in(tmp_path)
    assert children
    await gone(psutil.Process(pid) for pid in children if psutil.pid_exists(pid))


@pytest.mark.parametrize("times", [1, 2])
async def test_one_without_a_group_is_killed_alone(times: int, monkeypatch: pytest.MonkeyPatch) -> None:
    killed: list[spawning.Process] = []

    def kills(process: spawning.Process, *, group: bool) -> None:
        assert not group
        killed.append(process)
        kill(process, group=group)

    monkeypatch.setattr(spawning, "kill", kills)
    starting = asyncio.create_task(spawn("/bin/sleep", "600", stdin=PIPE, stdout=PIPE))
    for _ in range(times):
        await asyncio.sleep(0)
        starting.cancel()
    await within(asyncio.wait([starting]))
    assert starting.cancelled()
    await until(lambda: killed, "the process is there, and killed")
    # A second cancellation does not wait for its end, of which a thread tells the loop: before that is closed.
    assert await within(killed[0].wait()) == -signal.SIGKILL


async def test_a_start_that_fails_while_it_is_cancelled_is_a_cancellation() -> None:
    starting = asyncio.create_task(spawn("/no-such-program"))
    await asyncio.sleep(0)
    starting.cancel()
    await within(asyncio.wait([starting]))
    assert starting.cancelled()


async def test_the_pipes_of_a_killed_process_are_closed_whoever_holds_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spawning, "REAP_BOUND_SECONDS", 0.2)
    child = f"setsid sleep 600 & echo $! > {tmp_path}/child; echo; wait"
    process = await spawn("/bin/sh", "-c", child, stdout=PIPE, start_new_session=True)
    await process.stdout.readline()
    # Behind this `&` the shell may not have come to the child's session yet.
    await until(lambda: os.getpgid(pids_in(tmp_path)[0]) != process.pid, "the child has left the group")
    kill(process, group=True)
    await reaped(process)
    try:
        assert await within(process.stdout.read()) == b""
    finally:
        os.kill(pids_in(tmp_path)[0], signal.SIGKILL)


NO_PROCESS = """
import asyncio, os, resource
from cellblock_worker.launch.spawning import spawn

async def main():
    try:
        await spawn("/bin/true")
    except OSError as error:
        print(error)

if os.geteuid() == 0:
    os.setuid(65534)
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
asyncio.run(main())
"""


def test_a_limit_on_processes_is_told() -> None:
    done = subprocess.run([sys.executable, "-c", NO_PROCESS], capture_output=True, text=True, timeout=120)
    assert "no more processes are allowed here (`ulimit -u`" in done.stdout, done.stderr


def shell(script: str) -> SpawnRequest:
    return SpawnRequest(["/bin/sh", "-c", script], {}, guarded=True)


async def test_it_has_no_input_and_says_how_it_ended() -> None:
    done = await run_once(shell("cat; echo end; echo '  bad luck ' >&2; exit 3"), BOUND)
    assert (done.returncode, done.output, done.stderr_text) == (3, b"end\n", "bad luck")


async def test_past_its_time_it_is_killed_with_what_it_has_started(tmp_path: Path) -> None:
    with pytest.raises(TimeoutError):
        await run_once(shell(f"echo $$ > {tmp_path}/pid; sleep 600 & wait"), 0.5)
    assert not psutil.pid_exists(int((tmp_path / "pid").read_text()))


async def test_a_cancelled_caller_leaves_none_behind_and_what_has_left_its_group_ends_with_its_input(
    tmp_path: Path,
) -> None:
    # As a Deno does whose bubblewrap is killed before it has asked to die with it.
    before, file = psutil.Process().children(), tmp_path / "pid"
    child = f"setsid sh -c 'echo $$ > {file}.new; mv {file}.new {file}; sleep 0.5; exec cat' <&3 &"
    running = asyncio.create_task(run_once(shell(f"exec 3<&0; {child} sleep 600"), BOUND))
    await until(file.exists, "a child")
    left = psutil.Process(int(file.read_text()))
    since = time.monotonic()
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert time.monotonic() - since < REAP_BOUND_SECONDS
    assert psutil.Process().children() == before, "none of its own is left behind"
    await gone([left])


async def test_its_descriptors_are_closed_even_when_it_cannot_be_started() -> None:
    reader, writer = os.pipe()
    with pytest.raises(OSError, match="no-such-program"):
        await run_once(SpawnRequest(["/no-such-program"], {}, (reader,)), BOUND)
    os.close(writer)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(reader)


with_setpriv = pytest.mark.skipif(shutil.which("setpriv") is None, reason="needs setpriv (util-linux)")

LIVES = """
import subprocess, sys, time
from cellblock_worker.base import lifetime
child = subprocess.Popen(lifetime.dying_with_this(["sleep", "600"]), stdin=subprocess.DEVNULL)
print(child.pid, flush=True)
time.sleep(600)
"""


@with_setpriv
async def test_a_child_dies_with_its_killed_parent() -> None:
    parent = await asyncio.create_subprocess_exec(sys.executable, "-c", LIVES, stdout=subprocess.PIPE)
    child = psutil.Process(int(await parent.stdout.readline()))
    await until(lambda: child.name() == "sleep", "it has begun")
    parent.kill()
    await parent.wait()
    await gone([child])


@with_setpriv
@pytest.mark.parametrize("stop_in", ["setpriv", "sh"])
def test_a_child_whose_parent_died_before_it_asked_does_not_begin(stop_in: str) -> None:
    # The parent's pid is that of a process which is gone, just as if it had died in between.
    argv = lifetime.dying_with_this(["sleep", "600"])
    with subprocess.Popen(["true"]) as dead:
        dead.wait()
    guarded = [str(dead.pid) if part == str(os.getpid()) else part for part in argv]
    command = guarded if stop_in == "setpriv" else guarded[guarded.index("/bin/sh") :]
    assert subprocess.run(command, timeout=BOUND).returncode == 1


@with_setpriv
def test_arguments_and_descriptors_arrive_as_they_are() -> None:
    reader, writer = os.pipe()
    os.write(writer, b"sent")
    os.close(writer)
    program = """
import json, os, sys
print(json.dumps([os.read(int(sys.argv[1]), 9).decode(), sys.argv[2:], os.getpid()]))
"""
    argv = [sys.executable, "-c", program, str(reader), "a b", "", "$HOME", "--", "'\""]
    with subprocess.Popen(
        lifetime.dying_with_this(argv), stdout=subprocess.PIPE, text=True, pass_fds=[reader]
    ) as process:
        os.close(reader)
        output, _ = process.communicate(timeout=BOUND)
    assert output.strip() == f'["sent", ["a b", "", "$HOME", "--", "\'\\""], {process.pid}]'


@with_setpriv
def test_the_shell_adds_nothing_to_an_empty_environment() -> None:
    argv = lifetime.dying_with_this(["/usr/bin/env"], empty_environment=True)
    done = subprocess.run(argv, env={"ONLY": "this"}, capture_output=True, text=True, timeout=BOUND)
    added = [line for line in done.stdout.splitlines() if not line.startswith(("ONLY=", "_="))]
    assert (done.returncode, added) == (0, [])


@with_setpriv
def test_no_new_privs_is_asked_for() -> None:
    argv = lifetime.dying_with_this(["grep", "NoNewPrivs", "/proc/self/status"], no_new_privs=True)
    done = subprocess.run(argv, capture_output=True, text=True, timeout=BOUND)
    assert done.stdout.split() == ["NoNewPrivs:", "1"]


@with_setpriv
def test_without_setpriv_a_child_whose_parent_is_gone_does_not_begin(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lifetime, "setpriv", lambda: None)
    assert lifetime.dying_with_this(["sleep", "600"]) == ["sleep", "600"]
    setup = lifetime.child_setup()
    with subprocess.Popen(["sleep", "600"], preexec_fn=setup) as child:
        assert child.poll() is None
        child.send_signal(signal.SIGKILL)
    monkeypatch.setattr(os, "getppid", lambda: 1)
    assert subprocess.run(["sleep", "600"], preexec_fn=setup, timeout=BOUND).returncode == 1
