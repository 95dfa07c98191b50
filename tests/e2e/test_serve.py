"""`cellblock serve` that is killed takes its servers with it, those too that ignore the end of their input; one that is
started by hand tells a person what it waits for, and how to put it into an editor.
"""

import asyncio
import fcntl
import os
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

import pytest

from cellblock.base.daemon_socket import FOLDER
from support.entries import CELLBLOCK, entry, write_config
from support.params import mostly
from support.processes import descendants, gone
from support.pseudo_terminal import in_terminal
from support.waits import until, within

STUBBORN = """
import json, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for line in sys.stdin:
    open(sys.argv[1], "w").close()
    asked = json.loads(line)
    if "id" not in asked:
        continue
    if asked["method"] == "initialize":
        result = {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "stubborn", "version": "1"}}
    else:
        result = {"tools": []}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
while True:
    time.sleep(1)
"""


def is_locked(file: Path) -> bool:
    with file.open() as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.parametrize("how", mostly(["in a shell"], ["alone", "in a shell", "installed first"]))
async def test_nothing_is_left_of_a_daemon_that_is_killed(tmp_path: Path, how: str) -> None:
    """Its server ignores SIGTERM and the end of its input."""
    program, begun = tmp_path / "stubborn.py", tmp_path / "begun"
    program.write_text(STUBBORN, encoding="utf-8")
    server = [sys.executable, "-I", str(program), str(begun)]
    if how == "in a shell":
        server = ["sh", "-c", '"$@"; echo over', "sh", *server]
    elif how == "installed first":
        npx = tmp_path / "npx"
        npx.write_text('#!/bin/sh\nshift\nexec "$@"\n')
        npx.chmod(0o755)
        server = [str(npx), "-y", *server]
    file = write_config(tmp_path, {"stubborn": entry(server)})
    # Too long for the path of a socket: its folder is in the temporary directory.
    state = tmp_path / ("x" * 100)
    words = ["serve", "--http", "127.0.0.1:0", "--config", str(file), "--state-dir", str(state)]
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="c") as temporary:
        process = await asyncio.create_subprocess_exec(
            CELLBLOCK, *words, stdin=DEVNULL, stderr=DEVNULL, env={**os.environ, "TMPDIR": temporary}
        )

        def left() -> list[Path]:
            return [*Path(temporary).glob("*/broker-*"), *(state / FOLDER).glob("*.sock")]

        try:
            await until(begun.exists, "the server is asked")
            await until(lambda: len(left()) == 2, "the daemon serves")
            locks = [*state.rglob("install-*.lock")]
            assert bool(locks) is (how == "installed first")
            await until(lambda: not any(map(is_locked, locks)), "it is installed")
            family = descendants(process.pid)
        finally:
            process.kill()
            await within(process.wait())
        await gone(family)
        await until(lambda: not left(), "nothing is left")


END_OF_INPUT = b"\x04"


async def test_serve_on_a_terminal_says_what_it_waits_for(tmp_path: Path) -> None:
    config = write_config(tmp_path, {})
    command = (str(CELLBLOCK), "serve", "--config", str(config), "--state-dir", str(tmp_path / "s"))
    async with in_terminal(*command, streams=(0, 2), stdout=PIPE) as terminal:
        await until(lambda: "Ctrl-D ends this" in terminal.text, "what it waits for")
        said = " ".join(terminal.text.split())
        assert "waiting for an MCP client on standard input, which is a terminal" in said
        assert f"configuration: {config}" in said
        assert f"`cellblock install CLIENT --config {config}` puts it into one" in said
        terminal.press(END_OF_INPUT)
        # What a client reads is MCP alone.
        assert await within(terminal.process.stdout.read(), 60) == b""
        assert await within(terminal.process.wait(), 60) == 0
