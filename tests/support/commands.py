"""`cellblock` as a user runs it: to its end, in a process of its own or in this one, on a terminal, or at its pipes."""

import contextlib
import io
import json
import os
import pty
import subprocess
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from cellblock.app.cli.main import main
from support.cellblock_zygote import forked_cellblock
from support.processes import owned_process
from support.waits import within

BOUND_SECONDS = 60.0


class Said(NamedTuple):
    """What a command has said, and its exit code."""

    code: int
    out: str
    err: str


async def cellblock(
    *words: object,
    code: int | None = None,
    given: bytes | None = None,
    program: Path | None = None,
    **options: Any,
) -> Said:
    """Runs a command to its end, with the exit code that is named, if one is; `given` is its standard input, the
    options are asyncio's."""
    options.setdefault("stdin", DEVNULL if given is None else PIPE)
    async with piped(*words, program=program, **options) as running:
        out, err = await within(running.process.communicate(given), BOUND_SECONDS)
        done = Said(running.process.returncode, out.decode(), err.decode())
    assert code in (None, done.code), done
    return done


async def command(
    folder: Path,
    *words: object,
    code: int = 0,
    config: str = "cellblock.json",
    state: str = "s",
    **options: Any,
) -> str:
    """What a command says that is to end so, with a configuration and a state directory of a folder."""
    place = ("--config", folder / config, "--state-dir", folder / state)
    done = await cellblock(*words, *place, code=code, **options)
    return done.out if code == 0 else done.err


def in_this_process(*words: object, code: int | None = None) -> Said:
    """The same here: a start of Python for each command would take long."""
    out, err = io.BytesIO(), io.BytesIO()
    with (
        contextlib.redirect_stdout(io.TextIOWrapper(out, "utf-8", write_through=True)),
        contextlib.redirect_stderr(io.TextIOWrapper(err, "utf-8", write_through=True)),
    ):
        try:
            ended_with = main([*map(str, words)])
        except SystemExit as ended:
            ended_with = int(ended.code or 0)
        done = Said(ended_with, out.getvalue().decode(), err.getvalue().decode())
    assert code in (None, done.code), done
    return done


def on_terminal(
    home: Path, *words: object, keys: str = "", env: Mapping[str, str] | None = None, **options: Any
) -> Said:
    """The same in a process of its own with a home, whose streams are a terminal where the options, which are
    subprocess', do not say otherwise; `keys` are typed, and `out` is what the terminal was sent."""
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [forked_cellblock(), *map(str, words)],
        env={"PATH": os.environ["PATH"], "HOME": str(home), "TERM": "xterm", **(env or {})},
        **{"cwd": home, "stdin": theirs, "stdout": theirs, "stderr": theirs, **options},
    )
    os.close(theirs)
    os.write(ours, keys.encode())
    sent = b""
    with contextlib.suppress(OSError):  # the other end is closed
        while chunk := os.read(ours, 65536):
            sent += chunk
    os.close(ours)
    return Said(process.wait(BOUND_SECONDS), sent.decode(), "")


@dataclass
class Piped:
    """A command whose messages are lines of JSON."""

    process: Process

    def send(self, *messages: Any) -> None:
        """Writes messages; bytes are written as they are."""
        for one in messages:
            self.process.stdin.write(one if isinstance(one, bytes) else json.dumps(one).encode() + b"\n")

    async def answer(self) -> Any:
        """The next message."""
        return json.loads(await within(self.process.stdout.readline(), BOUND_SECONDS))

    def close(self) -> None:
        """Closes its standard input."""
        self.process.stdin.close()

    async def end(self) -> int:
        """The same, and waits for its end; returns the exit code."""
        self.close()
        return await within(self.process.wait(), BOUND_SECONDS)


@contextlib.asynccontextmanager
async def piped(*words: object, program: Path | None = None, **options: Any) -> AsyncGenerator[Piped]:
    """A command that does not outlive the block."""
    streams = {"stdin": PIPE, "stdout": PIPE, "stderr": PIPE, "limit": 2**20, **options}
    async with owned_process(program or forked_cellblock(), *words, **streams) as process:
        yield Piped(process)
