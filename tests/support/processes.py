"""Looks at processes that may end at any moment, and processes that end with a block."""

import asyncio
import contextlib
import json
import signal
import time
from asyncio.subprocess import Process
from collections.abc import AsyncGenerator, Callable, Iterable
from pathlib import Path
from typing import Any

import psutil

from cellblock_worker.launch.spawning import reaped
from support.waits import until


def _seen(look: Callable[[], Any], gone: Any) -> Any:
    """What a look at a process gives; `gone` when it has ended, which any process may do between two looks."""
    try:
        return look()
    except psutil.NoSuchProcess:
        return gone


def alive(process: psutil.Process) -> bool:
    """Whether this very process (not another with its pid) still runs; a zombie does not."""
    return _seen(lambda: process.is_running() and process.status() != psutil.STATUS_ZOMBIE, False)


def descendants(pid: int) -> list[psutil.Process]:
    """All living children of a process, their children and so on; none when it has ended."""
    return _seen(lambda: [one for one in psutil.Process(pid).children(recursive=True) if alive(one)], [])


def kill_family(pid: int) -> None:
    """Kills a process, and then all that are below it: it must not see them end, and write down what came of that."""
    signal_all(family(pid), signal.SIGKILL)


def family(pid: int) -> list[psutil.Process]:
    """A process and all that are below it; none when it has ended."""
    return _seen(lambda: [psutil.Process(pid), *psutil.Process(pid).children(recursive=True)], [])


def signal_all(processes: Iterable[psutil.Process], number: signal.Signals) -> None:
    """Sends a signal to those of the processes that are there."""
    for one in processes:
        with contextlib.suppress(psutil.NoSuchProcess):
            one.send_signal(number)


def command_line(process: psutil.Process) -> list[str]:
    """A process's arguments; none when it has ended."""
    return _seen(process.cmdline, [])


def told_to(process: psutil.Process) -> list[str]:
    """A process's environment and command line; nothing for one that has ended."""
    return _seen(lambda: [json.dumps(process.environ()), " ".join(process.cmdline())], [])


def name_of(process: psutil.Process) -> str:
    """The name of a process's program; nothing when it has ended."""
    return _seen(process.name, "")


def parent_of(process: psutil.Process) -> int:
    """The pid of a process's parent; 0 when it has ended."""
    return _seen(process.ppid, 0)


def workers_of(host_pid: int) -> list[psutil.Process]:
    """The Deno processes of a worker host, without the bubblewrap that watches over each."""
    return [process for process in descendants(host_pid) if name_of(process) == "deno"]


def launchers_of(host_pid: int) -> list[psutil.Process]:
    """A worker host's launchers; for a moment also what one of them is starting, a copy of it."""
    children = psutil.Process(host_pid).children()
    return [child for child in children if "launcher.py" in " ".join(command_line(child))]


def left_after(processes: Iterable[psutil.Process], bound: float) -> list[psutil.Process]:
    """Those of the processes that still run after a bound of seconds.

    psutil's own wait fails where one is just being reaped: `pidfd_open` then says ENOENT on newer kernels.
    """
    watched = list(processes)
    deadline = time.monotonic() + bound
    while (left := [process for process in watched if alive(process)]) and time.monotonic() < deadline:
        time.sleep(0.02)
    return left


async def gone(processes: Iterable[psutil.Process], bound: float = 60.0) -> None:
    """Waits until none of the processes runs any more."""
    left = await asyncio.to_thread(left_after, processes, bound)
    assert not left, f"still running after {bound:g} s: {[_shown(process) for process in left]}"


def _shown(process: psutil.Process) -> str:
    return f"{process.pid} {' '.join(command_line(process))[:120]}"


@contextlib.asynccontextmanager
async def owned_process(*words: object, **options: Any) -> AsyncGenerator[Process]:
    """A program that does not outlive the block; the options are those of `asyncio.create_subprocess_exec`."""
    process = await asyncio.create_subprocess_exec(*map(str, words), **options)
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await reaped(process)


async def stopped(process: psutil.Process) -> None:
    """SIGSTOP, and until each thread has taken it: on a busy machine one of them may answer first."""
    process.suspend()
    threads = Path(f"/proc/{process.pid}/task")

    def all_stopped() -> bool:
        # Where there is no /proc, nobody can say; elsewhere there is at least one thread.
        return {
            (thread / "stat").read_text().rpartition(")")[2].split()[0] for thread in threads.glob("*")
        } <= {"T"}

    await until(all_stopped, "every thread of the compiler is stopped")


def waits_for_a_pipe(pid: int) -> bool:
    """Whether a process waits in the kernel, for a pipe's other end or for its data."""
    try:
        where = Path(f"/proc/{pid}/wchan").read_text()
    except OSError:
        return False
    return any(word in where for word in ("pipe", "fifo", "partner"))
