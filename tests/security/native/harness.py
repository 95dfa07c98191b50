"""The native attacker: built here, put in Deno's place, and told by a script's text what to do. See README.md."""

import asyncio
import contextlib
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest

from cellblock_worker.confinement import confinement
from cellblock_worker.launch.launching import Launcher
from cellblock_worker.wire import protocol
from cellblock_worker.worker.worker import Worker
from security.native.stand_in import stand_in
from support.worker_owner import Owner, booted, make_run, script

SOURCES: Final = Path(__file__).parent
LINUX: Final = sys.platform.startswith("linux")
FLAGS: Final = ("-static", "-O1", "-pthread", "-w", f"-DPROTOCOL_VERSION={protocol.PROTOCOL_VERSION}")

STARTER: Final = """
import sys
sys.path.insert(0, {tests!r})
from security.native.stand_in import stand_in
stand_in({folder!r})
sys.path.remove({tests!r})
"""
"""A `sitecustomize` for the worker host, which runs it before anything of its own; nothing else changes there."""


Step = str | tuple[object, ...]
"""A line for the attacker: its words, as one text or as a tuple of them."""


class NoCompiler(RuntimeError):
    """The attacker cannot be built on this machine; the text says why."""


@dataclass(frozen=True, slots=True)
class Native:
    """The built attacker: a folder with `attacker`, and `share`, the percentage of workers that it takes."""

    folder: Path

    @property
    def program(self) -> Path:
        return self.folder / "attacker"

    def takes(self, percent: int) -> None:
        """From now on so many of the workers that start are the attacker; the others are Deno."""
        fresh = self.folder / "share.new"
        fresh.write_text(f"{percent}\n", encoding="ascii")
        # The workers see this very folder: a reader finds the one or the other.
        fresh.replace(self.folder / "share")

    def environment(self) -> str:
        """The PYTHONPATH under which a broker's host starts its workers so."""
        return os.pathsep.join(filter(None, (str(self.folder), os.environ.get("PYTHONPATH"))))


def build(folder: Path) -> Native:
    """Compiles the attacker into `folder`. Raises NoCompiler."""
    compiler = shutil.which("cc")
    if compiler is None or not LINUX:
        raise NoCompiler("there is no C compiler (cc) on this Linux, or this is none")
    native = Native(folder)
    defined = _compile([compiler, "-E", "-dM", "-include", "sys/syscall.h", "-"])
    rows = [f'{{"{name}", __NR_{name}}},' for name in re.findall(r"#define __NR_(\w+) ", defined.stdout)]
    (folder / "calls.h").write_text("\n".join(rows), encoding="ascii")
    sources = sorted(map(str, SOURCES.glob("*.c")))
    done = _compile([compiler, *FLAGS, f"-I{folder}", "-o", str(native.program), *sources])
    if done.returncode != 0:
        if "-lc" in done.stderr:
            raise NoCompiler("there is no static C library (libc6-dev has it on Debian)")
        raise AssertionError(done.stderr)
    text = STARTER.format(tests=str(SOURCES.parents[1]), folder=str(folder))
    (folder / "sitecustomize.py").write_text(text, encoding="utf-8")
    native.takes(100)
    return native


@contextlib.contextmanager
def in_this_process(native: Native) -> Iterator[None]:
    """Workers of this very process are the attacker, with every layer in force."""
    back = stand_in(str(native.folder))
    try:
        confinement.use_isolation("required")
        yield
    finally:
        back()
        confinement.use_isolation("off")


def steps(*lines: Step) -> str:
    """A script for the attacker; each line is a step. Deno would give "deno"."""
    text = "\n".join(line if isinstance(line, str) else " ".join(map(word, line)) for line in lines)
    return f'/* @native\n{text}\n*/\nglobalThis.__codemode_result__ = "deno";'


def word(value: object) -> str:
    """An argument as the attacker reads it: a number as it is, bytes as an address of a copy, text as it is."""
    return f"={value.hex()}" if isinstance(value, bytes) else str(value)


async def attack(*lines: Step, launcher: Launcher | None = None, **changes: int) -> list[Any]:
    """One attacker's outcome, from this process (`in_this_process`)."""
    _, owner = await let_loose(*lines, launcher=launcher, **changes)
    ended = await owner.end()
    assert ended.reason == "finished", (ended, owner.ended)
    # What each step of its program gave: a value, or a negative errno.
    [body] = [body for header, body in owner.said if header["t"] == "done"]
    return json.loads(body)


async def let_loose(*lines: Step, launcher: Launcher | None = None, **changes: int) -> tuple[Worker, Owner]:
    """An attacker that has begun; the caller ends it."""
    made, owner = await booted(launcher=launcher)
    made.lease(b"token", make_run(**changes), script(steps(*lines)))
    await asyncio.sleep(0)
    return made, owner


def _compile(command: list[str]) -> subprocess.CompletedProcess[str]:
    return subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=60.0)


def built_or_skipped(folder: Path) -> Native:
    """As `build`. Where there is no compiler, the test that asks is skipped and says why; CI must have one."""
    try:
        return build(folder)
    except NoCompiler as error:
        if os.environ.get("CI") and LINUX:
            pytest.fail(str(error), pytrace=False)
        pytest.skip(str(error))
