"""Signals while a command waits for a pipe, and while a daemon starts or has no file yet.

They are the console script, but where no signal comes, or none before the daemon serves.
"""

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import AsyncGenerator, Callable
from pathlib import Path
from typing import Any

import pytest

from cellblock.app.cli.arguments import default_file
from support.cellblock_zygote import Command, forked_cellblock, started
from support.entries import CELLBLOCK, write_config
from support.processes import waits_for_a_pipe
from support.waits import within

pytestmark = pytest.mark.thorough

BOUND_SECONDS = 30

WAITING = {
    "stdin": ("run", "-"),
    "script": ("run", "{fifo}"),
    "config": ("run", "one.js", "--config", "{fifo}"),
    "grants": ("run", "one.js", "--grants", "{fifo}"),
}


def until(true: Callable[[], bool]) -> None:
    bound = time.monotonic() + BOUND_SECONDS
    while not true():
        assert time.monotonic() < bound
        time.sleep(0.02)


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler of its own for a signal."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (caught,) = [line.split()[1] for line in lines if line.startswith("SigCgt:")]
    return bool(int(caught, 16) >> (number - 1) & 1)


@pytest.mark.parametrize("words", WAITING.values(), ids=WAITING)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_command_that_waits_for_a_pipe_ends_at_the_first_signal(
    tmp_path: Path, words: tuple[str, ...], number: signal.Signals
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o600)
    (tmp_path / "one.js").write_text("1")
    process = subprocess.Popen(
        [str(CELLBLOCK), *(word.format(fifo=fifo) for word in words)],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        # As in a shell's foreground.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    )
    try:
        until(lambda: waits_for_a_pipe(process.pid))
        process.send_signal(number)
        assert process.wait(10) in (128 + number, -number)
        assert process.stderr is not None and b"Traceback" not in process.stderr.read()
    finally:
        process.kill()
        process.communicate()


@pytest.mark.parametrize(
    "words", [("run", "one.js"), ("doctor", "--json"), ("schemas", "export"), ("types",)]
)
def test_a_configuration_from_a_process_substitution_is_read_once(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "one.js").write_text("globalThis.__codemode_result__ = 1;")
    line = '"$@" --config <(echo "{}")' + (
        " --grants <(echo '{\"readOnly\": true}')" if words[0] == "run" else ""
    )
    done = subprocess.run(
        ["bash", "-c", line, "-", str(forked_cellblock()), *words],
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=60,
    )
    assert done.stdout and done.returncode != 2, done.stderr
    assert b"JSON" not in done.stderr


@contextlib.asynccontextmanager
async def serving(
    folder: Path, *options: str, early: bool = False
) -> AsyncGenerator[tuple[asyncio.subprocess.Process | Command, list[str]]]:
    """A daemon that has said where it serves; with `early` it gets a SIGHUP as soon as it knows what that is."""
    words = ("serve", "--http", "127.0.0.1:0", "--state-dir", str(folder / "s"), *options)
    streams: dict[str, Any] = {"stdin": DEVNULL, "stdout": DEVNULL, "stderr": PIPE}
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    if early:
        process = await asyncio.create_subprocess_exec(CELLBLOCK, *words, **streams, env=environment)
    else:
        process = await started(*words, **streams, env=environment)
    try:
        if early:
            while not catches(process.pid, signal.SIGHUP):  # noqa: ASYNC110 - nobody tells
                await asyncio.sleep(0.001)
            process.send_signal(signal.SIGHUP)
        said: list[str] = []
        await hears(process, said, "the token is in")
        yield process, said
        process.terminate()
        assert await within(process.wait(), 20) == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def hears(process: asyncio.subprocess.Process | Command, said: list[str], wanted: str) -> None:
    """Reads what the daemon says until it has said this."""
    while not any(wanted in line for line in said):
        line = (await within(process.stderr.readline(), 60)).decode()
        assert line, f"it ended: {said}"
        said.append(line)


async def test_a_daemon_without_a_file_takes_the_users_own_once_that_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    async with serving(tmp_path) as (process, said):
        process.send_signal(signal.SIGHUP)
        await hears(process, said, "nothing has changed")
        file = default_file()
        file.parent.mkdir(parents=True)
        write_config(file.parent, {"late": {"command": "true"}})
        await hears(process, said, "server late is added")


async def test_a_reload_that_comes_while_a_daemon_starts_is_done_then(tmp_path: Path) -> None:
    config = write_config(tmp_path, {})
    async with serving(tmp_path, "--config", str(config), early=True) as (process, said):
        await hears(process, said, "nothing has changed")


async def test_a_daemon_whose_file_was_a_pipe_reads_it_once(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    words = ["sh", "-c", 'echo "{}" > "$0"', str(fifo)]
    writer = await asyncio.create_subprocess_exec(*words)
    try:
        async with serving(tmp_path, "--config", str(fifo)) as (process, said):
            process.send_signal(signal.SIGHUP)
            await hears(process, said, "is no regular file")
    finally:
        if writer.returncode is None:
            writer.kill()
        await writer.wait()
