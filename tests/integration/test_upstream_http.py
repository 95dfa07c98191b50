"""Upstream servers that are reached by URL: streamable HTTP and SSE, headers, refusals, loss and return."""

import asyncio
import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

import pytest

from cellblock import Broker
from support.brokers import ready
from support.entries import forked_server, settings
from support.http_server import free_port
from support.public_servers import node_entry
from support.responses import succeeded
from support.waits import until, until_found, within

CODE = """
    import * as remote from "@codemode/servers/remote";
    const waits = Array.from({ length: 4 }, () => remote.sleep({ ms: 1000 }));
    const started = performance.now();
    await Promise.all(waits);
    globalThis.__codemode_result__ = { ms: performance.now() - started, last: await remote.numbered_011({}) };
"""


@contextmanager
def running(command: Sequence[str], **environment: str) -> Iterator[subprocess.Popen[str]]:
    """A server process with its stdout and stderr in one pipe; killed at the end."""
    process = subprocess.Popen(
        command,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={"PATH": os.environ["PATH"], **environment},
        text=True,
    )
    try:
        yield process
    finally:
        process.kill()
        process.wait(timeout=10)
        if process.stdout is not None:
            process.stdout.close()


def sdk_command(transport: str, *args: str) -> list[str]:
    return forked_server("sdk_server.py", transport, "--tools", 12, "--page", 5, *args)


def port_of(process: subprocess.Popen[str]) -> int:
    """The port that `sdk_server.py` says it listens on; pytest's own timeout bounds the wait."""
    output: IO[str] | None = process.stdout
    line = output.readline()
    assert line.startswith("port "), line
    return int(line.split()[1])


def wait_for_line(process: subprocess.Popen[str], wanted: str) -> None:
    output: IO[str] | None = process.stdout
    assert wanted in iter(output.readline, "")


def accepts(port: int) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=1):
            return True
    except OSError:
        return False


@pytest.mark.parametrize(
    ("transport", "entry"),
    [
        ("http", {"url": "http://127.0.0.1:PORT/mcp"}),
        pytest.param(
            "http",
            {"url": "http://127.0.0.1:PORT/mcp", "type": "streamable-http"},
            marks=pytest.mark.thorough,
        ),
        ("sse", {"url": "http://127.0.0.1:PORT/sse", "type": "sse"}),
    ],
    ids=["url alone", "streamable-http", "sse"],
)
async def test_the_sdks_server_over_http(tmp_path: Path, transport: str, entry: dict[str, str]) -> None:
    with running(sdk_command(transport)) as process:
        entry = {**entry, "url": entry["url"].replace("PORT", str(port_of(process)))}
        async with ready(settings(tmp_path, {"remote": entry})) as broker:
            assert "remote" in broker.catalog.servers, broker.catalog.unavailable
            assert len(broker.catalog.servers["remote"].tools) == 15
            result = succeeded(await within(broker.run(CODE)))
    assert result["last"] == "numbered_011"
    assert result["ms"] < 3000


@pytest.mark.usefixtures("quick_retries")
async def test_an_event_over_the_cap_ends_a_session_of_the_older_transport(tmp_path: Path) -> None:
    """All answers share its one stream: what is over the cap fails its call, which says so, and the session is opened
    again."""
    code = """
        import { flood } from "@codemode/servers/remote";
        const given = await flood({ bytes: 900_000 });
        let failure = "none";
        try { await flood({ bytes: 3_000_000 }); } catch (error) { failure = error.message; }
        globalThis.__codemode_result__ = [given.length, failure];
    """
    with running(sdk_command("sse", "--flood")) as process:
        entry = {"url": f"http://127.0.0.1:{port_of(process)}/sse", "type": "sse"}
        async with ready(settings(tmp_path, {"remote": entry}, max_message_bytes=1_000_000)) as broker:
            length, failure = succeeded(await within(broker.run(code)))
            assert length == 900_000
            assert "closed during flood" in failure
            assert "over the maximum of 2000000 (twice max_message_bytes" in failure
            await until(lambda: "remote" in broker.catalog.servers, "the session is opened again")


async def test_headers_are_sent_and_a_refusal_is_reported(tmp_path: Path) -> None:
    token = "Bearer 52a7"
    with running(sdk_command("http", "--require-header", f"authorization={token}")) as process:
        url = f"http://127.0.0.1:{port_of(process)}/mcp"
        servers = {
            "remote": {"url": url, "headers": {"Authorization": token}},
            "refused": {"url": url},
        }
        async with ready(settings(tmp_path, servers)) as broker:
            assert set(broker.catalog.servers) == {"remote"}
            reason = broker.catalog.unavailable["refused"]
            assert "401" in reason, reason
            assert token not in reason
            result = succeeded(await within(broker.run(CODE)))
    assert result["last"] == "numbered_011"


@pytest.mark.usefixtures("quick_retries")
@pytest.mark.servers
async def test_a_server_that_was_restarted_gets_a_new_session(tmp_path: Path) -> None:
    """The session id of the old process means nothing to the new one, and no stream says so."""
    port = free_port()
    server = node_entry("server-everything", "streamableHttp")
    command = [server["command"], *server["args"]]
    code = """
        import { echo } from "@codemode/servers/remote";
        globalThis.__codemode_result__ = await echo({ message: "hi" });
    """
    servers = {"remote": {"url": f"http://127.0.0.1:{port}/mcp"}}
    async with Broker(settings(tmp_path, servers)) as broker:
        for _ in range(2):
            with running(command, PORT=str(port)):
                await until(lambda: accepts(port), "server-everything listens")

                async def answered() -> object:
                    return (await within(broker.run(code))).result

                assert await until_found(answered, "it is connected again") == "Echo: hi"


async def test_a_changed_tool_list_is_announced_over_http(tmp_path: Path) -> None:
    with running(sdk_command("http")) as process:
        url = f"http://127.0.0.1:{port_of(process)}/mcp"
        async with ready(settings(tmp_path, {"remote": {"url": url}}, pins="warn")) as broker:
            version = broker.catalog.version
            grow = 'import { grow } from "@codemode/servers/remote"; await grow({ name: "added_later" });'
            succeeded(await within(broker.run(grow)))
            await until(lambda: broker.catalog.version > version, "a new catalog")
            names = {tool.tool_name for tool in broker.catalog.servers["remote"].tools}
            assert "added_later" in names


async def test_a_server_that_goes_away_in_a_call_fails_the_call_and_not_the_run(tmp_path: Path) -> None:
    code = """
        import { sleep } from "@codemode/servers/remote";
        try {
            await sleep({ ms: 60000 });
        } catch (error) {
            globalThis.__codemode_result__ = { name: error.name, certainty: error.certainty };
        }
    """
    with running(sdk_command("http")) as process:
        url = f"http://127.0.0.1:{port_of(process)}/mcp"
        bounds = {"call_timeout_ms": 3000}
        async with ready(settings(tmp_path, {"remote": {"url": url}}, upstream=bounds)) as broker:
            run = asyncio.create_task(broker.run(code))
            await within(asyncio.to_thread(wait_for_line, process, "sleeps\n"))
            process.kill()
            result = succeeded(await within(run))
    assert result == {"name": "ToolCallError", "certainty": "may_have_run"}
