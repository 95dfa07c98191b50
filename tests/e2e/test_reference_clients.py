"""The TypeScript reference clients and the MCP inspector's command line against `cellblock serve --stdio`.

Both generations of the client: `@modelcontextprotocol/sdk`, and `@modelcontextprotocol/client`, on which the
inspector is built too.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil
import pytest

from fixtures_servers import NODE, NODE_SERVERS, require
from support import (
    CELLBLOCK,
    Entry,
    alive,
    descendants,
    gone,
    ledger,
    plain_server,
    until,
    within,
    workers_of,
    write_config,
)

pytestmark = pytest.mark.servers

CLIENTS = ("@modelcontextprotocol/sdk", "@modelcontextprotocol/client")
CLIENT_SCRIPT = Path(__file__).with_name("reference_client.mjs")
INSPECTOR = NODE_SERVERS / "inspector" / "clients" / "launcher" / "build" / "index.js"

TRACKER: Entry = {"command": sys.executable, "args": ["-m", "cellblock.demo.tracker"]}

CODE = """
import { list_issues, get_issue } from "@codemode/servers/tracker";
const { issues, total } = await list_issues({ label: "security", status: "open" });
const first = await get_issue({ id: issues[0].id });
console.log("first:", first.title);
globalThis.__codemode_result__ = { total, ids: issues.map(({ id }) => id), assignee: first.assignee };
"""
SECURITY_IDS = [10, 15, 22, 29, 33, 35, 40]
RESULT = {"total": len(SECURITY_IDS), "ids": SECURITY_IDS, "assignee": "mira"}


def serve_command(folder: Path, servers: dict[str, Entry]) -> list[str]:
    """The command line of a server with these upstreams."""
    config = write_config(folder, servers)
    return [str(CELLBLOCK), "serve", "--stdio", "--config", str(config), "--state-dir", str(folder / "s")]


@dataclass
class Driven:
    """The client's process. Answers are kept by the id of their command."""

    process: Process
    answers: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])
    sent: int = 0

    async def send(self, what: str, **more: Any) -> int:
        """Sends a command; returns its id."""
        self.sent += 1
        assert self.process.stdin is not None
        self.process.stdin.write((json.dumps({"id": self.sent, "do": what, **more}) + "\n").encode())
        await self.process.stdin.drain()
        return self.sent

    async def answer(self, number: int) -> dict[str, Any]:
        """Waits for the answer to a command."""
        assert self.process.stdout is not None
        while number not in self.answers:
            line = await within(self.process.stdout.readline())
            assert line, "the client ended"
            read = json.loads(line)
            self.answers[read["id"]] = read
        return self.answers.pop(number)

    async def ask(self, what: str, **more: Any) -> dict[str, Any]:
        """Sends a command and waits for its answer."""
        return await self.answer(await self.send(what, **more))

    @property
    def workers(self) -> list[psutil.Process]:
        """The Deno processes behind the server that the client has started."""
        below = descendants(self.process.pid)
        hosts = [child for child in below if "cellblock_worker" in child.cmdline()]
        return workers_of(hosts[0].pid) if hosts else []


@asynccontextmanager
async def driven(package: str, folder: Path, servers: dict[str, Entry]) -> AsyncGenerator[Driven, None]:
    """A client that is connected; afterwards neither it nor its server runs any more."""
    require(NODE, NODE_SERVERS / package.rpartition("/")[2])
    arguments = [str(CLIENT_SCRIPT), str(NODE_SERVERS.parent.parent), package]
    process = await asyncio.create_subprocess_exec(
        str(NODE),
        *arguments,
        *serve_command(folder, servers),
        stdin=PIPE,
        stdout=PIPE,
        limit=16 * 1024 * 1024,
    )
    try:
        yield Driven(process)
        everything = descendants(process.pid)
        assert process.stdin is not None
        process.stdin.close()
        assert await within(process.wait()) == 0
        await gone(everything)
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


def response_of(answer: dict[str, Any]) -> dict[str, Any]:
    """The structured response of a run, which its text block repeats."""
    result = answer["result"]
    assert not result.get("isError"), result
    (block,) = result["content"]
    assert json.loads(block["text"]) == result["structuredContent"]
    return result["structuredContent"]


@pytest.mark.clause("2.1", "3.2.a", "3.3.a")
@pytest.mark.parametrize("package", CLIENTS)
async def test_a_reference_client_lists_and_calls(tmp_path: Path, package: str) -> None:
    """Exactly one tool; a script that calls a real server gives its structured response."""
    async with driven(package, tmp_path, {"tracker": TRACKER}) as client:
        server = await client.ask("server")
        assert server["info"]["name"] == "cellblock"
        assert "@codemode/servers/tracker" in server["instructions"]
        (tool,) = (await client.ask("tools"))["tools"]
        assert tool["name"] == "codemode.run"
        assert tool["inputSchema"]["required"] == ["code"]
        response = response_of(await client.ask("run", request={"code": CODE}))
        assert response["result"] == RESULT
        assert response["diagnostics"] == []
        assert [log["message"] for log in response["logs"]] == [
            "first: Password reset link can be used twice"
        ]
        assert [call["toolName"] for call in response["toolTrace"]] == ["list_issues", "get_issue"]
        failed = response_of(await client.ask("run", request={"code": "const = ;"}))
        assert [found["code"] for found in failed["diagnostics"]] == ["SYNTAX_ERROR"]
        refused = (await client.ask("run", request={"code": 5}))["result"]
        assert refused["isError"]
        assert "code" in refused["content"][0]["text"]


@pytest.mark.clause("7.4.b")
@pytest.mark.parametrize("package", CLIENTS)
async def test_aborting_the_call_ends_the_run(tmp_path: Path, package: str) -> None:
    """An AbortSignal becomes the cancel notification: upstream hears of it, the worker dies, the session goes on."""
    record = tmp_path / "ledger.jsonl"

    def recorded(key: str, value: str) -> bool:
        return any(event.get(key) == value for event in ledger(record))

    async with driven(package, tmp_path, {"plain": plain_server("--ledger", record)}) as client:
        code = 'import { never } from "@codemode/servers/plain"; await never({});'
        run = await client.send("run", request={"code": code})
        await until(lambda: recorded("tool", "never"), "the script is in its call")
        workers = client.workers
        await client.send("abort", id=run)
        assert "abort" in (await client.answer(run))["error"].lower()
        await until(lambda: recorded("event", "cancelled"), "a cancel notification upstream")
        await until(lambda: sum(not alive(worker) for worker in workers) == 1, "its worker is killed")
        code = 'import { echo } from "@codemode/servers/plain"; globalThis.__codemode_result__ = await echo({ on: 1 });'
        assert response_of(await client.ask("run", request={"code": code}))["result"] == '{"on": 1}'


async def inspect(folder: Path, *arguments: str) -> dict[str, Any]:
    """What the inspector's command line prints for one request to a server with the tracker."""
    require(NODE, INSPECTOR)
    process = await asyncio.create_subprocess_exec(
        *[str(NODE), str(INSPECTOR), "--cli", *arguments, "--", *serve_command(folder, {"tracker": TRACKER})],
        stdin=asyncio.subprocess.DEVNULL,
        stdout=PIPE,
        stderr=PIPE,
        # It keeps a catalog of servers in its user's home.
        env={"PATH": os.environ["PATH"], "HOME": str(folder)},
    )
    out, errors = await within(process.communicate())
    assert process.returncode == 0, errors.decode()
    return json.loads(out)


async def test_the_inspector_lists_the_one_tool(tmp_path: Path) -> None:
    (tool,) = (await inspect(tmp_path, "--method", "tools/list"))["tools"]
    assert tool["name"] == "codemode.run"
    assert "list_issues" in tool["description"]


async def test_the_inspector_calls_it(tmp_path: Path) -> None:
    call = ("--method", "tools/call", "--tool-name", "codemode.run", "--tool-arg", f"code={CODE}")
    assert response_of({"result": await inspect(tmp_path, *call)})["result"] == RESULT
