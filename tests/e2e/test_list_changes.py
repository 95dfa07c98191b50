"""Clients are told when the tools behind a daemon change: by a server that says so, and by a changed configuration."""

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

from support.asking_client import connect, over_http, stdio
from support.entries import plain_server, write_config
from support.http_daemon import TOOL, daemon
from support.params import mostly
from support.waits import until, until_found, within

GROW = 'import { grow } from "@codemode/servers/plain"; await grow({ name: "later" });'
PLAIN = "codemode://servers/plain.d.ts"


@dataclass
class Told:
    """A client, and what it was told."""

    client: Client
    modern: bool
    joined_late: bool
    """Whether the servers had started when it began to listen: only then is their start surely no news to it."""

    said: list[str] = field(default_factory=list[str])

    def forget(self) -> None:
        """All but how often the list of resources has changed."""
        self.said[:] = [one for one in self.said if one == "resources"]

    async def hears(self, *wanted: str) -> None:
        await until(lambda: set(wanted) <= set(self.said), f"{wanted}, of which came {self.said}")

    async def describes(self, name: str) -> bool:
        (tool,) = (await within(self.client.list_tools())).tools
        return name in (tool.description or "")


async def started(client: Client, declarations: str = PLAIN) -> None:
    """Waits until a server has started: its declarations are a resource then."""

    async def is_there() -> bool:
        return declarations in [str(one.uri) for one in (await within(client.list_resources())).resources]

    await until_found(is_there, declarations)


@asynccontextmanager
async def told(transport: Any, mode: str, *, joins_late: bool = False) -> AsyncGenerator[Told]:
    """A client that listens as its generation of the protocol does: the older one from its greeting on."""
    holder: list[Told] = []

    async def on_message(message: object) -> None:
        kinds = {
            types.ToolListChangedNotification: "tools",
            types.ResourceListChangedNotification: "resources",
        }
        # The stream below gives the same.
        if mode == "legacy" and type(message) in kinds:
            holder[0].said.append(kinds[type(message)])

    client = Client(transport, mode=mode, message_handler=on_message, cache=None)
    async with client:
        holder.append(Told(client, mode == "auto", joins_late or mode == "auto"))
        able = client.server_capabilities
        assert able.tools is not None and able.tools.list_changed
        assert able.resources is not None and able.resources.list_changed
        if mode == "legacy":
            assert not able.resources.subscribe
            yield holder[0]
            return
        await started(client)
        async with client.listen(
            tools_list_changed=True, resources_list_changed=True, resource_subscriptions=[PLAIN]
        ) as changes:

            async def follow() -> None:
                names = {ToolsListChanged: "tools", ResourcesListChanged: "resources", ResourceUpdated: PLAIN}
                async for event in changes:
                    holder[0].said.append(names[type(event)])  # type: ignore[index]
                holder[0].said.append("ended")

            following = asyncio.create_task(follow())
            try:
                yield holder[0]
            finally:
                following.cancel()
                await asyncio.wait([following])


async def check(config: Path, asked: Told, *others: Told) -> None:
    """A tool more, and a server more: only that one changes the list of resources."""
    assert not (await within(asked.client.call_tool(TOOL, {"code": GROW}))).is_error
    for one in (asked, *others):
        await one.hears("tools", *([PLAIN] if one.modern else []))
        # The server's start may have been news to it, too, before its change was.
        await until_found(lambda client=one: client.describes("later"), "the tool that is new")
        one.forget()
    add_server(config)
    for one in (asked, *others):
        await one.hears("tools", "resources")
        await started(one.client, "codemode://servers/second.d.ts")
        assert PLAIN not in one.said
        assert one.said.count("resources") == 1 or not one.joined_late, one.said


def add_server(file: Path) -> None:
    content = json.loads(file.read_text())
    content["mcpServers"]["second"] = plain_server()
    made = file.with_name("new")
    made.write_text(json.dumps(content))
    made.replace(file)


@pytest.mark.parametrize("mode", mostly(["auto"], ["auto", "legacy"]))
async def test_over_stdio(tmp_path: Path, mode: str) -> None:
    config = write_config(tmp_path, {"plain": plain_server()})
    async with told(stdio(config, tmp_path / "s"), mode) as asked:
        await check(config, asked)


async def test_over_http_and_through_connect(tmp_path: Path) -> None:
    """Each of four clients is told, and streams that stay open hold neither readiness nor the end up."""
    async with (
        daemon(tmp_path, http={"drain_ms": 60_000}) as running,
        over_http(running) as modern,
        over_http(running) as older,
        # The others join when it listens, after the start.
        told(modern, "auto") as first,
        told(older, "legacy", joins_late=True) as second,
        told(connect(running), "auto") as third,
        told(connect(running), "legacy", joins_late=True) as fourth,
    ):
        await check(tmp_path / "cellblock.json", first, second, third, fourth)
        assert (await running.ask("GET", "/readyz")).status == 200
        # What a new session is shown is of now, not of the daemon's start.
        async with running.client("legacy") as late:
            assert "- plain" in ((await late.list_tools()).tools[0].description or "")
        began = time.monotonic()
        running.process.terminate()
        await within(running.process.wait())
        assert time.monotonic() - began < 40
        await first.hears("ended")
        await third.hears("ended")
