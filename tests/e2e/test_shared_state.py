"""A daemon and a command line of other state directories share a PostgreSQL; `/readyz` says when it is away."""

import base64
import json
from functools import partial
from pathlib import Path
from typing import Any

import psycopg

from support import commands
from support.entries import ledger
from support.http_daemon import daemon
from support.parked_runs import ended, parked
from support.postgresql import Postgres

KEY = base64.b64encode(bytes(range(32))).decode()
SCRIPT = """import { give } from "@codemode/servers/plain";
globalThis.__codemode_result__ = (await give({ text: "one" })).text;
"""


command = partial(commands.command, state="elsewhere")


def sections(url: str, **more: Any) -> dict[str, Any]:
    """What brokers that share a PostgreSQL are told."""
    state = {"url": url, "key": KEY}
    return {"state": state, "auth": {"keyring": "off"}, "typecheck": "off", **more}


async def test_a_run_is_answered_elsewhere_and_a_probe_hears_that_postgresql_is_away(
    postgres_url: str, postgres: Postgres, tmp_path: Path
) -> None:
    async with daemon(tmp_path, **sections(postgres_url)) as served:
        await served.until_says("/readyz", lambda answer: answer.body == b"ok\n")
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
            await served.until_says("/readyz", lambda answer: answer.body == b"ok, but PostgreSQL is away\n")
        finally:
            postgres.start()
        await served.until_says("/readyz", lambda answer: answer.body == b"ok\n")
    # With the level that a log has where nothing is set.
    away, back = served.said[-1].find("PostgreSQL is away"), served.said[-1].find("PostgreSQL is there again")
    assert 0 <= away < back, served.said[-1]


async def test_a_broker_that_finds_tables_of_a_newer_one_is_not_ready_and_says_so(
    postgres_url: str, tmp_path: Path
) -> None:
    for name in ("new", "old"):
        (tmp_path / name).mkdir()
    async with daemon(tmp_path / "new", **sections(postgres_url)) as served:
        await served.until_says("/readyz", lambda answer: answer.body == b"ok\n")
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            connection.execute(
                "UPDATE cellblock.migrations SET version = 99, oldest = 99 WHERE kind = 'journals'"
            )
        async with daemon(tmp_path / "old", **sections(postgres_url)) as old:
            said = "not ready: the tables of journals were made by a newer Cellblock (version 99 of them)\n"
            await old.until_says("/readyz", lambda answer: answer.body == said.encode())
        # One that runs already goes on.
        await served.until_says("/readyz", lambda answer: answer.body == b"ok\n")
