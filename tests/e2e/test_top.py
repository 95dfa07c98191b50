"""`cellblock top` of a real daemon, in a real terminal."""

from __future__ import annotations

import asyncio
import json
import termios
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator

import pytest

from http_daemon import TOOL, Daemon, daemon
from pseudo_terminal import in_terminal
from support import CELLBLOCK, until, within


@pytest.fixture(scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Daemon]:
    async with daemon(tmp_path_factory.mktemp("top"), pool={"warm": 1}) as running:
        async with running.client() as client:
            code = 'import { echo } from "@codemode/servers/plain"; await echo({});'
            await within(client.call_tool(TOOL, {"code": code}), 60)
        yield running


def command(served: Daemon, *options: str) -> list[str]:
    return [str(CELLBLOCK), "top", "--url", served.url, "--state-dir", str(served.folder / "s"), *options]


async def output_of(*arguments: str) -> tuple[int | None, str, str]:
    process = await asyncio.create_subprocess_exec(*arguments, stdout=PIPE, stderr=PIPE)
    out, err = await within(process.communicate(), 60)
    return process.returncode, out.decode(), err.decode()


async def test_once_for_people_and_for_machines(served: Daemon) -> None:
    code, out, _ = await output_of(*command(served, "--once"))
    assert code == 0 and "\x1b" not in out
    assert "places" in out and "plain" in out and "RECENT" in out
    code, out, _ = await output_of(*command(served, "--once", "--json"))
    state = json.loads(out)
    assert code == 0
    assert (state["pool"]["capacity"], state["runs"]["byOutcome"]) == (16, {"ok": 1})
    assert state["upstreams"][0]["calls"] == {"ok": 1}
    assert state["knowledge"][0]["tools"] == 16


@pytest.mark.parametrize("key", [b"q", b"\x03", b"\x1b"])
async def test_it_leaves_the_terminal_as_it_was(served: Daemon, key: bytes) -> None:
    async with in_terminal(*command(served)) as terminal:
        before = terminal.modes()
        await until(lambda: "q: quit" in terminal.text, "the screen", 60)
        assert not terminal.modes()[3] & termios.ECHO
        drawn = terminal.text.count("q: quit")
        terminal.resize(50, 12)
        await until(lambda: terminal.text.count("q: quit") > drawn, "a redrawn screen")
        terminal.press(b"\x1b[A")
        drawn = terminal.text.count("q: quit")
        await until(lambda: terminal.text.count("q: quit") > drawn, "that an arrow key ends nothing")
        terminal.press(key)
        assert await within(terminal.process.wait()) == 0
        await until(lambda: terminal.text.endswith("\x1b[?25h\x1b[?1049l"), "the main screen")
        assert terminal.modes() == before
        assert "Traceback" not in terminal.text


async def test_no_daemon_and_no_token(served: Daemon) -> None:
    code, _, err = await output_of(
        str(CELLBLOCK),
        "top",
        "--once",
        "--url",
        "http://127.0.0.1:9/mcp",
        "--state-dir",
        str(served.folder / "s"),
    )
    assert code == 3 and "No daemon answers" in err and "serve --http" in err
    other = str(served.folder / "other")
    code, _, err = await output_of(str(CELLBLOCK), "top", "--once", "--url", served.url, "--state-dir", other)
    assert code == 3 and "refuses the token" in err
