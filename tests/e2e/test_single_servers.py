"""A server that exists once among several brokers: one has it, the others go through that one, never two are alive."""

from __future__ import annotations

import asyncio
import contextlib
import json
import signal
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import psutil
import psycopg
import pytest
from mcp import Client

from cellblock.base.postgresql import lock_number
from support.entries import ledger, plain_server
from support.http_daemon import TOOL, Daemon
from support.postgresql import Postgres
from support.processes import alive
from support.replicas import Fleet, fleet
from support.waits import until, until_found

SINGLE: dict[str, Any] = {"servers": {"plain": {"single": True}}}
PID = """import { pid } from "@codemode/servers/plain";
globalThis.__codemode_result__ = await pid({});
"""


def echo(text: str) -> str:
    return (
        'import { echo } from "@codemode/servers/plain"; '
        f"globalThis.__codemode_result__ = await echo({{ text: {json.dumps(text)} }});"
    )


@contextlib.asynccontextmanager
async def brokers(folder: Path, database: str, count: int = 2, **upstream: Any) -> AsyncIterator[Fleet]:
    """Daemons with one server that exists once, which notes in the ledger when it is not the only one."""
    server = plain_server("--ledger", folder / "ledger.jsonl", "--alone", folder / "alone")
    async with fleet(
        folder, database, count=count, servers={"plain": server}, upstream={**SINGLE, **upstream}
    ) as found:
        yield found
    assert not events(folder, "double")


def events(folder: Path, name: str) -> list[dict[str, Any]]:
    return [event for event in ledger(folder / "ledger.jsonl") if event["event"] == name]


async def run(client: Client, code: str) -> dict[str, Any]:
    result = await client.call_tool(TOOL, {"code": code})
    assert result.structured_content is not None
    return result.structured_content


async def answered(served: Daemon, code: str) -> Any:
    """What a script comes to at a broker."""
    async with served.client() as client:
        return await run(client, code)


async def test_brokers_share_one_process(tmp_path: Path, postgres_url: str) -> None:
    async with brokers(tmp_path, postgres_url) as found:
        pids = [await answered(one, PID) for one in found.daemons]
        print(pids)
        assert pids[0]["result"] == pids[1]["result"]
        assert len(events(tmp_path, "start")) == 1
