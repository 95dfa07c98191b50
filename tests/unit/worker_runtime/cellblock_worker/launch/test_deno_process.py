"""One child process: pipes, unread stdin, output floods, kill, reap, no descriptor left. Real small children."""

import asyncio
import os
import resource
import shutil
import signal
import sys
import time
from pathlib import Path

import psutil
import pytest

from cellblock_worker.launch.deno_process import NOT_STARTED, STDERR_TAIL_BYTES, DenoProcess
from cellblock_worker.launch.launching import Launcher, SpawnRequest
from support.processes import gone
from support.waits import within

BOUND = 20.0
MIB = 1024 * 1024


class Watcher:
    """Collects what a process tells."""

    def __init__(self) -> None:
        self.output = bytearray()
        self.exits: list[tuple[int, float, int]] = []
        self.launcher = Launcher()
        self.exited = asyncio.Event()
        self.heard = asyncio.Event()

    def on_output(self, data: bytes) -> None:
        assert not self.exits, "output after the exit"
        self.output += data
        self.heard.set()

    def on_exit(self, returncode: int, cpu_seconds: float, peak_bytes: int) -> None:
        self.exits.append((returncode, cpu_seconds, peak_bytes))
        self.launcher.close()
        self.exited.set()

    async def until_exit(self) -> int:
        await within(self.exited.wait())
        return self.exits[0][0]

    async def until_output(self, text: bytes) -> None:
        async with asyncio.timeout(BOUND):
            while text not in self.output:
                self.heard.clear()
                await self.heard.wait()


def spawn(*argv: str, max_unsent_bytes: int = MIB) -> tuple[DenoProcess, Watcher]:
    watcher = Watcher()
    order = SpawnRequest([(shutil.which(argv[0]) or argv[0]), *argv[1:]], {"PATH": "/usr/bin:/bin"})
    return DenoProcess(watcher.launcher, order, watcher, max_unsent_bytes=max_unsent_bytes), watcher


def descriptors() -> set[str]:
    return {f"{fd.name}->{fd.readlink()}" for fd in Path("/proc/self/fd").iterdir() if fd.is_symlink()}


async def test_usage_is_reported() -> None:
    _, watcher = spawn(sys.executable, "-S", "-c", "x = bytearray(32 << 20)\nfor _ in range(2000000): pass")
    assert await watcher.until_exit() == 0
    _, cpu_seconds, peak_bytes = watcher.exits[0]
    assert 0.01 < cpu_seconds < BOUND
    # Linux counts a child from its parent's size at the spawn.
    own = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    assert 32 * MIB < peak_bytes < max(200 * MIB, 2 * own)


async def test_the_environment_is_only_what_is_given_and_the_folder_is_the_root() -> None:
    _, watcher = spawn("sh", "-c", "pwd; env")
    await watcher.until_exit()
    names = {line.partition("=")[0] for line in watcher.output.decode().splitlines()[1:]}
    assert watcher.output.startswith(b"/\n")
    assert names <= {"PATH", "PWD", "SHLVL", "_", "OLDPWD"}


async def test_a_child_that_does_not_read_is_found_out_and_nothing_is_half_added() -> None:
    process, watcher = spawn("sleep", "60", max_unsent_bytes=MIB)
    block = b"x" * (256 * 1024)
    taken = 0
    while process.write(block):
        taken += 1
        assert taken < 100
    # The pipe's own 64 KiB come on top of the cap.
    assert taken * len(block) <= MIB + 2 * len(block)
    assert not process.write(block)
    process.kill()
    assert await watcher.until_exit() == -signal.SIGKILL


async def test_what_is_over_the_cap_at_once_is_refused_whole() -> None:
    process, watcher = spawn("cat", max_unsent_bytes=1000)
    assert not process.write(b"y" * 1001)
    assert process.write(b"x" * 1000)
    await watcher.until_output(b"x" * 1000)
    assert b"y" not in watcher.output
    process.kill()
    await watcher.until_exit()


async def test_a_refused_write_leaves_no_writer_behind_for_the_next_child() -> None:
    for _ in range(3):
        process, watcher = spawn("sleep", "60", max_unsent_bytes=128 * 1024)
        while process.write(b"x" * 100_000):
            pass
        process.kill()
        await watcher.until_exit()
    process, watcher = spawn("cat")
    assert process.write(b"still works")
    await watcher.until_output(b"still works")
    process.kill()
    await watcher.until_exit()


async def test_much_input_arrives_whole_and_in_order() -> None:
    process, watcher = spawn("cat", max_unsent_bytes=16 * MIB)
    sent = b"".join(index.to_bytes(4, "big") for index in range(500_000))
    for at in range(0, len(sent), 70_000):
        assert process.write(sent[at : at + 70_000])
    async with asyncio.timeout(BOUND):
        while len(watcher.output) < len(sent):
            watcher.heard.clear()
            await watcher.heard.wait()
    assert bytes(watcher.output) == sent
    process.kill()
    await watcher.until_exit()


async def test_an_output_flood_does_not_stall_the_loop() -> None:
    process, watcher = spawn("sh", "-c", "exec yes")
    await watcher.until_output(b"y\n" * 100_000)
    turns = 0
    deadline = time.monotonic() + 0.2
    while time.monotonic() < deadline:
        await asyncio.sleep(0)
        turns += 1
    process.kill()
    assert await watcher.until_exit() == -signal.SIGKILL
    assert turns > 20


async def test_the_last_of_stderr_is_kept_and_no_more() -> None:
    process, watcher = spawn("sh", "-c", "head -c 1000000 /dev/zero >&2; printf 'the end' >&2")
    await watcher.until_exit()
    assert len(process.stderr_tail) == STDERR_TAIL_BYTES
    assert process.stderr_tail.endswith(b"\0the end")


async def test_output_before_the_exit_is_told_before_it() -> None:
    _, watcher = spawn("sh", "-c", "head -c 3000000 /dev/zero")
    assert await watcher.until_exit() == 0
    assert len(watcher.output) == 3_000_000


@pytest.mark.parametrize("killed", [True, False], ids=["killed", "dies by itself"])
async def test_its_end_takes_the_whole_group_and_cannot_be_trapped(killed: bool) -> None:
    process, watcher = spawn("sh", "-c", "trap '' TERM INT HUP; sleep 600 & echo $!; wait")
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
    process, watcher = spawn(
        "sh", "-c", "exec 3<&0; setsid sh -c 'echo there; read line <&3; echo end' & wait"
    )
    await watcher.until_output(b"there\n")
    os.kill(process.pid, signal.SIGKILL)
    assert await watcher.until_exit() == -signal.SIGKILL
    assert watcher.output.endswith(b"end\n")


async def test_kill_and_write_after_the_exit_do_nothing() -> None:
    process, watcher = spawn("true")
    assert await watcher.until_exit() == 0
    process.kill()
    assert process.write(b"x")
    await asyncio.sleep(0)
    assert len(watcher.exits) == 1


async def test_writing_to_a_child_that_closed_its_stdin_is_no_error() -> None:
    process, watcher = spawn("sh", "-c", "exec 0<&-; echo closed; sleep 60")
    await watcher.until_output(b"closed")
    assert process.write(b"x")
    process.kill()
    await watcher.until_exit()


async def test_a_program_that_does_not_exist() -> None:
    process, watcher = spawn("/no/such/program")
    assert await watcher.until_exit() == NOT_STARTED
    assert "/no/such/program" in (process.trouble or process.stderr_tail.decode())


async def test_no_descriptor_and_no_zombie_is_left() -> None:
    _, watcher = spawn("true")
    await watcher.until_exit()
    before = descriptors()
    for number in range(10):
        process, watcher = spawn("sh", "-c", "echo out; echo err >&2; read x")
        if number % 2:
            process.kill()
        else:
            process.write(b"\n")
        await watcher.until_exit()
        with pytest.raises(ChildProcessError):
            os.waitpid(process.pid, os.WNOHANG)  # noqa: ASYNC222 - does not wait
    assert descriptors() == before
