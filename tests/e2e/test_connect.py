"""`cellblock connect`: an MCP client at its pipes, a real daemon behind it."""

import asyncio
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from mcp import Client, StdioServerParameters, stdio_client

from support.cellblock_zygote import forked_cellblock
from support.commands import cellblock, piped
from support.http_daemon import INITIALIZE, TOOL, Daemon, daemon
from support.waits import until, within

NEVER = 'import { never } from "@codemode/servers/plain"; await never({});'


def arguments(running: Daemon) -> list[str]:
    return ["connect", "--url", running.url, "--state-dir", str(running.folder / "s"), "--no-start"]


def over_http(running: Daemon) -> list[str]:
    """As to another user's daemon, whose socket is not in this state directory."""
    other = str(running.folder / "other")
    return [
        "connect",
        "--url",
        running.url,
        "--token-file",
        str(running.folder / "s" / "token"),
        "--state-dir",
        other,
    ]


@pytest.mark.parametrize("words", [arguments, over_http])
@pytest.mark.parametrize(("mode", "version"), [("auto", "2026-07-28"), ("legacy", "2025-11-25")])
async def test_an_editor_sees_the_daemon_as_if_it_were_its_own(
    served: Daemon, words: Callable[[Daemon], list[str]], mode: str, version: str
) -> None:
    """Tool lists, calls, errors, resources and cancellation; and the upstream session is the one of all."""
    parameters = StdioServerParameters(command=str(forked_cellblock()), args=words(served))
    async with Client(parameters, mode=mode) as client:
        assert client.protocol_version == version
        (tool,) = (await within(client.list_tools())).tools
        assert tool.name == TOOL
        code = 'import { echo } from "@codemode/servers/plain"; globalThis.__codemode_result__ = await echo({ ü: 1 });'
        result = await within(client.call_tool(TOOL, {"code": code}), 60)
        assert result.structured_content["result"] == r'{"\u00fc": 1}'
        starts = served.recorded(event="start")
        assert (await within(client.call_tool(TOOL, {}))).is_error
        assert len((await within(client.list_resources())).resources) == 1
        # Results over the SDK's default bound of one event.
        code = "globalThis.__codemode_result__ = 'x'.repeat(3 * 1024 * 1024);"
        result = await within(client.call_tool(TOOL, {"code": code}), 60)
        assert len(result.structured_content["result"]) == 3 * 1024 * 1024
        calls, cancelled = served.recorded(tool="never"), served.recorded(event="cancelled")
        call = asyncio.create_task(client.call_tool(TOOL, {"code": NEVER}))
        await until(lambda: served.recorded(tool="never") > calls, "the script is in its call")
        call.cancel()
        with pytest.raises(asyncio.CancelledError):
            await within(call)
        await until(lambda: served.recorded(event="cancelled") > cancelled, "a cancel notification upstream")
    assert served.recorded(event="start") == starts


def call(request_id: int, code: str) -> dict[str, Any]:
    params = {"name": TOOL, "arguments": {"code": code}}
    return {"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params}


INITIALIZED = {"jsonrpc": "2.0", "method": "notifications/initialized"}


async def test_a_client_that_sends_everything_at_once_and_closes_gets_its_answers(served: Daemon) -> None:
    async with piped(*arguments(served)) as relay:
        seven = call(2, "globalThis.__codemode_result__ = 7;")
        relay.send(INITIALIZE, INITIALIZED, seven, b"this is no JSON\n")
        relay.close()
        answers = {found["id"]: found for found in [await relay.answer() for _ in range(3)]}
        assert answers[INITIALIZE["id"]]["result"]["serverInfo"]["name"] == "cellblock"
        assert answers[2]["result"]["structuredContent"]["result"] == 7
        assert answers[None]["error"]["code"] == -32700
        assert await relay.end() == 0


async def test_a_daemon_that_stops_answers_what_it_ends_and_takes_its_socket_away(tmp_path: Path) -> None:
    async with (
        daemon(tmp_path, http={"drain_ms": 100}) as running,
        piped(*arguments(running)) as relay,
    ):
        relay.send(INITIALIZE, INITIALIZED)
        assert "result" in await relay.answer()
        relay.send(call(2, NEVER))
        await until(lambda: running.recorded(tool="never"), "the script is in its call")
        running.process.terminate()
        told = await relay.answer()
        assert told["id"] == 2 and "The daemon is stopping" in json.dumps(told)
        await within(running.process.wait())
        assert list((tmp_path / "s" / "daemons").iterdir()) == []


@pytest.mark.parametrize("token", ["wrong", "none", "unreadable"])
async def test_without_the_right_token_it_says_so(served: Daemon, tmp_path: Path, token: str) -> None:
    file = tmp_path / "token"
    options = ["--token-file", str(file)]
    if token == "none":
        options = ["--state-dir", str(tmp_path / "empty")]
    else:
        file.touch(0o600 if token == "wrong" else 0o644)
        file.write_text("w" * 43)
    done = await cellblock("connect", "--url", served.url, *options, given=b"")
    assert (done.code, "token" in done.err) == (2 if token == "unreadable" else 3, True)


async def test_without_a_daemon_it_says_how_to_start_one(tmp_path: Path) -> None:
    words = ("connect", "--url", "http://127.0.0.1:1/mcp", "--state-dir", tmp_path, "--no-start")
    done = await cellblock(*words, given=b"")
    assert (done.code, done.out, "cellblock serve --http" in done.err) == (3, "", True)


async def test_a_relay_needs_no_secret_of_the_daemons_configuration(served: Daemon, tmp_path: Path) -> None:
    """It has the state directory from the same file, and neither the variables nor a sound file beside."""
    config = tmp_path / "cellblock.json"
    entry = {
        "url": "https://wiki.example/mcp",
        "headers": {"Authorization": "Bearer ${env:NOT_SET_ANYWHERE}"},
    }
    section = {"state_dir": str(served.folder / "s"), "pool": {"warm": -1}}
    config.write_text(json.dumps({"mcpServers": {"wiki": entry}, "cellblock": section}))
    errors = tmp_path / "errors"
    words = ["connect", "--url", served.url, "--config", str(config), "--no-start"]
    with errors.open("w") as log:
        parameters = StdioServerParameters(command=str(forked_cellblock()), args=words)
        async with Client(stdio_client(parameters, errlog=log)) as client:
            (tool,) = (await within(client.list_tools())).tools
            assert tool.name == TOOL
    # Its faults are for whoever serves with it.
    assert errors.read_text() == ""


async def test_to_and_from_files(served: Daemon, tmp_path: Path) -> None:
    asked, answered = tmp_path / "asked", tmp_path / "answered"
    lines = (INITIALIZE, INITIALIZED, {"jsonrpc": "2.0", "id": 2, "method": "tools/list"})
    asked.write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    with asked.open("rb") as stdin, answered.open("wb") as stdout:
        process = await asyncio.create_subprocess_exec(
            str(forked_cellblock()), *arguments(served), stdin=stdin, stdout=stdout
        )
        assert await within(process.wait(), 60) == 0
    found = [json.loads(line) for line in answered.read_text().splitlines()]
    assert [one["id"] for one in found] == [INITIALIZE["id"], 2]
    assert "tools" in found[1]["result"]


async def test_a_client_that_reads_nothing_more_keeps_nobody(served: Daemon) -> None:
    """Its pipe is full of an answer when it goes."""
    async with piped(*arguments(served)) as relay:
        relay.send(INITIALIZE, INITIALIZED, call(2, "globalThis.__codemode_result__ = 'x'.repeat(4e6);"))
        assert "result" in await relay.answer()
        relay.close()
        process = relay.process
        # `wait` would wait for the pipe's end, which is behind what is in it.
        await until(lambda: process.returncode is not None, "the relay ends", bound=60)
        assert process.returncode == 0
        await within(process.stdout.read(), 60)
