"""A real client in front of real front-ends: what an upstream server asks reaches it, over stdio, over HTTP and
through a relay, in both generations of the protocol, although the server speaks only the older one."""

from __future__ import annotations

import asyncio
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path
from typing import Any

import mcp_types as types
from mcp import Client, StdioServerParameters

from support.cellblock_zygote import forked_cellblock
from support.entries import entry, forked_server, write_config
from support.waits import within

CODE = """
    import { elicit, sample } from "@codemode/servers/asking";
    globalThis.__codemode_result__ = [await elicit({}), await sample({})];
"""


async def elicit(context: Any, params: types.ElicitRequestParams) -> types.ElicitResult:
    return types.ElicitResult(action="accept", content={"name": params.message})


async def sample(context: Any, params: types.CreateMessageRequestParams) -> types.CreateMessageResult:
    return types.CreateMessageResult(role="assistant", content=types.TextContent(text="hi"), model="m")


async def asked(server: Any, mode: str) -> Any:
    async with Client(server, mode=mode, elicitation_callback=elicit, sampling_callback=sample) as client:
        run = await within(client.call_tool("codemode.run", {"code": CODE}), 60)
        assert run.structured_content is not None
        return run.structured_content["result"]


async def test_over_stdio_over_http_and_through_a_relay(tmp_path: Path) -> None:
    command = forked_server("asking_server.py", "stdio", "--older")
    config = write_config(tmp_path, {"asking": entry(command)})
    options = ["--config", str(config), "--state-dir", str(tmp_path / "s")]
    wanted = ["accept asking: Who are you?", "hi"]
    stdio = StdioServerParameters(command=str(forked_cellblock()), args=["serve", "--stdio", *options])
    for mode in ("legacy", "auto"):
        assert await asked(stdio, mode) == wanted

    process = await asyncio.create_subprocess_exec(
        *(str(forked_cellblock()), "serve", "--http", "127.0.0.1:0", "--no-auth", *options),
        stdin=DEVNULL,
        stdout=DEVNULL,
        stderr=PIPE,
    )
    try:
        assert process.stderr is not None
        line = ""
        while "serving" not in line:
            line = (await within(process.stderr.readline(), 60)).decode()
            assert line, "it did not start"
        url = line.split()[-1]
        words = ["connect", "--url", url, "--state-dir", str(tmp_path / "s")]
        relayed = StdioServerParameters(command=str(forked_cellblock()), args=words)
        for mode in ("legacy", "auto"):
            assert await asked(url, mode) == wanted
            assert await asked(relayed, mode) == wanted
    finally:
        process.terminate()
        await within(process.wait(), 40)
