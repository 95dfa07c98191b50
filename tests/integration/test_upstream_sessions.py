"""Upstream MCP servers over stdio through a whole broker: connecting, listing, results, environments."""

from __future__ import annotations

import contextlib
import json
import os
import time
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from cellblock import Broker
from support.entries import ledger, plain_server, sdk_server, settings
from support.processes import workers_of
from support.public_servers import ServerEntry, node_entry
from support.responses import error_of, succeeded
from support.waits import until, warmed, within

SECRET = "s3cr3t-upstream-token-0193"


@pytest.fixture(scope="module")
async def everything(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    """A broker with server-everything and a plain server that is given a secret."""
    servers: dict[str, Any] = {
        "everything": node_entry("server-everything", "stdio"),
        "plain": plain_server(env={"UPSTREAM_TOKEN": SECRET}),
    }
    async with Broker(settings(tmp_path_factory.mktemp("everything"), servers)) as broker:
        await broker.settled()
        assert set(broker.catalog.servers) == {"everything", "plain"}, broker.catalog.unavailable
        yield broker


@pytest.mark.thorough
@pytest.mark.servers
async def test_one_script_uses_five_public_servers(
    tmp_path: Path,
    server_everything: ServerEntry,
    server_filesystem: ServerEntry,
    server_memory: ServerEntry,
    server_time: ServerEntry,
    server_git: ServerEntry,
    git_repository: Path,
) -> None:
    """Sections 5, 10: several servers in one run, each call reaches its own server."""
    servers = {
        "everything": server_everything,
        "filesystem": server_filesystem,
        "memory": server_memory,
        "time": server_time,
        "git": server_git,
    }
    folder = server_filesystem["args"][-1]
    code = f"""
        import * as everything from "@codemode/servers/everything";
        import * as filesystem from "@codemode/servers/filesystem";
        import * as memory from "@codemode/servers/memory";
        import * as time from "@codemode/servers/time";
        import * as git from "@codemode/servers/git";
        const entity = {{ name: "Topaz", entityType: "apple", observations: ["late"] }};
        const [sum, file, _, converted, log] = await Promise.all([
            everything.get_sum({{ a: 20, b: 22 }}),
            filesystem.read_text_file({{ path: {json.dumps(folder + "/hello.txt")} }}),
            memory.create_entities({{ entities: [entity] }}),
            time.convert_time({{ source_timezone: "Asia/Tokyo", time: "09:00", target_timezone: "UTC" }}),
            git.git_log({{ repo_path: {json.dumps(str(git_repository))}, max_count: 10 }}),
        ]);
        const graph = await memory.read_graph({{}});
        const lost = {{ timezone: "Nowhere/At_All" }};
        const nowhere = await time.get_current_time(lost).catch((error) => error.name);
        globalThis.__codemode_result__ = {{ sum, file, converted, log, nowhere, entities: graph.entities }};
    """
    async with Broker(settings(tmp_path / "state", servers)) as broker:
        result = succeeded(await within(broker.run(code)))
        assert list(broker.catalog.servers) == list(servers)
    assert "42" in result["sum"]
    assert "Hello from a file." in json.dumps(result["file"])
    assert result["converted"]["target"]["datetime"].endswith("T00:00:00+00:00")
    assert result["log"].index("Add Topaz") < result["log"].index("Add a README")
    assert result["nowhere"] == "ToolCallError"
    assert result["entities"] == [{"name": "Topaz", "entityType": "apple", "observations": ["late"]}]


async def test_servers_connect_in_parallel(tmp_path: Path) -> None:
    delay, count = 3.0, 6
    servers = {f"slow-{number}": plain_server("--start-delay", delay) for number in range(count)}
    async with Broker(settings(tmp_path, servers)) as broker:
        started = time.monotonic()
        await broker.settled()
        took = time.monotonic() - started
        assert len(broker.catalog.servers) == count
    assert took < delay * count / 2


@pytest.mark.parametrize(("tools", "page"), [(25, 10), (7, 1), (10, 10)])
async def test_tools_are_listed_to_the_last_page(tmp_path: Path, tools: int, page: int) -> None:
    entry = sdk_server("stdio", "--tools", tools, "--page", page)
    async with Broker(settings(tmp_path, {"paged": entry})) as broker:
        await broker.settled()
        names = {tool.tool_name for tool in broker.catalog.servers["paged"].tools}
        assert names == {f"numbered_{number:03}" for number in range(tools)} | {"grow", "headers", "sleep"}
        last = f"numbered_{tools - 1:03}"
        code = f"""
            import {{ {last} }} from "@codemode/servers/paged";
            globalThis.__codemode_result__ = await {last}({{}});
        """
        assert succeeded(await within(broker.run(code))) == last


@pytest.mark.parametrize("entry", [plain_server(), sdk_server()], ids=["handshake era", "2026-07-28"])
async def test_a_changed_tool_list_is_there_for_the_next_run(tmp_path: Path, entry: dict[str, Any]) -> None:
    """Sections 8.1 and 8.2: the next run sees the new tool, the one in flight keeps the set it started with."""
    async with Broker(settings(tmp_path, {"growing": entry})) as broker:
        await broker.settled()
        code = """
            import * as growing from "@codemode/servers/growing";
            import { listTools } from "@codemode/discovery";
            const before = (await listTools("growing")).length;
            await growing.grow({ name: "added_later" });
            await growing[SLOW]({ ms: 500 });
            const after = (await listTools("growing")).length;
            globalThis.__codemode_result__ = { before, after, bound: "added_later" in growing };
        """.replace("SLOW", '"wait" in growing ? "wait" : "sleep"')
        result = succeeded(await within(broker.run(code)))
        assert result["before"] == result["after"]
        assert result["bound"] is False
        # At once: a list that was announced as changed is read before the run that imports it.
        use = """
            import { added_later } from "@codemode/servers/growing";
            globalThis.__codemode_result__ = await added_later({});
        """
        assert succeeded(await within(broker.run(use))) in ("added_later", "{}")


@pytest.mark.servers
async def test_results_are_unwrapped_by_kind(everything: Broker) -> None:
    """Section 5.3.2 on the results of a real server."""
    code = """
        import * as everything from "@codemode/servers/everything";
        const text = await everything.echo({ message: "hello" });
        const structured = await everything.get_structured_content({ location: "Chicago" });
        const image = await everything.get_tiny_image({});
        globalThis.__codemode_result__ = { text, structured, image };
    """
    result = succeeded(await within(everything.run(code)))
    assert result["text"] == "Echo: hello"
    assert set(result["structured"]) == {"temperature", "conditions", "humidity"}
    blocks = {block["type"]: block for block in result["image"]["content"]}
    assert blocks["image"]["mimeType"] == "image/png"
    assert blocks["image"]["data"].startswith("iVBORw0KGgo")


async def test_an_error_result_is_an_exception_and_the_script_goes_on(everything: Broker) -> None:
    """Sections 7.1 and 10: `isError` is a ToolCallError; so is a JSON-RPC error; neither ends the run."""
    code = """
        import * as plain from "@codemode/servers/plain";
        import { ToolCallError, CodemodeError } from "@codemode/errors";
        const seen = [];
        const calls = [
            () => plain.fail({ text: "out of apples" }),
            () => plain.refuse({}),
            () => plain.refuse({ code: -32000 }), // also the SDK's own code for a closed connection
        ];
        for (const call of calls) {
            try {
                await call();
            } catch (error) {
                const { name, message, hint, certainty } = error;
                const known = error instanceof ToolCallError && error instanceof CodemodeError;
                seen.push({ known, name, message, hint, certainty });
            }
        }
        globalThis.__codemode_result__ = seen;
    """
    response = await within(everything.run(code))
    seen = succeeded(response)
    assert [error["known"] for error in seen] == [True] * 3
    assert all(error["hint"] for error in seen)
    assert seen[0]["message"] == "out of apples"
    assert seen[0]["certainty"] == "completed"
    assert "not like this" in seen[1]["message"]
    assert "not like this" in seen[2]["message"]
    assert [entry.ok for entry in response.tool_trace] == [False] * 3


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


@pytest.mark.servers
async def test_secrets_reach_neither_host_nor_workers(
    everything: Broker, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The environment, the command line and the memory of a host and its workers hold no `env` value."""
    await warmed(everything)
    assert everything.host_pid is not None
    processes = [psutil.Process(everything.host_pid), *workers_of(everything.host_pid)]
    read = 0
    for process in processes:
        folder = Path("/proc") / str(process.pid)
        # A warm worker may be replaced while we look.
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            assert SECRET.encode() not in (folder / "environ").read_bytes()
            assert SECRET.encode() not in (folder / "cmdline").read_bytes()
            read += 1
    assert read > 1
    host_environment = psutil.Process(everything.host_pid).environ()
    assert set(host_environment) <= {
        "PATH",
        "LANG",
        "LC_ALL",
        "LC_CTYPE",  # set by Python itself under the C locale
        "PYTHONPATH",
        "LD_LIBRARY_PATH",
    }


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


async def test_an_ended_run_cancels_its_calls_upstream(tmp_path: Path) -> None:
    """Section 7.4: a call in flight when the sandbox is ended gets the MCP cancel notification."""
    record = tmp_path / "ledger.jsonl"
    servers = {"plain": plain_server("--ledger", record)}
    code = """
        import { never, echo } from "@codemode/servers/plain";
        await echo({ first: true });
        await never({});
    """
    async with Broker(settings(tmp_path / "state", servers)) as broker:
        response = await within(broker.run(code, limits={"timeoutMs": 500}))
        found = error_of(response, "SANDBOX_LIMIT")
        assert "1 completed, 1 in flight (may have run), 0 not started" in found.message
        await until(
            lambda: any(event["event"] == "cancelled" for event in ledger(record)), "a cancel notification"
        )
    events = ledger(record)
    never = next(event for event in events if event.get("tool") == "never")
    assert [event["id"] for event in events if event["event"] == "cancelled"] == [never["id"]]
    assert [entry.tool_name for entry in response.tool_trace] == ["echo", "never"]
    assert [entry.ok for entry in response.tool_trace] == [True, False]
