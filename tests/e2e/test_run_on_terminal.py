"""`cellblock run` on a terminal and elsewhere: a line on stderr while it works, and questions about calls, on terminals
alone; JSON alone on stdout; grants that narrow what a script may call.
"""

import asyncio
import json
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path
from typing import Any

import pytest

from support.cellblock_zygote import forked_cellblock
from support.commands import cellblock
from support.entries import CELLBLOCK, ledger, plain_server, write_config
from support.pseudo_terminal import Terminal, in_terminal
from support.waits import until, within

CODE = """
import { echo, wait } from "@codemode/servers/plain";
await echo({});
console.log("half \\x1b[2J way");
await wait({ ms: 600 });
globalThis.__codemode_result__ = 7;
console.log("\\x9b2J\\u202e");
"""


def command(
    folder: Path, *options: str, code: str = CODE, script: str | None = None, **policy: Any
) -> list[str]:
    (folder / "script.js").write_text(code)
    config = write_config(folder, {"plain": plain_server("--ledger", folder / "ledger")}, policy=policy)
    place = ["--config", str(config), "--state-dir", str(folder / "s")]
    return ["run", script or str(folder / "script.js"), *place, *options]


async def test_a_terminal_sees_the_run_go_on(tmp_path: Path) -> None:
    words = (str(forked_cellblock()), *command(tmp_path))
    async with in_terminal(*words, streams=(2,), stdin=DEVNULL, stdout=PIPE) as terminal:
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
    done = await cellblock(*command(tmp_path))
    assert (json.loads(done.out)["result"], done.err) == (7, "")


ASKING = """
import { give, echo } from "@codemode/servers/plain";
const said = [];
for (const path of ["first", "sec\\u001b[2Jond", "third", "fourth"]) {
  try { said.push((await give({ path })).path); } catch (error) { said.push(error.code); }
}
globalThis.__codemode_result__ = said;
"""


async def question(terminal: Terminal, number: int) -> str:
    """The last prompt, when so many were made."""
    await until(lambda: terminal.text.count("Allow it? [y/N] ") == number, f"question {number}", bound=60)
    return terminal.text.rpartition("A script wants to call ")[2]


@pytest.mark.thorough
async def test_a_person_at_the_terminal_is_asked(tmp_path: Path) -> None:
    """The clock stands still; what was typed before, and what nobody can see, decides nothing."""
    asked = command(tmp_path, "--timeout-ms", "2000", code=ASKING, default={"approve": ["plain.give"]})
    async with in_terminal(str(CELLBLOCK), *asked, streams=(0, 2), stdout=PIPE) as terminal:
        terminal.press(b"y\ny\ny\n")
        assert '"first"' in await question(terminal, 1)
        await asyncio.sleep(2.5)
        terminal.press(b"y\n")
        second = await question(terminal, 2)
        assert "\\u001b[2J" in second and "\x1b[2J" not in second
        terminal.press(b"perhaps\n")
        await question(terminal, 3)
        terminal.press(b"\n")
        await question(terminal, 4)
        terminal.press(b"\x04")
        await question(terminal, 5)
        terminal.press(b"YES\n")
        response = json.loads(await within(terminal.process.stdout.read(), 60))
        assert response["result"] == ["first", "APPROVAL_DECLINED", "APPROVAL_CANCELLED", "fourth"], response
        assert response["usage"]["approvalWaitMs"] >= 2500
        assert await within(terminal.process.wait(), 60) == 0
    assert sum(event.get("tool") == "give" for event in ledger(tmp_path / "ledger")) == 2


@pytest.mark.thorough
@pytest.mark.parametrize("script", ["file", "-"])
async def test_nobody_is_asked_where_nobody_sits(tmp_path: Path, script: str) -> None:
    """Not when standard input is no terminal, and not when the script comes from it."""
    given = None if script == "file" else script
    asked = command(tmp_path, code=ASKING, script=given, default={"approve": ["plain.give"]})
    streams: dict[str, Any] = {"streams": (0, 2)} if given else {"streams": (2,), "stdin": DEVNULL}
    async with in_terminal(str(CELLBLOCK), *asked, **streams, stdout=PIPE) as terminal:
        if given:
            terminal.press(ASKING.encode() + b"\x04")
        out = await within(terminal.process.stdout.read(), 60)
    assert json.loads(out)["result"] == ["APPROVAL_UNAVAILABLE"] * 4
    assert "Allow it?" not in terminal.text


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["json", "file"])
async def test_grants_narrow_a_run(tmp_path: Path, how: str) -> None:
    grants = '{"tools": ["plain.echo"]}'
    if how == "file":
        file = tmp_path / "grants.json"
        file.write_text(grants)
        grants = str(file)
    code, out, _ = await cellblock(*command(tmp_path, "--grants", grants, code=ASKING))
    (found, *_) = json.loads(out)["diagnostics"]
    assert (code, found["code"]) == (1, "IMPORT_FAILURE")
    assert "grant" in found["message"] + found["hint"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("grants", "said"),
    [
        ("missing.json", "--grants missing.json: cannot be read"),
        ("{not json", "--grants: this is no JSON"),
        ('{"tols": []}', "tols"),
        ('{"budgets": {"plain.*": -1}}', "budgets"),
        ('{"arguments": {"plain.*": {"type": "sting"}}}', "plain.*"),
        ('{"arguments": {"plain.*": {"$ref": "https://evil.example/schema"}}}', "remote references"),
    ],
)
async def test_grants_that_cannot_be_used_run_nothing(tmp_path: Path, grants: str, said: str) -> None:
    code, out, err = await cellblock(*command(tmp_path, "--grants", grants, code=ASKING))
    assert (code, out) == (2, "")
    assert said in err and len(err.splitlines()) == 1, err
    assert not (tmp_path / "s").exists(), "nothing was started for it"
