"""A process that is started while its starter may be cancelled at any of its steps."""

import asyncio
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from cellblock_worker.launch import spawning
from cellblock_worker.launch.spawning import REAP_BOUND_SECONDS, Process, kill, reaped, spawn
from support.processes import gone
from support.waits import until, within

PIPE = asyncio.subprocess.PIPE
STEPS = range(9)
"""Turns of the loop before the cancellation; after the last of them the process is there."""
A_SHELLS_START_SECONDS = 0.03


def pids_in(folder: Path) -> list[int]:
    return [int(text) for file in folder.iterdir() if (text := file.read_text())]


async def ended(starting: asyncio.Task[Process]) -> None:
    await within(asyncio.wait([starting]))


async def test_it_starts_with_what_it_is_given() -> None:
    process = await spawn("/bin/sh", "-c", "cat; exit 3", stdin=PIPE, stdout=PIPE)
    output, _ = await process.communicate(b"given")
    assert (process.returncode, output) == (3, b"given")


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
        await ended(starting)
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
async def test_one_without_a_group_is_killed_alone(times: int) -> None:
    before = set(psutil.Process().children())
    starting = asyncio.create_task(spawn("/bin/sleep", "600", stdin=PIPE, stdout=PIPE))
    for _ in range(times):
        await asyncio.sleep(0)
        starting.cancel()
    await ended(starting)
    assert starting.cancelled()
    await gone(set(psutil.Process().children()) - before)


async def test_a_start_that_fails_while_it_is_cancelled_is_a_cancellation() -> None:
    starting = asyncio.create_task(spawn("/no-such-program"))
    await asyncio.sleep(0)
    starting.cancel()
    await ended(starting)
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
