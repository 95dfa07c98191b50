"""Upstream MCP servers over stdio through a whole broker: connecting, listing, results, environments."""

import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from cellblock import Broker
from support.brokers import ready
from support.entries import plain_server, sdk_server, settings
from support.params import mostly
from support.public_servers import node_entry
from support.responses import succeeded
from support.waits import within

SECRET = "s3cr3t-upstream-token-0193"


@pytest.fixture(scope="module")
async def everything(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    """A broker with server-everything and a plain server that is given a secret."""
    servers: dict[str, Any] = {
        "everything": node_entry("server-everything", "stdio"),
        "plain": plain_server(env={"UPSTREAM_TOKEN": SECRET}),
    }
    async with ready(settings(tmp_path_factory.mktemp("everything"), servers)) as broker:
        assert set(broker.catalog.servers) == {"everything", "plain"}, broker.catalog.unavailable
        yield broker


async def test_servers_connect_in_parallel(tmp_path: Path) -> None:
    delay, count = 3.0, 6
    servers = {f"slow-{number}": plain_server("--start-delay", delay) for number in range(count)}
    async with Broker(settings(tmp_path, servers)) as broker:
        started = time.monotonic()
        await broker.settled()
        took = time.monotonic() - started
        assert len(broker.catalog.servers) == count
    assert took < delay * count / 2


@pytest.mark.parametrize(("tools", "page"), mostly([(25, 10)], [(25, 10), (7, 1), (10, 10)]))
async def test_tools_are_listed_to_the_last_page(tmp_path: Path, tools: int, page: int) -> None:
    entry = sdk_server("stdio", "--tools", tools, "--page", page)
    async with ready(settings(tmp_path, {"paged": entry})) as broker:
        names = {tool.tool_name for tool in broker.catalog.servers["paged"].tools}
        assert names == {f"numbered_{number:03}" for number in range(tools)} | {"grow", "headers", "sleep"}
        last = f"numbered_{tools - 1:03}"
        code = f"""
            import {{ {last} }} from "@codemode/servers/paged";
            globalThis.__codemode_result__ = await {last}({{}});
        """
        assert succeeded(await within(broker.run(code))) == last


async def test_a_server_gets_its_env_and_none_of_the_brokers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("BROKERS_OWN_CREDENTIAL", "not for servers")
    code = """
        import { environment } from "@codemode/servers/plain";
        globalThis.__codemode_result__ = JSON.parse(await environment({}));
    """
    entry = plain_server(env={"UPSTREAM_TOKEN": SECRET, "LANG": "C"})
    async with Broker(settings(tmp_path, {"plain": entry})) as broker:
        environment = succeeded(await within(broker.run(code)))
    assert environment["UPSTREAM_TOKEN"] == SECRET
    assert environment["LANG"] == "C"
    assert environment["PATH"] == os.environ["PATH"]
    assert "BROKERS_OWN_CREDENTIAL" not in environment


async def test_a_server_name_that_is_no_path_is_importable_by_its_path(tmp_path: Path) -> None:
    """Section 5.0.1, with two names that collide."""
    servers = {"My Server!": plain_server(), "my-server": plain_server()}
    code = """
        import * as first from "@codemode/servers/my-server";
        import * as second from "@codemode/servers/my-server--2";
        const pids = [await first.pid({}), await second.pid({})];
        globalThis.__codemode_result__ = [first.__meta__.serverId, second.__meta__.serverId, pids[0] !== pids[1]];
    """
    async with Broker(settings(tmp_path, servers)) as broker:
        result = succeeded(await within(broker.run(code)))
    assert result == ["my-server", "my-server--2", True]
