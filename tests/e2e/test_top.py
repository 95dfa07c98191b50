"""`cellblock top` of a real daemon, in a real terminal."""

from __future__ import annotations

import asyncio
import contextlib
import json
import re
import signal
import termios
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator, AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.entries import CELLBLOCK
from support.http_daemon import TOOL, Daemon, daemon
from support.pseudo_terminal import Terminal, in_terminal
from support.waits import until, within

pytestmark = pytest.mark.thorough

SCRIPT = (
    'import { echo, wait, fail } from "@codemode/servers/plain"; console.warn("half way \\x1b[2J\\n日本語");'
    " await echo({}); await wait({ ms: 40 }); for (let i = 0; i < 60; i++) console.log(`entry ${i}`);"
    " await fail({ text: 'no' });"
)


@pytest.fixture(scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Daemon]:
    async with daemon(tmp_path_factory.mktemp("top"), pool={"warm": 1}) as running:
        async with running.client() as client:
            code = 'import { echo } from "@codemode/servers/plain"; await echo({});'
            await within(client.call_tool(TOOL, {"code": code}), 60)
        yield running


def command(served: Daemon, *options: str) -> list[str]:
    return [str(CELLBLOCK), "top", "--url", served.url, "--state-dir", str(served.folder / "s"), *options]


async def run(served: Daemon, code: str, **more: Any) -> None:
    async with served.client() as client:
        await within(client.call_tool(TOOL, {"code": code, **more}), 60)


def screen(terminal: Terminal) -> str:
    """The last frame that is whole, without colours."""
    frames = re.findall(r"\x1b\[\?2026h\x1b\[H(.*?)\x1b\[\?2026l", terminal.text, re.S)
    return re.sub(r"\x1b\[[0-9;]*[mKJ]", "", frames[-1]).replace("\r", "") if frames else ""


async def shows(terminal: Terminal, *texts: str) -> str:
    """The screen once it shows all of these."""

    def whole() -> bool:
        return terminal.process.returncode is not None or all(text in screen(terminal) for text in texts)

    try:
        await until(whole, "the screen", 60)
    except AssertionError:
        pytest.fail(f"no screen with {texts}, but:\n{screen(terminal)}")
    assert terminal.process.returncode is None, terminal.text[-2000:]
    return screen(terminal)


@contextlib.asynccontextmanager
async def shown(served: Daemon, **options: Any) -> AsyncGenerator[Terminal]:
    """`cellblock top` once its first screen is there; at the end it quits well, and leaves the terminal as it was."""
    async with in_terminal(*command(served), **options) as terminal:
        before = terminal.modes()
        await shows(terminal, "RECENT", "q: quit")
        yield terminal
        if terminal.process.returncode is None:
            terminal.press(b"q")
            assert await within(terminal.process.wait()) == 0
        await until(lambda: terminal.text.endswith("\x1b[?25h\x1b[?1049l"), "the main screen")
        assert terminal.modes() == before
        assert "Traceback" not in terminal.text


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
    assert state["knowledge"][0]["tools"] == 18


@pytest.mark.parametrize("key", [b"q", b"\x03", b"\x1b"])
async def test_it_leaves_the_terminal_as_it_was(served: Daemon, key: bytes) -> None:
    async with shown(served) as terminal:
        assert not terminal.modes()[3] & termios.ECHO
        terminal.resize(50, 12)
        await until(lambda: 0 < screen(terminal).count("\n") < 12, "a smaller screen")
        terminal.press(b"\x1b[A")
        await shows(terminal, "> ")
        terminal.press(key)
        assert await within(terminal.process.wait()) == 0


async def test_a_recent_run_is_opened_scrolled_and_left(served: Daemon) -> None:
    await run(served, SCRIPT)
    async with shown(served) as terminal:
        terminal.resize(100, 60)
        terminal.press(b"r\r")
        page = await shows(terminal, "TIMELINE (3 of 3 calls)", "UNCAUGHT_EXCEPTION")
        lines = {line.split()[0]: line for line in page.split("\n") if line.strip()}
        assert "━" in lines["script"] and lines["plain.echo"].endswith(" ok")
        assert "█" in lines["plain.wait"] and lines["plain.fail"].endswith(" failed")
        assert re.search(r"warn  half way ·\[2J\n +日本語", page)
        assert "entry 59" not in page
        terminal.press(b"\x1b[F")
        await shows(terminal, "entry 59")
        terminal.press(b"\x1b[H")
        await shows(terminal, "  1-")
        # Esc alone goes back, and only then is j a key of the list.
        terminal.press(b"\x1b")
        await shows(terminal, "RECENT", "> ")
        terminal.press(b"j\x1b[Bk\r")
        await shows(terminal, "TIMELINE")
        terminal.resize(20, 3)
        await until(lambda: screen(terminal).count("\n") == 2, "a tiny screen")
        terminal.resize(100, 30)
        await shows(terminal, "DIAGNOSTICS")


async def test_a_live_run_is_followed_to_its_end(served: Daemon) -> None:
    code = (
        'import { wait } from "@codemode/servers/plain"; console.log("waiting");'
        ' await wait({ ms: 60000 }); console.log("not reached");'
    )
    async with shown(served) as terminal, served.client() as client:
        task = asyncio.create_task(client.call_tool(TOOL, {"code": code}))
        await shows(terminal, "LIVE (1)", "waiting")
        terminal.press(b"j\n")
        await shows(terminal, "plain.wait", " running", "CONSOLE (1)")
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)
        page = await shows(terminal, "state     ended")
        assert "plain.wait" in page and "not reached" not in page


async def test_servers_schemas_keys_and_no_colour(served: Daemon) -> None:
    async with shown(served, env={"NO_COLOR": "1"}) as terminal:
        terminal.press(b"s")
        page = await shows(terminal, "SCHEMA KNOWLEDGE", "RESULTS SEEN")
        assert re.search(r"plain +18 .* 17 unknown|plain +18 .*observed", page)
        terminal.press(b"?")
        await shows(terminal, "select the next run")
        terminal.press(b"\x1b")
        await shows(terminal, "SCHEMA KNOWLEDGE")
        terminal.press(b"\t")
        await shows(terminal, "RECENT")
        assert "\x1b[0m" not in terminal.text


async def test_a_stop_and_going_on(served: Daemon) -> None:
    async with shown(served) as terminal:
        cooked = termios.ECHO | termios.ICANON
        terminal.press(b"\x1a")
        process = psutil.Process(terminal.process.pid)
        await until(lambda: process.status() == psutil.STATUS_STOPPED, "a stop", 60)
        await until(lambda: terminal.text.endswith("\x1b[?1049l"), "the main screen")
        assert terminal.modes()[3] & cooked == cooked
        process.send_signal(signal.SIGCONT)
        await until(lambda: not terminal.modes()[3] & cooked, "the screen again", 60)
        terminal.press(b"s")
        await shows(terminal, "SCHEMA KNOWLEDGE")


async def test_a_terminated_one_puts_the_terminal_back(served: Daemon) -> None:
    async with shown(served) as terminal:
        terminal.process.terminate()
        assert await within(terminal.process.wait()) == 0


async def test_a_daemon_that_hangs_is_told_and_keys_work_on(tmp_path: Path) -> None:
    async with daemon(tmp_path, pool={"warm": 1}) as own, shown(own) as terminal:
        own.process.send_signal(signal.SIGSTOP)
        try:
            await shows(terminal, "no answer for ")
            terminal.press(b"?")
            await shows(terminal, "select the next run")
        finally:
            own.process.send_signal(signal.SIGCONT)
        await until(lambda: "no answer for" not in screen(terminal), "that it answers again", 60)


async def test_a_run_that_is_forgotten_and_a_daemon_that_goes(tmp_path: Path) -> None:
    async with daemon(tmp_path, pool={"warm": 1}) as own:
        await run(own, 'console.log("the first")')
        async with shown(own) as terminal:
            terminal.press(b"\r")
            await shows(terminal, "the first")
            for _ in range(100):
                await run(own, "1")
            await shows(terminal, "no longer remembered", "the first")
            own.process.terminate()
            assert await within(terminal.process.wait(), 60) == 3
            after = terminal.text.rpartition("\x1b[?1049l")[2]
            await until(lambda: "serve --http" in terminal.text.rpartition("\x1b[?1049l")[2], "the error")
            assert "No daemon answers" in terminal.text, after
            terminal.output = terminal.output.partition(b"\x1b[?1049l")[0] + b"\x1b[?1049l"


async def answer_in_html(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 4\r\nConnection: close\r\n\r\n<hi>")
    await writer.drain()
    writer.close()


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
    async with await asyncio.start_server(answer_in_html, "127.0.0.1", 0) as other_program:
        url = f"http://127.0.0.1:{other_program.sockets[0].getsockname()[1]}/mcp"
        state_dir = str(served.folder / "s")
        code, _, err = await output_of(
            str(CELLBLOCK), "top", "--once", "--url", url, "--state-dir", state_dir
        )
    assert code == 3 and "no Cellblock daemon" in err and "Traceback" not in err
    other = str(served.folder / "other")
    code, _, err = await output_of(str(CELLBLOCK), "top", "--once", "--url", served.url, "--state-dir", other)
    assert code == 3 and "refuses the token" in err
