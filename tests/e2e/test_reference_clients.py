"""The TypeScript reference clients against `cellblock serve`, over stdio and over HTTP with the token.

Both generations of the client: `@modelcontextprotocol/sdk`, and `@modelcontextprotocol/client`, which can speak both
eras of the protocol. The Python SDK's client is in `tests/conformance` and `test_policy.py`.

The command line of the MCP inspector has no cancel and prints no progress (docs/clients.md). Shown instead: Ctrl-C
while a script runs ends the run, since a client that goes away takes its runs with it.
"""

import asyncio
import json
import os
import signal
import subprocess
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import Any

import psutil
import pytest
from mcp import Client

from support.asking_client import stdio
from support.cellblock_zygote import forked_cellblock, forked_python, pid_of
from support.commands import Piped, piped
from support.entries import CELLBLOCK, Entry, plain_server, recorded, tracker, write_config
from support.http_daemon import Daemon, daemon
from support.processes import alive, command_line, descendants, gone, workers_of
from support.public_servers import NODE, NODE_SERVERS, ServerEntry, require
from support.waits import until, within

pytestmark = [pytest.mark.thorough, pytest.mark.servers]

CLIENTS = (
    ("@modelcontextprotocol/sdk", "legacy"),
    ("@modelcontextprotocol/client", "legacy"),
    ("@modelcontextprotocol/client", "auto"),
)
CONNECTIONS = [(front, package, era) for front in ("stdio", "http") for package, era in CLIENTS]

CODE = """
import { list_issues, get_issue } from "@codemode/servers/tracker";
const { issues, total } = await list_issues({ label: "security", status: "open" });
const first = await get_issue({ id: issues[0].id });
console.log("first:", first.title);
globalThis.__codemode_result__ = { total, ids: issues.map(({ id }) => id), assignee: first.assignee };
"""
SECURITY_IDS = [10, 15, 22, 29, 33, 35, 40]
RESULT = {"total": len(SECURITY_IDS), "ids": SECURITY_IDS, "assignee": "mira"}

ENDLESS = """
import { echo, never } from "@codemode/servers/plain";
await echo({});
console.log("now waiting");
await never({});
"""


@dataclass
class Driven:
    """The client's process, what it has said so far by the id of the command, and the server's side of it."""

    client: Piped
    ledger: Path
    daemon: Daemon | None
    answers: dict[int, dict[str, Any]] = field(default_factory=dict[int, dict[str, Any]])
    progress: dict[int, list[dict[str, Any]]] = field(default_factory=dict[int, list[dict[str, Any]]])
    ended: bool = False
    sent: int = 0

    async def read(self) -> None:
        """Reads until the client's stdout ends."""
        while line := await self.client.process.stdout.readline():
            said = json.loads(line)
            if "progress" in said:
                self.progress.setdefault(said["id"], []).append(said["progress"])
            else:
                self.answers[said["id"]] = said
        self.ended = True

    def send(self, what: str, **more: Any) -> int:
        """Sends a command; returns its id."""
        self.sent += 1
        self.client.send({"id": self.sent, "do": what, **more})
        return self.sent

    async def answer(self, number: int) -> dict[str, Any]:
        """Waits for the answer to a command."""
        await until(lambda: number in self.answers or self.ended, f"answer {number}", 90)
        return self.answers.pop(number)

    async def ask(self, what: str, **more: Any) -> dict[str, Any]:
        """Sends a command and waits for its answer."""
        return await self.answer(self.send(what, **more))

    @property
    def server(self) -> int:
        """The pid of the daemon, or of the server that the client has started."""
        if self.daemon:
            return self.daemon.process.pid
        [started] = psutil.Process(self.client.process.pid).children()
        return started.pid

    @property
    def workers(self) -> list[psutil.Process]:
        """The Deno processes behind the server."""
        hosts = [child for child in descendants(self.server) if "cellblock_worker" in command_line(child)]
        if not hosts:
            return []
        is_forked = str(forked_python()) in command_line(hosts[0])
        return workers_of(pid_of(hosts[0].pid) if is_forked else hosts[0].pid)

    def recorded(self, **wanted: Any) -> int:
        """How often the plain server has recorded something."""
        return recorded(self.ledger, **wanted)


@asynccontextmanager
async def driven(
    package: str, era: str, folder: Path, running: Daemon | None
) -> AsyncGenerator[Driven, None]:
    """A client that is connected; afterwards neither it nor a server that it started runs any more."""
    require(NODE, NODE_SERVERS / package.rpartition("/")[2])
    words = (Path(__file__).with_name("reference_client.mjs"), NODE_SERVERS.parent.parent, package, era)
    record = running.ledger if running else folder / "ledger.jsonl"
    async with piped(*words, program=NODE, stderr=None, limit=16 * 1024 * 1024) as process:
        client = Driven(process, record, running)
        reading = asyncio.create_task(client.read())
        if running:
            process.send({"url": running.url, "headers": running.auth})
        else:
            config = write_config(folder, {"tracker": tracker(), "plain": plain_server("--ledger", record)})
            options = ["--config", str(config), "--state-dir", str(folder / "s")]
            process.send({"command": [str(CELLBLOCK), "serve", "--stdio", *options]})
        yield client
        everything = descendants(process.process.pid)
        if not running:
            everything += [psutil.Process(client.server), *descendants(client.server)]
        assert await process.end() == 0
        await gone(everything)
    await within(reading)


@pytest.fixture(scope="module")
async def running(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Daemon]:
    async with daemon(tmp_path_factory.mktemp("http"), servers={"tracker": tracker()}) as served:
        yield served


@pytest.fixture(scope="module", params=CONNECTIONS, ids="-".join)
async def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, running: Daemon
) -> AsyncIterator[Driven]:
    """One connection of each kind."""
    front, package, era = request.param
    folder = tmp_path_factory.mktemp("client")
    async with driven(package, era, folder, running if front == "http" else None) as connected:
        yield connected


def response_of(answer: dict[str, Any]) -> dict[str, Any]:
    """The structured response of a run; its text block is for models."""
    result = answer["result"]
    assert not result.get("isError"), result
    (block,) = result["content"]
    assert block["type"] == "text" and block["text"]
    return result["structuredContent"]


@pytest.mark.clause("2.1", "3.2.a", "3.3.a")
async def test_a_reference_client_lists_and_calls(client: Driven) -> None:
    """Exactly one tool; a script that calls a real server gives its structured response."""
    server = await client.ask("server")
    (tool,) = (await client.ask("tools"))["tools"]
    assert (server["info"]["name"], tool["name"]) == ("cellblock", "codemode.run")
    assert "tracker" in tool["description"] and "tracker" not in server["instructions"]
    assert tool["inputSchema"]["required"] == ["code"]
    response = response_of(await client.ask("run", request={"code": CODE}))
    assert (response["result"], response["diagnostics"]) == (RESULT, [])
    assert [log["message"] for log in response["logs"]] == ["first: Password reset link can be used twice"]
    assert [call["toolName"] for call in response["toolTrace"]] == ["list_issues", "get_issue"]
    failed = response_of(await client.ask("run", request={"code": "const = ;"}))
    assert [found["code"] for found in failed["diagnostics"]] == ["SYNTAX_ERROR"]
    refused = (await client.ask("run", request={"code": 5}))["result"]
    assert refused["isError"] and "code" in refused["content"][0]["text"]


@pytest.mark.clause("7.4.b")
async def test_it_is_told_of_progress_and_aborting_ends_the_run(client: Driven) -> None:
    """`onprogress` hears of it while the script runs. An AbortSignal ends the run: upstream hears of it, the worker
    dies, and the session goes on."""
    cancels, calls = client.recorded(event="cancelled"), client.recorded(tool="never")
    run = client.send("run", request={"code": ENDLESS})
    told: list[dict[str, Any]] = client.progress.setdefault(run, [])
    await until(lambda: told and told[-1]["message"].endswith("last log: now waiting"), "progress", 60)
    await until(lambda: client.recorded(tool="never") > calls, "the script is in its call")
    await until(lambda: len(told) >= 3, "more progress")
    assert [report["progress"] for report in told] == sorted({report["progress"] for report in told})
    workers = client.workers
    client.send("abort", id=run)
    assert "abort" in (await client.answer(run))["error"].lower()
    await until(lambda: client.recorded(event="cancelled") > cancels, "a cancel notification upstream")
    # Others may end meanwhile: a host that is idle sheds warm ones.
    await until(lambda: any(not alive(worker) for worker in workers), "its worker is killed")
    code = 'import { echo } from "@codemode/servers/plain"; globalThis.__codemode_result__ = await echo({ on: 1 });'
    assert response_of(await client.ask("run", request={"code": code}))["result"] == '{"on": 1}'


INSPECTOR = NODE_SERVERS / "inspector" / "clients" / "launcher" / "build" / "index.js"
INSPECTED = [(front, era) for front in ("stdio", "http") for era in ("legacy", "modern")]

COUNTS = """
import { list_issues } from "@codemode/servers/tracker";
const { total } = await list_issues({ label: "security", status: "open" });
globalThis.__codemode_result__ = { total };
"""
IN_A_CALL = 'import { never } from "@codemode/servers/plain"; await never({});'


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

    def started(self, *arguments: str) -> AbstractAsyncContextManager[Piped]:
        """The inspector with one request; it does not outlive the block."""
        require(NODE, INSPECTOR)
        behind = ["--", *self.command] if self.command else []
        options = ["--cli", "--protocol-era", self.era, "--format", "json", "--quiet", *self.target]
        words = (INSPECTOR, *options, "--connect-timeout", "60000", *arguments, *behind)
        # It keeps a catalog of servers in its user's home.
        env = {"PATH": os.environ["PATH"], "HOME": str(self.folder)}
        return piped(*words, program=NODE, stdin=DEVNULL, env=env)

    async def ask(self, *arguments: str) -> dict[str, Any]:
        """What it prints for one request."""
        async with self.started(*arguments) as inspector:
            out, errors = await within(inspector.process.communicate(), 90)
            assert inspector.process.returncode == 0, errors.decode()
            read = json.loads(out)
            return read.get("result", read)


def call_of(code: str) -> list[str]:
    """The options for a run."""
    request = json.dumps({"code": code})
    return ["--method", "tools/call", "--tool-name", "codemode.run", "--tool-args-json", request]


@pytest.fixture(params=INSPECTED, ids="-".join)
def connection(request: pytest.FixtureRequest, tmp_path: Path, running: Daemon) -> Connection:
    """Each kind of connection."""
    front, era = request.param
    return Connection(front, era, tmp_path, running if front == "http" else None, more={"tracker": tracker()})


async def test_it_lists_the_one_tool(tmp_path: Path) -> None:
    connection = Connection("stdio", "legacy", tmp_path, None, more={"tracker": tracker()}, program=CELLBLOCK)
    (tool,) = (await connection.ask("--method", "tools/list"))["tools"]
    assert tool["name"] == "codemode.run" and "list_issues" in tool["description"]


async def test_it_completes_a_run(connection: Connection) -> None:
    result = await connection.ask(*call_of(COUNTS))
    assert not result.get("isError") and result["structuredContent"]["result"] == {"total": 7}, result
    assert result["content"][0]["text"].startswith('{"total":7}')


@pytest.mark.parametrize(("front", "era"), INSPECTED)
async def test_ctrl_c_ends_the_run(tmp_path: Path, running: Daemon, front: str, era: str) -> None:
    connection = Connection(front, era, tmp_path, running if front == "http" else None, program=CELLBLOCK)

    calls, cancels = recorded(connection.ledger, tool="never"), recorded(connection.ledger, event="cancelled")
    async with connection.started(*call_of(IN_A_CALL)) as inspector:
        process = inspector.process
        await until(
            lambda: recorded(connection.ledger, tool="never") > calls, "the script is in its call", 60
        )
        family = descendants(process.pid)
        process.send_signal(signal.SIGINT)
        await within(process.wait())
        await gone(family)
        if front == "http":
            await until(
                lambda: recorded(connection.ledger, event="cancelled") > cancels,
                "a cancel notification upstream",
            )


SCRIPT = """
import { get_current_time } from "@codemode/servers/time";
import { git_log } from "@codemode/servers/git";
import { write_file, list_directory } from "@codemode/servers/filesystem";

const [now, log] = await Promise.all([
  get_current_time({ timezone: "UTC" }),
  git_log({ repo_path: REPOSITORY, max_count: 50 }),
]);
const time = typeof now === "string" ? JSON.parse(now) : now;
const text = typeof log === "string" ? log : JSON.stringify(log);
const commits = [...text.matchAll(/Commit: '?([0-9a-f]{40})/g)].map((match) => match[1]);
const authors = new Set([...text.matchAll(/Author: (.*)/g)].map((match) => match[1]));
const head = `At ${time.datetime}: ${commits.length} commits by ${authors.size} author(s)`;
const summary = [head, ...commits, ""].join("\\n");
const path = FOLDER + "/summary.txt";
await write_file({ path, content: summary });
const listing = JSON.stringify(await list_directory({ path: FOLDER }));
console.log(`wrote ${summary.length} characters`);
globalThis.__codemode_result__ = {
  commits: commits.length,
  authors: authors.size,
  at: time.datetime,
  listed: listing.includes("summary.txt"),
};
"""


@pytest.fixture
def world(
    tmp_path: Path,
    server_time: ServerEntry,
    server_git: ServerEntry,
    server_filesystem: ServerEntry,
    git_repository: Path,
) -> Mapping[str, Any]:
    """The configuration file, the script for it, and the folder that it writes into."""
    folder = server_filesystem["args"][-1]
    servers = {"time": server_time, "git": server_git, "filesystem": server_filesystem}
    code = SCRIPT.replace("REPOSITORY", json.dumps(str(git_repository))).replace("FOLDER", json.dumps(folder))
    return {"config": write_config(tmp_path, servers), "code": code, "folder": Path(folder)}


def check(response: Mapping[str, Any], world: Mapping[str, Any], repository: Path) -> None:
    """The counts are those of the real repository, and the file holds its commits."""
    assert response["diagnostics"] == []
    result = response["result"]
    assert (result["commits"], result["authors"], result["listed"]) == (3, 1, True)
    written = (world["folder"] / "summary.txt").read_text("utf-8")
    head, *commits = written.splitlines()
    assert head == f"At {result['at']}: 3 commits by 1 author(s)"
    listed = subprocess.run(
        ["git", "log", "--format=%H"], cwd=repository, capture_output=True, text=True, check=True, timeout=120
    )
    assert commits == listed.stdout.split()
    assert datetime.fromisoformat(result["at"]).utcoffset() is not None
    assert [log["message"] for log in response["logs"]] == [f"wrote {len(written)} characters"]
    called = [(entry["serverId"], entry["toolName"], entry["ok"]) for entry in response["toolTrace"]]
    assert sorted(called[:2]) + called[2:] == [
        ("git", "git_log", True),
        ("time", "get_current_time", True),
        ("filesystem", "write_file", True),
        ("filesystem", "list_directory", True),
    ]


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_through_an_mcp_client(
    world: Mapping[str, Any], tmp_path: Path, git_repository: Path, mode: str
) -> None:
    async with Client(stdio(world["config"], tmp_path / "s"), mode=mode) as client:
        result = await within(client.call_tool("codemode.run", {"code": world["code"]}))
    assert not result.is_error
    await asyncio.to_thread(check, result.structured_content, world, git_repository)
