"""Upstream MCP servers over stdio through a whole broker: connecting, listing, results, environments."""

import os
import time
from pathlib import Path

import pytest

from cellblock import Broker
from support.brokers import ready
from support.entries import plain_server, sdk_server, settings
from support.params import mostly
from support.responses import succeeded
from support.waits import within

SECRET = "s3cr3t-upstream-token-0193"


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
