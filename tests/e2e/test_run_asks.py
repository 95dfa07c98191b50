"""`cellblock run` asks about calls on a terminal, and nowhere else; and narrows what a script may call."""

import asyncio
import json
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path
from typing import Any

import pytest

from support.commands import cellblock
from support.entries import CELLBLOCK, ledger, plain_server, write_config
from support.pseudo_terminal import Terminal, in_terminal
from support.waits import until, within

pytestmark = pytest.mark.thorough

CODE = """
import { give, echo } from "@codemode/servers/plain";
const said = [];
for (const path of ["first", "sec\\u001b[2Jond", "third", "fourth"]) {
  try { said.push((await give({ path })).path); } catch (error) { said.push(error.code); }
}
globalThis.__codemode_result__ = said;
"""


def command(folder: Path, *options: str, script: str | None = None, **policy: Any) -> list[str]:
    (folder / "script.js").write_text(CODE)
    config = write_config(folder, {"plain": plain_server("--ledger", folder / "ledger")}, policy=policy)
    place = ["--config", str(config), "--state-dir", str(folder / "s")]
    return ["run", script or str(folder / "script.js"), *place, *options]


async def question(terminal: Terminal, number: int) -> str:
    """The last prompt, when so many were made."""
    await until(lambda: terminal.text.count("Allow it? [y/N] ") == number, f"question {number}", bound=60)
    return terminal.text.rpartition("A script wants to call ")[2]


async def test_a_person_at_the_terminal_is_asked(tmp_path: Path) -> None:
    """The clock stands still; what was typed before, and what nobody can see, decides nothing."""
    asked = command(tmp_path, "--timeout-ms", "2000", default={"approve": ["plain.give"]})
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


@pytest.mark.parametrize("script", ["file", "-"])
async def test_nobody_is_asked_where_nobody_sits(tmp_path: Path, script: str) -> None:
    """Not when standard input is no terminal, and not when the script comes from it."""
    asked = command(tmp_path, script=None if script == "file" else "-", default={"approve": ["plain.give"]})
    if script == "file":
        async with in_terminal(str(CELLBLOCK), *asked, streams=(2,), stdin=DEVNULL, stdout=PIPE) as terminal:
            out = await within(terminal.process.stdout.read(), 60)
    else:
        async with in_terminal(str(CELLBLOCK), *asked, streams=(0, 2), stdout=PIPE) as terminal:
            terminal.press(CODE.encode() + b"\x04")
            out = await within(terminal.process.stdout.read(), 60)
    assert json.loads(out)["result"] == ["APPROVAL_UNAVAILABLE"] * 4
    assert "Allow it?" not in terminal.text


@pytest.mark.parametrize("how", ["json", "file"])
async def test_grants_narrow_a_run(tmp_path: Path, how: str) -> None:
    grants = '{"tools": ["plain.echo"]}'
    if how == "file":
        file = tmp_path / "grants.json"
        file.write_text(grants)
        grants = str(file)
    code, out, _ = await cellblock(*command(tmp_path, "--grants", grants))
    (found, *_) = json.loads(out)["diagnostics"]
    assert (code, found["code"]) == (1, "IMPORT_FAILURE")
    assert "grant" in found["message"] + found["hint"]


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
    code, out, err = await cellblock(*command(tmp_path, "--grants", grants))
    assert (code, out) == (2, "")
    assert said in err and len(err.splitlines()) == 1, err
    assert not (tmp_path / "s").exists(), "nothing was started for it"
