"""The launcher: children of this process, watched over by another one. Real small children."""

import asyncio
import inspect
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import AsyncIterator
from pathlib import Path

import psutil
import pytest

from cellblock_worker.base import lifetime
from cellblock_worker.launch import launching
from cellblock_worker.launch.launcher import LOOK_ORDERS
from cellblock_worker.launch.launching import Launcher, SpawnRequest, Started
from support.processes import alive
from support.waits import until, within

pytestmark = pytest.mark.skipif(not lifetime.LINUX or not lifetime.HAS_PIDFD, reason="Linux and pidfd")

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
    os.waitpid(child.pid, 0)  # noqa: ASYNC222 - it ends by itself
    os.close(child.pidfd)
    with open(reader, "rb") as said:  # noqa: ASYNC230, PTH123
        return said.read().decode()


async def test_it_is_this_processs_child_in_a_session_of_its_own(launcher: Launcher) -> None:
    code = "import os; print(os.getppid(), os.getsid(0) == os.getpid(), os.getcwd(), dict(os.environ)['ONE'])"
    assert await output_of(launcher, code) == f"{os.getpid()} True / two\n"


async def test_descriptors_arrive_under_their_own_numbers_and_no_others(launcher: Launcher) -> None:
    pipes = [os.pipe() for _ in range(4)]
    for number, (_, writer) in enumerate(pipes):
        os.write(writer, str(number).encode())
    readers = tuple(reader for reader, _ in pipes)
    # Also under such numbers as the launcher itself has in use.
    low = os.dup2(readers[3], 4) if 4 not in readers and _is_free(4) else readers[3]
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


def _is_free(fd: int) -> bool:
    try:
        os.fstat(fd)
    except OSError:
        return True
    return False


def own_no_new_privs() -> str:
    return re.findall(r"NoNewPrivs:\s*(\d)", Path("/proc/self/status").read_text())[0]


async def test_guarded_it_asks_for_pdeathsig_and_no_new_privs(launcher: Launcher) -> None:
    code = """
import ctypes
signal = ctypes.c_int()
ctypes.CDLL(None).prctl(2, ctypes.byref(signal), 0, 0, 0)
print(signal.value, [line.split()[1] for line in open("/proc/self/status") if line.startswith("NoNewPrivs")])
"""
    assert await output_of(launcher, code, guarded=True) == "9 ['1']\n"
    # Where these tests have no new privileges themselves, as in some containers, nobody below them has.
    assert await output_of(launcher, code) == f"0 ['{own_no_new_privs()}']\n"


def test_what_it_has_started_ends_when_its_host_is_killed() -> None:
    """The child has asked for nothing, as a worker that was taken over can take back what it asked for."""
    command = [sys.executable, "-c", HOST, *SLEEP]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as host:
        child = psutil.Process(int(host.stdout.readline()))
        assert alive(child)
        host.kill()
    asyncio.run(until(lambda: not alive(child), "the child's end"))


async def test_what_is_handed_over_ends_with_it_too_and_what_is_gone_does_no_harm(launcher: Launcher) -> None:
    child = await a_child(launcher, SpawnRequest(SLEEP, {}))
    with subprocess.Popen(SLEEP) as foreign, subprocess.Popen(["true"]) as dead:  # noqa: ASYNC220
        pidfds = [os.pidfd_open(foreign.pid), os.pidfd_open(dead.pid)]
        for pidfd in pidfds:
            launcher.watch(pidfd)
        dead.wait()
        launcher.close()
        assert foreign.wait(timeout=120) == -signal.SIGKILL
    assert os.waitpid(child.pid, 0)[1] == signal.SIGKILL  # noqa: ASYNC222
    for fd in (*pidfds, child.pidfd):
        os.close(fd)


async def test_what_it_holds_of_processes_that_are_gone_does_not_grow(launcher: Launcher) -> None:
    held: list[int] = []
    for _ in range(3 * LOOK_ORDERS):
        child = await a_child(launcher, SpawnRequest([str(shutil.which("true"))], {}))
        os.waitpid(child.pid, 0)  # noqa: ASYNC222 - it ends by itself
        os.close(child.pidfd)
        held.append(psutil.Process(launcher.pid).num_fds())
    assert max(held) <= held[0] + LOOK_ORDERS


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
    for child in (first, second):
        assert os.waitpid(child.pid, 0)[1] == signal.SIGKILL  # noqa: ASYNC222
        os.close(child.pidfd)


async def test_what_is_ordered_of_one_that_is_killed_is_answered(launcher: Launcher) -> None:
    child = await a_child(launcher, SpawnRequest(SLEEP, {}))
    process = psutil.Process(launcher.pid)
    process.suspend()
    waiting = asyncio.create_task(started(launcher, SpawnRequest(SLEEP, {})))
    await asyncio.sleep(0)
    process.kill()
    assert isinstance(await within(waiting), OSError)
    os.kill(child.pid, signal.SIGKILL)
    os.waitpid(child.pid, 0)  # noqa: ASYNC222
    os.close(child.pidfd)


async def test_one_that_is_silent_is_given_up(launcher: Launcher, monkeypatch: pytest.MonkeyPatch) -> None:
    launcher.open()
    psutil.Process(launcher.pid).suspend()
    monkeypatch.setattr(launching, "ANSWER_BOUND_SECONDS", 0.05)
    assert isinstance(await started(launcher, SpawnRequest(SLEEP, {})), OSError)


async def test_a_child_that_cannot_enter_its_group_is_not_started(launcher: Launcher, tmp_path: Path) -> None:
    reader, writer = os.pipe()
    order = SpawnRequest(SLEEP, {}, entries=(str(tmp_path / "nowhere" / "tasks"),))
    child = await a_child(launcher, order, reader, writer, writer)
    os.close(writer)
    assert os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1]) == 127  # noqa: ASYNC222
    assert b"nowhere" in os.read(reader, 1000)
    os.close(reader)
    os.close(child.pidfd)
    refused = await started(launcher, SpawnRequest(SLEEP, {}, group=str(tmp_path / "nowhere")))
    assert isinstance(refused, FileNotFoundError)


async def test_without_one_it_is_started_from_here_but_never_outside_of_its_group(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(launcher, "_alone", True)
    assert await output_of(launcher, "import os; print(os.getppid())") == f"{os.getpid()}\n"
    assert launcher.pid is None
    assert isinstance(await started(launcher, SpawnRequest(SLEEP, {}, entries=("/tasks",))), OSError)
    assert isinstance(await started(launcher, SpawnRequest(["/no/such"], {})), FileNotFoundError)


async def test_a_machine_that_refuses_its_calls_does_without(
    launcher: Launcher, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    other = tmp_path / "launcher.py"
    text = inspect.getsource(launching.launcher)
    other.write_text(
        text.replace("_CLONE_PARENT: Final = 0x8000", "_CLONE_PARENT: Final = 0x10000"), encoding="utf-8"
    )
    monkeypatch.setattr(launching.launcher, "__file__", str(other))
    assert await output_of(launcher, "import os; print(os.getppid())") == f"{os.getpid()}\n"
    assert launcher.pid is None
