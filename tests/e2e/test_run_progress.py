"""`cellblock run` at work: a line on a terminal's stderr, nothing elsewhere, and JSON alone on stdout."""

import json
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path

from support.cellblock_zygote import forked_cellblock
from support.commands import cellblock
from support.entries import plain_server, write_config
from support.pseudo_terminal import in_terminal
from support.waits import until, within

CODE = """
import { echo, wait } from "@codemode/servers/plain";
await echo({});
console.log("half \\x1b[2J way");
await wait({ ms: 600 });
globalThis.__codemode_result__ = 7;
console.log("\\x9b2J\\u202e");
"""


def command(folder: Path) -> list[str]:
    (folder / "script.js").write_text(CODE)
    config = write_config(folder, {"plain": plain_server()})
    return [
        str(forked_cellblock()),
        "run",
        str(folder / "script.js"),
        *("--config", str(config), "--state-dir", str(folder / "s")),
    ]


async def test_a_terminal_sees_the_run_go_on(tmp_path: Path) -> None:
    async with in_terminal(*command(tmp_path), streams=(2,), stdin=DEVNULL, stdout=PIPE) as terminal:
        out = await within(terminal.process.stdout.read(), 60)
        assert await within(terminal.process.wait(), 60) == 0
        assert json.loads(out)["result"] == 7
        # JSON escapes C0 by itself; C1 and what reorders text are escaped too.
        assert b"\\u009b2J\\u202e" in out and json.loads(out)["logs"][-1]["message"] == "\x9b2J\u202e"
        await until(lambda: terminal.text.endswith("\r\x1b[K"), "a wiped line")
        lines = terminal.text.split("\r")
        assert any("connecting" in line for line in lines)
        (busy, *_) = [line for line in lines if "in plain.wait" in line and "half" in line]
        assert "running" in busy and "1 of 2 calls done" in busy
        # The script's own escape sequence is shown, not obeyed.
        assert "half ·[2J way" in busy and "\x1b[2J" not in terminal.text
        # What was used stands above the line.
        first, second, rest = terminal.text.split("\r\n", 2)
        assert first == f"cellblock: configuration: {tmp_path / 'cellblock.json'}" and "\n" not in rest
        assert second.endswith(
            "No daemon of this configuration runs. The servers are started for this command alone."
        )


async def test_a_pipe_sees_nothing(tmp_path: Path) -> None:
    done = await cellblock(*command(tmp_path)[1:])
    assert (json.loads(done.out)["result"], done.err) == (7, "")
