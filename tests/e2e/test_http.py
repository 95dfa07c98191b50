"""The SDK's own client against `cellblock serve --http`, in both generations of the protocol."""

import asyncio
import json
import signal
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, MCPError
from mcp_types import CallToolResult

from cellblock_worker.wire.keys import make_key_file
from cellblock_worker.wire.protocol import PROTOCOL_VERSION
from support.http_daemon import MCP_HEADERS, TOOL, Daemon, daemon
from support.modern_client import ask as asked
from support.processes import alive
from support.waits import until, within

MODES = ("auto", "legacy")
NEVER = 'import { never } from "@codemode/servers/plain"; await never({});'


def result_of(result: CallToolResult) -> Any:
    assert not result.is_error, result.content
    assert result.structured_content["diagnostics"] == [], result.structured_content
    return result.structured_content["result"]


async def run(client: Client, code: str, **arguments: Any) -> CallToolResult:
    return await within(client.call_tool(TOOL, {"code": code, **arguments}))


async def test_a_client_that_hangs_up_ends_its_run(served: Daemon) -> None:
    """Also in a session, where the protocol would let it come back for the answer: there is nothing to come back to."""
    calls, cancelled = served.recorded(tool="never"), served.recorded(event="cancelled")
    opened = await served.ask(headers={**MCP_HEADERS, **served.auth})
    assert opened.status == 200
    session = {"Mcp-Session-Id": opened.headers["mcp-session-id"], "Mcp-Protocol-Version": "2025-06-18"}
    told = {"jsonrpc": "2.0", "method": "notifications/initialized"}
    headers = {**MCP_HEADERS, **served.auth, **session}
    assert (await served.ask(headers=headers, body=json.dumps(told).encode())).status == 202
    call = {"jsonrpc": "2.0", "id": 2, "method": "tools/call"}
    body = json.dumps({**call, "params": {"name": TOOL, "arguments": {"code": NEVER}}}).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", served.port)
    writer.write(served.request("POST", "/mcp", headers=headers, body=body))
    await until(lambda: served.recorded(tool="never") > calls, "the script is in its call")
    writer.transport.abort()
    await until(lambda: served.recorded(event="cancelled") > cancelled, "a cancel notification upstream")
    assert (await served.ask("DELETE", headers=headers)).status == 200
    assert (await served.ask(headers=headers, body=body)).status == 404
    del reader


async def test_probes_need_no_token(served: Daemon) -> None:
    # A worker's process is there long before it is warm; and no test of this file has left a run behind.
    await served.until_status("/readyz", 200)
    for path in ("/livez", "/readyz"):
        answer = await served.ask("GET", path)
        assert (answer.status, answer.body) == (200, b"ok\n"), path
        assert (await served.ask("POST", path)).status == 405


async def test_a_broker_without_a_host_is_not_ready_whoever_waits_there(tmp_path: Path) -> None:
    """In an upgrade hosts of one version do not serve brokers of another, and the balancer is to know."""
    make_key_file(tmp_path / "broker.key")
    hosts = {
        "local": False,
        "listen": "tcp://127.0.0.1:*",
        "key": str(tmp_path / "broker.key"),
        "allowed_keys": {"none": make_key_file(tmp_path / "host.key").public},
    }
    async with daemon(tmp_path, hosts=hosts, pool={"warm": 0, "queue_wait_ms": 600_000}) as running:
        said = f"not ready: no worker host is connected that speaks protocol {PROTOCOL_VERSION}"
        answer = await running.ask("GET", "/readyz")
        assert answer.status == 503 and said in answer.body.decode()
        waiting = asyncio.create_task(asked(running, "tools/call", TOOL, name=TOOL, arguments={"code": "1;"}))
        await running.until_says("/metrics", lambda answer: b"cellblock_pool_queued 1" in answer.body)
        answer = await running.ask("GET", "/readyz")
        assert answer.status == 503 and said in answer.body.decode()
        waiting.cancel()
        await asyncio.wait([waiting])


async def test_nothing_on_stderr_tells_the_token(served: Daemon) -> None:
    assert served.token
    assert not any(served.token in line for line in served.said)
    assert str(served.folder / "s" / "token") in served.said[1]


async def test_a_run_in_flight_ends_before_the_daemon_does(tmp_path: Path) -> None:
    code = """
        import { wait } from "@codemode/servers/plain";
        await wait({ ms: 1500 });
        globalThis.__codemode_result__ = "done";
    """
    for mode in MODES:
        folder = tmp_path / mode
        folder.mkdir()
        async with daemon(folder) as running, running.client(mode) as client:
            family = running.family()
            await within(client.list_tools())
            call = asyncio.create_task(run(client, code))
            await until(lambda running=running: running.recorded(tool="wait"), "the run is in its call")
            running.process.terminate()
            await running.until_status("/readyz", 503)
            assert (await running.ask("GET", "/livez")).status == 200
            # Nothing new is taken.
            assert (await running.ask(headers={**MCP_HEADERS, **running.auth})).status == 503
            with pytest.raises(MCPError, match="stopping"):
                await run(client, "1;")
            assert result_of(await call) == "done"
            assert await within(running.process.wait()) == 0
            await until(lambda family=family: not any(map(alive, family)), "no process is left")


async def test_the_bound_of_draining_ends_what_does_not_end_by_itself(tmp_path: Path) -> None:
    """A run, and the stream that a session has open for what the server may have to say."""
    async with daemon(tmp_path, http={"drain_ms": 300}) as running, running.client("legacy") as client:
        opened = await running.ask(headers={**MCP_HEADERS, **running.auth})
        session = {"Accept": "text/event-stream", "Mcp-Session-Id": opened.headers["mcp-session-id"]}
        reader, writer = await asyncio.open_connection("127.0.0.1", running.port)
        writer.write(running.request("GET", "/mcp", headers={**session, **running.auth}))
        assert b" 200 " in await within(reader.readline())
        call = asyncio.create_task(client.call_tool(TOOL, {"code": NEVER}))
        await until(lambda: running.recorded(tool="never"), "the script is in its call")
        running.process.terminate()
        with pytest.raises(MCPError, match="stopping"):
            await within(call)
        assert await within(running.process.wait()) == 0
        writer.close()


@pytest.mark.parametrize(("mode", "pauses"), [("auto", True), ("legacy", False)])
async def test_a_second_signal_kills(tmp_path: Path, mode: str, pauses: bool) -> None:
    """But the run's client is told, and stderr has no traceback, also where signals come without a pause."""
    async with daemon(tmp_path, http={"drain_ms": 600_000}) as running:
        family = running.family()
        async with running.client(mode) as client:
            call = asyncio.create_task(client.call_tool(TOOL, {"code": NEVER}))
            await until(lambda: running.recorded(tool="never"), "the script is in its call")
            running.process.terminate()
            if pauses:
                await running.until_status("/readyz", 503)
                assert running.process.returncode is None
                running.process.terminate()
                with pytest.raises(MCPError, match="the time that runs had to end by themselves is over"):
                    await within(call)
            else:
                # Those that come at the same moment are one.
                await until(
                    lambda: running.process.terminate() or running.process.returncode is not None,
                    "it ends",
                    pause=0.01,
                )
            assert await within(running.process.wait()) == 128 + signal.SIGTERM
            await until(lambda: not any(map(alive, family)), "no process is left")
            call.cancel()
            await within(asyncio.gather(call, return_exceptions=True))
    assert "Traceback" not in "".join(running.said)
