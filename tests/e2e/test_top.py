"""`cellblock top` of a real daemon, in a real terminal."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from support.commands import Said, cellblock
from support.entries import CELLBLOCK
from support.http_daemon import TOOL, Daemon, daemon
from support.pseudo_terminal import in_terminal
from support.waits import until, within

pytestmark = pytest.mark.thorough


@pytest.fixture(scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Daemon]:
    async with daemon(tmp_path_factory.mktemp("top"), pool={"warm": 1}) as running:
        async with running.client() as client:
            code = 'import { echo } from "@codemode/servers/plain"; await echo({});'
            await within(client.call_tool(TOOL, {"code": code}), 60)
        yield running


def command(served: Daemon, *options: str) -> list[str]:
    return [str(CELLBLOCK), "top", "--url", served.url, "--state-dir", str(served.folder / "s"), *options]


async def once(*options: object) -> Said:
    return await cellblock("top", "--once", *options, program=CELLBLOCK)


async def test_once_for_people_and_for_machines(served: Daemon) -> None:
    its_own = ("--url", served.url, "--state-dir", served.folder / "s")
    code, out, _ = await once(*its_own)
    assert code == 0 and "\x1b" not in out
    assert "running" in out and "plain" in out and "ENDED" in out
    code, out, _ = await once("--json", *its_own)
    state = json.loads(out)
    assert code == 0
    assert (state["pool"]["capacity"], state["runs"]["byOutcome"]) == (16, {"ok": 1})
    assert state["upstreams"][0]["calls"] == {"ok": 1}
    assert state["knowledge"][0]["tools"] == 18


async def test_it_shows_what_happens_until_ctrl_c(served: Daemon) -> None:
    code = 'import { wait } from "@codemode/servers/plain"; await wait({ ms: 60000 });'
    async with in_terminal(*command(served), env={"NO_COLOR": "1"}) as terminal, served.client() as client:
        await until(lambda: "ENDED" in terminal.text, "the first screen", 60)
        task = asyncio.create_task(client.call_tool(TOOL, {"code": code}))
        await until(lambda: "RUNNING (1)" in terminal.text and "plain.wait" in terminal.text, "the run", 60)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        await until(lambda: "cancelled" in terminal.text.lower(), "its end", 60)
        assert "\x1b[0m" not in terminal.text
        terminal.press(b"\x03")
        assert await within(terminal.process.wait(), 60) == 0
        assert "Traceback" not in terminal.text


async def test_a_daemon_that_hangs_can_be_left_and_one_that_goes_is_told(tmp_path: Path) -> None:
    async with daemon(tmp_path, pool={"warm": 1}) as own:
        async with in_terminal(*command(own)) as terminal:
            await until(lambda: "ENDED" in terminal.text, "the first screen", 60)
            own.process.send_signal(signal.SIGSTOP)
            try:
                terminal.process.terminate()
                assert await within(terminal.process.wait(), 60) == 0
            finally:
                own.process.send_signal(signal.SIGCONT)
        async with in_terminal(*command(own)) as terminal:
            await until(lambda: "ENDED" in terminal.text, "the first screen", 60)
            own.process.terminate()
            assert await within(terminal.process.wait(), 60) == 3
            await until(lambda: "No daemon answers" in terminal.text, "the error", 60)


async def answer_in_html(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(asyncio.IncompleteReadError):
        await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\n<hi>")
    await writer.drain()
    writer.close()


async def test_no_daemon_and_no_token(served: Daemon) -> None:
    code, _, err = await once("--url", "http://127.0.0.1:9/mcp", "--state-dir", served.folder / "s")
    assert code == 3 and "No daemon answers" in err and "serve --http" in err
    async with await asyncio.start_server(answer_in_html, "127.0.0.1", 0) as other_program:
        url = f"http://127.0.0.1:{other_program.sockets[0].getsockname()[1]}/mcp"
        code, _, err = await once("--url", url, "--state-dir", served.folder / "s")
    assert code == 3 and "no Cellblock daemon" in err and "Traceback" not in err
    code, _, err = await once("--url", served.url, "--state-dir", served.folder / "other")
    assert code == 3 and "refuses the token" in err
