"""The first seconds of a broker: who waits for servers that are slow to start, hang or are dead, and for how long."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path
from typing import Any

from cellblock import Broker
from support import error_of, plain_server, settings, succeeded, until, within

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
