"""A forked `cellblock` does what the console script does, and no more of it is shared than the zygote says."""

import json
import os
import signal
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.cellblock_zygote import (
    PRELOADED,
    forked_cellblock,
    pid_of,
)
from support.commands import piped
from support.entries import CELLBLOCK, plain_server, write_config
from support.processes import gone, waits_for_a_pipe
from support.waits import until, within

pytestmark = pytest.mark.thorough

FILES = {
    "said.js": "console.log(1); globalThis.__codemode_result__ = 'ü'.repeat(300_000);",
    "fails.js": "throw new Error('on purpose')",
    "off.json": json.dumps({"cellblock": {"typecheck": "off"}}),
    "wrong.json": '{"mcpServers": {"x": {}}}',
}

SAME: dict[str, Sequence[str]] = {
    "an answer": ("config", "check", "--config", "off.json"),
    "a script's answer": ("run", "said.js", "--config", "off.json"),
    "a failed script": ("run", "fails.js", "--config", "off.json"),
    "a wrong file": ("config", "check", "--config", "wrong.json"),
    "wrong words": ("run", "--no-such-option"),
    "words that are no UTF-8": ("keygen", os.fsdecode(b"\xff")),
    "an output that is full": ("--version",),
}


def outcome(program: Path, folder: Path, name: str) -> tuple[int, list[str], str]:
    """What a command gives and says, without the lines that differ each time: those with a number."""
    with Path("/dev/full" if name == "an output that is full" else folder.parent / "said").open(
        "w+b"
    ) as output:
        done = subprocess.run(
            [program, *SAME[name]],
            cwd=folder,
            env={"PATH": os.environ["PATH"], "HOME": str(folder), "COLUMNS": "80"},
            stdin=DEVNULL,
            stdout=output,
            stderr=PIPE,
            umask=0o027,
            timeout=60,
        )
        output.seek(0)
        said = [] if done.returncode == 3 else output.read().decode().splitlines()
    errors = done.stderr.decode().replace(str(folder), "")
    return done.returncode, [line for line in said if not any(map(str.isdigit, line))], errors


@pytest.mark.parametrize("name", SAME)
def test_it_does_what_the_console_script_does(tmp_path: Path, name: str) -> None:
    found: list[tuple[Any, ...]] = []
    for program in (CELLBLOCK, forked_cellblock()):
        folder = tmp_path / str(len(found)) / "home"
        folder.mkdir(parents=True)
        for file, text in FILES.items():
            (folder / file).write_text(text, encoding="utf-8")
        told = outcome(program, folder, name)
        found.append((*told, sorted((one.name, one.stat().st_mode) for one in folder.iterdir())))
    assert found[0] == found[1]


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_for_the_caller_is_for_the_command(tmp_path: Path, number: signal.Signals) -> None:
    codes: list[int | None] = []
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for program in (CELLBLOCK, forked_cellblock()):
        async with piped("run", fifo, program=program, stdin=DEVNULL) as running:
            caller = running.process
            pid = pid_of(caller.pid) if codes else caller.pid
            await until(lambda pid=pid: waits_for_a_pipe(pid), "it waits")
            caller.send_signal(number)
            _, errors = await within(caller.communicate())
        assert b"Traceback" not in errors and not psutil.pid_exists(pid)
        codes.append(caller.returncode)
    assert codes[0] == codes[1]


async def test_a_caller_that_is_killed_takes_its_command_along(tmp_path: Path) -> None:
    config = write_config(tmp_path, {"plain": plain_server()})
    async with piped("serve", "--config", config, "--state-dir", tmp_path / "s", stdout=DEVNULL) as caller:
        command = psutil.Process(pid_of(caller.process.pid))
        children = "its server, and who has started its host"
        await until(lambda: len(command.children(recursive=True)) >= 2, children)
        family = [command, *command.children(recursive=True)]
    # At the end of the block it is killed.
    await gone(family)


READ_ON_IMPORT = """
import importlib, os, random, secrets, sys, uuid
read = []
def noting(kind, name):
    before = getattr(kind, name)
    def noted(*words, **more):
        frame = sys._getframe(1)
        while frame.f_globals["__name__"] in ("os", "_collections_abc", "collections.abc", "random", "secrets", "uuid"):
            frame = frame.f_back
        if frame.f_globals["__name__"].startswith("cellblock"):
            read.append((frame.f_globals["__name__"], name, str(words[1:])))
        return before(*words, **more)
    setattr(kind, name, noted)
for name in ("__getitem__", "__contains__", "__iter__"):
    noting(os._Environ, name)
for kind, names in ((os, "urandom getcwd umask"), (secrets, "token_hex token_bytes token_urlsafe"), (uuid, "uuid4")):
    for name in names.split():
        noting(kind, name)
for name in sys.argv[1:]:
    importlib.import_module(name)
print(read)
"""


def test_what_is_imported_before_the_fork_depends_on_no_caller_and_on_no_chance() -> None:
    """What Cellblock's modules read on import, all commands of a zygote share."""
    words = [sys.executable, "-c", READ_ON_IMPORT, *PRELOADED]
    assert subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout == "[]\n"
