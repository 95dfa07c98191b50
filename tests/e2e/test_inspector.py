"""The command line of the MCP inspector against `cellblock serve`, over stdio and over HTTP with the token.

It has no cancel of its own and prints no progress (docs/clients.md; `test_reference_clients.py` has both). Shown
instead: Ctrl-C while a script runs ends the run, since a client that goes away takes its runs with it.
"""

import asyncio
import contextlib
import json
import os
import signal
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from support.cellblock_zygote import forked_cellblock
from support.entries import CELLBLOCK, Entry, plain_server, recorded, tracker, write_config
from support.http_daemon import Daemon, daemon
from support.processes import descendants, gone
from support.public_servers import NODE, NODE_SERVERS, require
from support.waits import until, within

pytestmark = [pytest.mark.thorough, pytest.mark.servers]

INSPECTOR = NODE_SERVERS / "inspector" / "clients" / "launcher" / "build" / "index.js"
CONNECTIONS = [(front, era) for front in ("stdio", "http") for era in ("legacy", "modern")]

CODE = """
import { list_issues } from "@codemode/servers/tracker";
const { total } = await list_issues({ label: "security", status: "open" });
globalThis.__codemode_result__ = { total };
"""
ENDLESS = 'import { never } from "@codemode/servers/plain"; await never({});'


class Connection:
    """How one kind of connection is written on the command line, and the server's side of it.

    Over stdio the server has the tools of `plain` and `more`, and the inspector starts it as `program`.
    """

    def __init__(
        self,
        front: str,
        era: str,
        folder: Path,
        running: Daemon | None,
        *,
        more: Mapping[str, Entry] | None = None,
        program: Path | None = None,
    ) -> None:
        self.front, self.era, self.folder = front, era, folder
        self.ledger = running.ledger if running else folder / "ledger.jsonl"
        if running:
            header = f"Authorization: {running.auth['Authorization']}"
            self.target = ["--transport", "http", "--server-url", running.url, "--header", header]
            self.command: list[str] = []
        else:
            plain = plain_server("--ledger", self.ledger)
            config = write_config(folder, {**(more or {}), "plain": plain})
            self.target = []
            options = ["--config", str(config), "--state-dir", str(folder / "s")]
            self.command = [str(program or forked_cellblock()), "serve", "--stdio", *options]

    @contextlib.asynccontextmanager
    async def started(self, *arguments: str) -> AsyncGenerator[Process]:
        """The inspector with one request; it does not outlive the block."""
        require(NODE, INSPECTOR)
        behind = ["--", *self.command] if self.command else []
        options = ["--cli", "--protocol-era", self.era, "--format", "json", "--quiet", *self.target]
        options += ["--connect-timeout", "60000"]
        process = await asyncio.create_subprocess_exec(
            *[str(NODE), str(INSPECTOR), *options, *arguments, *behind],
            stdin=DEVNULL,
            stdout=PIPE,
            stderr=PIPE,
            # It keeps a catalog of servers in its user's home.
            env={"PATH": os.environ["PATH"], "HOME": str(self.folder)},
        )
        try:
            yield process
        finally:
            if process.returncode is None:
                family = descendants(process.pid)
                process.kill()
                await process.wait()
                await gone(family)

    async def ask(self, *arguments: str) -> dict[str, Any]:
        """What it prints for one request."""
        async with self.started(*arguments) as process:
            out, errors = await within(process.communicate(), 90)
            assert process.returncode == 0, errors.decode()
            read = json.loads(out)
            return read.get("result", read)


def call(code: str) -> list[str]:
    """The options for a run."""
    request = json.dumps({"code": code})
    return ["--method", "tools/call", "--tool-name", "codemode.run", "--tool-args-json", request]


@pytest.fixture(scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Daemon]:
    async with daemon(tmp_path_factory.mktemp("http"), servers={"tracker": tracker()}) as served:
        yield served


@pytest.fixture(params=CONNECTIONS, ids="-".join)
def connection(request: pytest.FixtureRequest, tmp_path: Path, running: Daemon) -> Connection:
    """Each kind of connection."""
    front, era = request.param
    return Connection(front, era, tmp_path, running if front == "http" else None, more={"tracker": tracker()})


async def test_it_lists_the_one_tool(tmp_path: Path) -> None:
    connection = Connection("stdio", "legacy", tmp_path, None, more={"tracker": tracker()}, program=CELLBLOCK)
    (tool,) = (await connection.ask("--method", "tools/list"))["tools"]
    assert tool["name"] == "codemode.run"
    assert "list_issues" in tool["description"]


async def test_it_completes_a_run(connection: Connection) -> None:
    result = await connection.ask(*call(CODE))
    assert not result.get("isError"), result
    assert result["structuredContent"]["result"] == {"total": 7}
    assert result["content"][0]["text"].startswith('{"total":7}')


@pytest.mark.parametrize(("front", "era"), CONNECTIONS)
async def test_ctrl_c_ends_the_run(tmp_path: Path, running: Daemon, front: str, era: str) -> None:
    connection = Connection(front, era, tmp_path, running if front == "http" else None, program=CELLBLOCK)

    calls, cancels = recorded(connection.ledger, tool="never"), recorded(connection.ledger, event="cancelled")
    async with connection.started(*call(ENDLESS)) as process:
        await until(
            lambda: recorded(connection.ledger, tool="never") > calls, "the script is in its call", 60
        )
        family = descendants(process.pid)
        process.send_signal(signal.SIGINT)
        await within(process.wait())
        await gone(family, 20)
        if front == "http":
            await until(
                lambda: recorded(connection.ledger, event="cancelled") > cancels,
                "a cancel notification upstream",
            )
