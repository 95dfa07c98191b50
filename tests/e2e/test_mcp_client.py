"""The SDK's own client against `cellblock serve --stdio`, in both protocol eras.

It starts the console script, but where a connection of the other era has shown the same, and in the test of cancelling.
"""

import asyncio
import json
import os
from asyncio.subprocess import PIPE
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from mcp import Client, StdioServerParameters
from mcp_types import CallToolResult

from support.cellblock_zygote import forked_cellblock, pid_of
from support.entries import CELLBLOCK, WARM, plain_server, recorded, write_config
from support.params import mostly
from support.processes import alive, command_line, descendants, gone, workers_of
from support.waits import steady, until, within

MODES = mostly(["auto"], ["auto", "legacy"])
TOOL = "codemode.run"


@dataclass
class Served:
    """A client, the process it talks to, and what the upstream server behind it recorded."""

    client: Client
    process: psutil.Process
    ledger: Path

    async def run(self, code: str, **arguments: Any) -> CallToolResult:
        """One `codemode.run`."""
        return await within(self.client.call_tool(TOOL, {"code": code, **arguments}))

    @property
    def hosts(self) -> list[psutil.Process]:
        """The worker host behind the server; none before it is started."""
        # Not the host's own children: between fork and exec they carry its command line.
        return [child for child in self.process.children() if "cellblock_worker" in command_line(child)]

    @property
    def host(self) -> psutil.Process:
        (host,) = self.hosts
        return host


@asynccontextmanager
async def serving(folder: Path, mode: str, *, forked: bool = False) -> AsyncGenerator[Served]:
    """`cellblock serve --stdio` in front of one plain server."""
    record = folder / "ledger.jsonl"
    config = write_config(folder, {"plain": plain_server("--ledger", record)}, pool={"warm": WARM})
    arguments = ["serve", "--stdio", "--config", str(config), "--state-dir", str(folder / "s")]
    program = forked_cellblock() if forked else CELLBLOCK
    before = set(descendants(os.getpid()))
    async with Client(StdioServerParameters(command=str(program), args=arguments), mode=mode) as client:
        new = set(descendants(os.getpid())) - before
        (process,) = [child for child in new if child.ppid() == os.getpid()]
        yield Served(client, psutil.Process(pid_of(process.pid)) if forked else process, record)


@pytest.fixture(scope="module", params=MODES)
async def served(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[Served]:
    """One connection for the tests that leave it as it was."""
    folder = tmp_path_factory.mktemp("served")
    async with serving(folder, request.param, forked=True) as connection:
        yield connection


def response_of(result: CallToolResult) -> dict[str, Any]:
    """The structured response, whose result the text block begins with."""
    assert not result.is_error, result.content
    (block,) = result.content
    given = result.structured_content["result"]
    shown = given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, separators=(",", ":"))
    assert block.text.startswith(("error ", shown))
    return result.structured_content


async def test_there_is_exactly_one_tool(served: Served) -> None:
    """Sections 2 and 3.1."""
    listed = await within(served.client.list_tools())
    (tool,) = listed.tools
    assert listed.next_cursor is None
    assert tool.name == TOOL
    assert tool.input_schema["required"] == ["code"]
    assert {"code", "limits", "requestedCapabilities"} <= set(tool.input_schema["properties"])
    for word in ("timeoutMs", "maxMemoryBytes", "maxLogBytes", "maxToolCalls", "__codemode_result__"):
        assert word in (tool.description or "")
    assert served.client.server_info is not None
    assert served.client.server_info.name == "cellblock"
    (template,) = (await within(served.client.list_resource_templates())).resource_templates
    assert template.name == "output"


async def test_a_script_runs_and_its_response_has_every_field(served: Served) -> None:
    """Sections 3.3.1 to 3.3.3."""
    code = """
        import * as plain from "@codemode/servers/plain";
        console.log("hello", { b: 1, a: 2 });
        const text: string = await plain.echo({ from: "the client" });
        globalThis.__codemode_result__ = { text, ü: "✓ 🍎" };
    """
    response = response_of(await served.run(code, requestedCapabilities=["plain"]))
    assert response["result"] == {"text": '{"from": "the client"}', "ü": "✓ 🍎"}
    (log,) = response["logs"]
    assert (log["level"], log["message"]) == ("log", 'hello {"a":2,"b":1}')
    assert isinstance(log["timeMs"], int)
    assert response["diagnostics"] == []
    (entry,) = response["toolTrace"]
    assert (entry["serverId"], entry["toolName"], entry["ok"]) == ("plain", "echo", True)
    assert "the client" not in json.dumps(response["toolTrace"])
    assert set(response["usage"]) >= {"wallMs", "cpuMs", "peakMemoryBytes", "toolCalls"}


@pytest.mark.parametrize(
    ("arguments", "named"),
    mostly(
        [({}, "code"), ({"code": "1", "limits": {"timeoutMs": "soon"}}, "timeoutMs")],
        [
            ({}, "code"),
            ({"code": 5}, "code"),
            ({"code": None}, "code"),
            ({"code": "1", "limits": []}, "limits"),
            ({"code": "1", "limits": {"timeoutMs": "soon"}}, "timeoutMs"),
            ({"code": "1", "limits": {"timeoutMs": -1}}, "timeoutMs"),
            ({"code": "1", "limits": {"maxToolCalls": True}}, "maxToolCalls"),
            ({"code": "1", "requestedCapabilities": "plain"}, "requestedCapabilities"),
            ({"code": "1", "requestedCapabilities": [1]}, "requestedCapabilities"),
            ({"code": "1", "timeout": 5}, "timeout"),
            ({"code": "x" * (1024 * 1024 + 1)}, "code"),
        ],
    ),
)
async def test_an_invalid_request_is_refused_before_a_worker_is_used(
    served: Served, arguments: dict[str, Any], named: str
) -> None:
    """Section 3.2: an error result that names the field and says what to do; the warm workers stay."""
    await until(lambda: served.hosts and len(workers_of(served.host.pid)) >= WARM, "a full pool")
    before = await steady(lambda: {worker.pid for worker in workers_of(served.host.pid)}, "the same workers")
    result = await within(served.client.call_tool(TOOL, arguments))
    assert result.is_error
    (block,) = result.content
    assert named in block.text
    assert any(word in block.text for word in ("Give", "Use", "Move")), "a hint"
    # One more than a full pool has may have ended meanwhile.
    assert len(before & {worker.pid for worker in workers_of(served.host.pid)}) >= WARM


async def test_runs_of_one_client_go_on_at_the_same_time(served: Served) -> None:
    code = """
        import { wait } from "@codemode/servers/plain";
        await wait({ ms: 1500 });
        globalThis.__codemode_result__ = NUMBER;
    """
    runs = [served.run(code.replace("NUMBER", str(number))) for number in range(6)]
    started = asyncio.get_running_loop().time()
    results = await asyncio.gather(*runs)
    assert [response_of(result)["result"] for result in results] == list(range(6))
    assert asyncio.get_running_loop().time() - started < 6 * 1.5


@pytest.mark.parametrize("mode", MODES)
async def test_a_cancelled_call_ends_the_run_and_its_upstream_call(tmp_path: Path, mode: str) -> None:
    """Section 7.4, from the client's notification to the upstream server's."""
    async with serving(tmp_path, mode, forked=True) as served:
        code = 'import { never } from "@codemode/servers/plain"; await never({});'
        call = asyncio.create_task(served.client.call_tool(TOOL, {"code": code}))
        await until(lambda: recorded(served.ledger, tool="never"), "the script is in its call")
        workers = workers_of(served.host.pid)
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await within(call)
        await until(lambda: recorded(served.ledger, event="cancelled"), "a cancel notification upstream")
        await until(lambda: sum(not alive(worker) for worker in workers) == 1, "its worker is killed")
        # And the connection is still of use.
        response = response_of(await served.run("globalThis.__codemode_result__ = 'still here';"))
        assert response["result"] == "still here"


@pytest.mark.parametrize("mode", MODES)
async def test_a_client_that_leaves_in_the_middle_leaves_nothing_running(tmp_path: Path, mode: str) -> None:
    async with serving(tmp_path, mode) as served:
        calls = [
            asyncio.create_task(served.client.call_tool(TOOL, {"code": code}))
            for code in (
                "for (;;) {}",
                'import { never } from "@codemode/servers/plain"; await never({});',
            )
        ]
        await until(lambda: recorded(served.ledger, tool="never"), "a call upstream")
        everything = [served.process, *descendants(served.process.pid)]
        assert len(everything) >= 4
    await gone(everything)
    for call in calls:
        call.cancel()
    await within(asyncio.gather(*calls, return_exceptions=True))
    assert list((tmp_path / "s" / "run").glob("*")) == []


async def test_nothing_but_the_protocol_is_on_stdout(tmp_path: Path) -> None:
    """Every line is a JSON-RPC message that answers a request, whatever servers and scripts print."""
    servers = {"plain": plain_server(), "absent": {"command": "no-such-program-anywhere"}}
    config = write_config(tmp_path, servers)
    client = {"name": "test", "version": "1"}
    hello = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": client}
    talkative = {"code": "console.log('to the logs'); throw 1;"}
    endless = {"code": "for (;;) {}", "limits": {"timeoutMs": 100}}
    messages: list[dict[str, Any]] = [
        {"id": 1, "method": "initialize", "params": hello},
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/list"},
        {"id": 3, "method": "tools/call", "params": {"name": TOOL, "arguments": talkative}},
        {"id": 4, "method": "no/such/method"},
        {"id": 5, "method": "tools/call", "params": {"name": TOOL, "arguments": endless}},
    ]
    lines = [json.dumps({"jsonrpc": "2.0", **message}).encode() for message in messages]
    lines.insert(3, b"this is no JSON")
    process = await asyncio.create_subprocess_exec(
        str(CELLBLOCK),
        "serve",
        "--config",
        str(config),
        "--state-dir",
        str(tmp_path / "s"),
        stdin=PIPE,
        stdout=PIPE,
        stderr=PIPE,
    )
    process.stdin.write(b"\n".join(lines) + b"\n")
    answered: dict[int, dict[str, Any]] = {}
    while len(answered) < 5:
        line = await within(process.stdout.readline())
        message = json.loads(line)
        assert message["jsonrpc"] == "2.0"
        if "id" in message and message["id"] is not None:
            answered[message["id"]] = message
    process.stdin.close()
    rest, _ = await within(process.communicate())
    # On a busy machine, that the servers have come may be told last.
    assert all("method" in json.loads(line) for line in rest.splitlines())
    assert process.returncode == 0
    assert set(answered) == {1, 2, 3, 4, 5}
    assert answered[3]["result"]["structuredContent"]["diagnostics"][0]["code"] == "UNCAUGHT_EXCEPTION"
    assert "error" in answered[4]
    assert answered[5]["result"]["structuredContent"]["diagnostics"][0]["code"] == "SANDBOX_LIMIT"
