"""The first seconds of a broker: who waits for servers that are slow to start, hang or are dead, and for how long."""

from __future__ import annotations

import asyncio
import shlex
import sys
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client

from cellblock import Broker
from cellblock.frontend.mcp.opening import STARTING
from support.asking_client import stdio
from support.entries import plain_server, settings, write_config
from support.responses import error_of, succeeded
from support.waits import until, within

ONE = "globalThis.__codemode_result__ = 1;"
POOL = {"warm": 1, "capacity": 4}


def importing(server: str) -> str:
    """A script that calls a server."""
    return (
        f'import {{ echo }} from "@codemode/servers/{server}";'
        'globalThis.__codemode_result__ = await echo({ text: "x" });'
    )


def world(told: Path) -> dict[str, Any]:
    """One server that starts when `told` is there, one that is dead, one that never answers, and one that is fast."""
    return {
        "slow": plain_server("--start-when", told),
        "dead": {"command": sys.executable, "args": ["-c", "raise SystemExit(1)"]},
        "hanging": {"command": sys.executable, "args": ["-c", "import sys; sys.stdin.read()"]},
        "fast": plain_server(),
    }


async def test_a_run_waits_only_for_the_servers_that_it_imports_or_requests(tmp_path: Path) -> None:
    """While `hanging` and `slow` start, with a bound that no test would live to see the end of."""
    told = tmp_path / "told"
    bounds = {"startup_wait_ms": 3_600_000, "connect_timeout_ms": 3_600_000}
    configured = settings(tmp_path / "state", world(told), pool=POOL, upstream=bounds)
    async with Broker(configured) as broker:
        assert succeeded(await within(broker.run(ONE))) == 1
        assert "text" in str(succeeded(await within(broker.run(importing("fast")))))
        assert succeeded(await within(broker.run(ONE, requested_capabilities=["fast", "nothing"]))) == 1
        refused = error_of(await within(broker.run(importing("dead"))), "IMPORT_FAILURE")
        assert "not connected" in refused.message
        looked = await within(
            broker.run(
                'import { listServers } from "@codemode/discovery";'
                "globalThis.__codemode_result__ = (await listServers()).map((one) => one.serverId);"
            )
        )
        assert succeeded(looked) == ["fast"]
        computed = 'const name = "slow"; await import(`@codemode/servers/${name}`);'
        waiting = [
            asyncio.ensure_future(broker.run(importing("slow"))),
            asyncio.ensure_future(broker.run(ONE, requested_capabilities=["slow"])),
            asyncio.ensure_future(broker.run(f"if (0) await import('@codemode/servers/slow'); {ONE}")),
        ]
        any_of_them = asyncio.ensure_future(broker.run(computed))
        # Two that wait for nobody end meanwhile.
        for _ in range(2):
            assert succeeded(await within(broker.run(importing("fast"))))
        assert not any(run.done() for run in (*waiting, any_of_them))
        told.touch()
        for run in waiting:
            assert succeeded(await within(run))
        # What it computes could be `hanging`.
        assert not any_of_them.done()
        any_of_them.cancel()


async def test_the_bound_counts_from_the_start_of_the_broker_once(tmp_path: Path) -> None:
    bounds = {"startup_wait_ms": 1, "connect_timeout_ms": 3_600_000}
    configured = settings(tmp_path / "state", world(tmp_path / "never"), pool=POOL, upstream=bounds)
    async with Broker(configured) as broker:
        await until(lambda: "fast" in broker.catalog.servers, "the fast server is connected")
        for name in ("slow", "hanging", "slow"):
            refused = error_of(await within(broker.run(importing(name)), 5), "IMPORT_FAILURE")
            assert "still connecting" in refused.message


async def test_a_slow_worker_host_ends_nothing_and_runs_say_that_they_wait_for_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    told, program = tmp_path / "told", tmp_path / "python"
    program.write_text(
        f"#!/bin/sh\nwhile ! [ -e {shlex.quote(str(told))} ]; do sleep 0.05; done\n"
        f'exec {shlex.quote(sys.executable)} "$@"\n'
    )
    program.chmod(0o700)
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", str(program))
        broker = Broker(settings(tmp_path / "state", pool={**POOL, "queue_wait_ms": 200}))
        async with broker.begun():
            refused = error_of(await within(broker.run(ONE)), "WORKER_UNAVAILABLE")
            assert "still starting" in refused.message and "pool.queue_wait_ms" in refused.message
            told.touch()
            await within(broker.host_started())
            assert succeeded(await within(broker.run(ONE))) == 1


async def test_a_client_is_greeted_at_once_and_shown_what_starts_by_its_pins(tmp_path: Path) -> None:
    """A real process, of which the second start has the pins of the first."""
    told, state = tmp_path / "told", tmp_path / "state"
    servers = {"slow": plain_server("--start-when", told), "fast": plain_server()}
    told.touch()
    first = write_config(tmp_path, servers, pool={"warm": 1})
    async with Client(stdio(first, state), mode="legacy", cache=None) as client:
        whole = await description(client)
    assert STARTING not in whole and "- slow: announce" in whole
    told.unlink()
    hanging = {"command": sys.executable, "args": ["-c", "import sys; sys.stdin.read()"]}
    bounds = {"list_wait_ms": 0, "startup_wait_ms": 3_600_000, "connect_timeout_ms": 3_600_000}
    second = write_config(tmp_path, {**servers, "hanging": hanging}, pool={"warm": 1}, upstream=bounds)
    said: list[str] = []

    async def on_message(message: object) -> None:
        if isinstance(message, types.ToolListChangedNotification):
            said.append("tools")

    async with Client(stdio(second, state), mode="legacy", cache=None, message_handler=on_message) as client:
        assert "slow, fast, hanging" in (client.instructions or "")
        shown = await description(client)
        marked = next(line for line in shown.splitlines() if line.startswith(STARTING))
        assert "slow" in marked and "hanging" in marked and "- slow: announce" in shown
        called = await within(client.call_tool("codemode.run", {"code": importing("fast")}))
        assert not called.is_error
        told.touch()
        await within(client.call_tool("codemode.run", {"code": importing("slow")}))
        # Nothing has come of it but what was shown.
        after = await description(client)
        assert STARTING + ": hanging." in after
        assert said == []


async def description(client: Client) -> str:
    (tool,) = (await within(client.list_tools())).tools
    return tool.description or ""
