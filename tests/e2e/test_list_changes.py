"""Clients are told when the tools behind a daemon change: by a server that says so, and by a changed configuration."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client
from mcp.server.subscriptions import ResourceUpdated, ToolsListChanged
from mcp.shared.subscriptions import ResourcesListChanged

from asking_client import connect, over_http, stdio
from http_daemon import TOOL, Daemon, daemon
from support import plain_server, until, within, write_config

GROW = 'import { grow } from "@codemode/servers/plain"; await grow({ name: NAME });'
PLAIN = "codemode://servers/plain.d.ts"


@dataclass
class Told:
    """A client, and what it was told."""

    client: Client
    modern: bool
    said: list[str] = field(default_factory=list[str])

    def forget(self) -> None:
        self.said.clear()

    async def hears(self, *wanted: str) -> None:
        await until(lambda: set(wanted) <= set(self.said), f"{wanted}, of which came {self.said}", bound=30)

    async def description(self) -> str:
        (tool,) = (await within(self.client.list_tools())).tools
        assert tool.description is not None
        return tool.description

    async def resources(self) -> list[str]:
        return [str(one.uri) for one in (await within(self.client.list_resources())).resources]


@asynccontextmanager
async def told(transport: Any, mode: str) -> AsyncGenerator[Told]:
    """A client that listens as its generation of the protocol does."""
    holder: list[Told] = []

    async def on_message(message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            holder[0].said.append("tools")
        elif isinstance(message, types.ResourceListChangedNotification):
            holder[0].said.append("resources")

    client = Client(transport, mode=mode, message_handler=on_message, cache=None)
    async with client:
        holder.append(Told(client, mode == "auto"))
        able = client.server_capabilities
        assert able.tools is not None and able.tools.list_changed
        assert able.resources is not None and able.resources.list_changed
        if mode == "legacy":
            assert not able.resources.subscribe
            yield holder[0]
            return
        async with client.listen(
            tools_list_changed=True, resources_list_changed=True, resource_subscriptions=[PLAIN]
        ) as changes:

            async def follow() -> None:
                names = {ToolsListChanged: "tools", ResourcesListChanged: "resources", ResourceUpdated: PLAIN}
                async for event in changes:
                    holder[0].said.append(names[type(event)])
                holder[0].said.append("ended")

            following = asyncio.create_task(follow())
            try:
                yield holder[0]
            finally:
                following.cancel()
                await asyncio.wait([following])


async def grow(client: Client, name: str) -> None:
    done = await within(client.call_tool(TOOL, {"code": GROW.replace("NAME", json.dumps(name))}), 60)
    assert not done.is_error


async def check(asked: Told, config: Path) -> None:
    """A tool more, and a server more."""
    await grow(asked.client, "later")
    await asked.hears("tools", *([PLAIN] if asked.modern else []))
    assert "later" in await asked.description()
    asked.forget()
    add_server(config)
    await asked.hears("tools", "resources")
    assert "codemode://servers/second.d.ts" in await asked.resources()
    assert PLAIN not in asked.said


def add_server(file: Path) -> None:
    content = json.loads(file.read_text())
    content["mcpServers"]["second"] = plain_server()
    made = file.with_name("new")
    made.write_text(json.dumps(content))
    made.replace(file)


@pytest.mark.parametrize("mode", ["auto", "legacy"])
async def test_over_stdio(tmp_path: Path, mode: str) -> None:
    config = write_config(tmp_path, {"plain": plain_server()}, pool={"warm": 1})
    async with told(stdio(config, tmp_path / "s"), mode) as asked:
        await check(asked, config)


async def test_over_http_and_through_connect(tmp_path: Path) -> None:
    """Each of four clients is told, and streams that stay open hold neither readiness nor the end up."""
    async with (
        daemon(tmp_path, http={"drain_ms": 60_000}, pool={"warm": 1}) as running,
        over_http(running) as modern,
        over_http(running) as older,
        told(modern, "auto") as first,
        told(older, "legacy") as second,
        told(connect(running), "auto") as third,
        told(connect(running), "legacy") as fourth,
    ):
        others = [second, third, fourth]
        await check(first, tmp_path / "cellblock.json")
        for one in others:
            await one.hears("tools", "resources")
        assert (await running.ask("GET", "/readyz")).status == 200
        await greeted_anew(running)
        began = time.monotonic()
        running.process.terminate()
        await within(running.process.wait(), 40)
        assert time.monotonic() - began < 40
        await first.hears("ended")
        await third.hears("ended")


async def greeted_anew(running: Daemon) -> None:
    """What a new session is greeted with is of now, not of the daemon's start."""
    async with running.client("legacy") as late:
        assert "plain: 18 tools" in (late.instructions or ""), late.instructions
