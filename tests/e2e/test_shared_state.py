"""A daemon and a command line of other state directories share a PostgreSQL; `/readyz` says when it is away."""

from __future__ import annotations

import asyncio
import base64
import json
from asyncio.subprocess import PIPE
from pathlib import Path
from typing import Any

from support.cellblock_zygote import forked_cellblock
from support.entries import ledger
from support.http_daemon import Daemon, daemon
from support.parked_runs import ended, parked
from support.postgresql import Postgres
from support.waits import within

KEY = base64.b64encode(bytes(range(32))).decode()
SCRIPT = """import { give } from "@codemode/servers/plain";
globalThis.__codemode_result__ = (await give({ text: "one" })).text;
"""


async def command(folder: Path, *words: str) -> str:
    """What a command says, on a state directory of its own."""
    options = ("--config", str(folder / "cellblock.json"), "--state-dir", str(folder / "elsewhere"))
    process = await asyncio.create_subprocess_exec(
        str(forked_cellblock()), *words, *options, stdout=PIPE, stderr=PIPE
    )
    out, err = await within(process.communicate(), 60)
    assert process.returncode == 0, (out, err)
    return out.decode()


async def until_ready(served: Daemon, text: bytes) -> None:
    async with asyncio.timeout(60):
        answer = await served.ask("GET", "/readyz")
        while answer.status != 200 or answer.body != text:
            await asyncio.sleep(0.1)
            answer = await served.ask("GET", "/readyz")


async def test_a_run_is_answered_elsewhere_and_a_probe_hears_that_postgresql_is_away(
    postgres_url: str, postgres: Postgres, tmp_path: Path
) -> None:
    sections: dict[str, Any] = {
        "state": {"url": postgres_url, "key": KEY},
        "auth": {"keyring": "off"},
        "typecheck": "off",
        "pool": {"warm": 1},
    }
    async with daemon(tmp_path, **sections) as served:
        await until_ready(served, b"ok\n")
        run_id = await parked(served, SCRIPT)
        (listed,) = json.loads(await command(tmp_path, "runs", "list", "--parked", "--json"))
        assert listed["id"] == run_id
        assert f"{run_id} goes on" in await command(tmp_path, "runs", "approve", run_id)
        assert (await ended(served, run_id))["outcome"] == "ok"
        assert [event["arguments"] for event in ledger(served.ledger) if event.get("tool") == "give"] == [
            {"text": "one"}
        ]
        assert not (tmp_path / "elsewhere" / "journals.sqlite3").exists()
        postgres.stop()
        try:
            await until_ready(served, b"ok, but PostgreSQL is away\n")
        finally:
            postgres.start()
        await until_ready(served, b"ok\n")
