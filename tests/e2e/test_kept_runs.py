"""Kept runs of a daemon that is killed: what was known is there, for its user and on the next daemon's dashboard."""

import asyncio
import contextlib
import json
from pathlib import Path
from typing import Any

from support.commands import cellblock
from support.entries import ledger
from support.http_daemon import TOOL, Daemon, daemon
from support.waits import until, within

SECTION: dict[str, Any] = {"journal": "all", "auth": {"keyring": "off"}, "typecheck": "off"}

WAITS = """import { echo, never, give } from "@codemode/servers/plain";
await echo({ text: "before" });
await Promise.all([never({ text: "under way" }), give({ text: "answered" })]);
"""


async def said_by(folder: Path, *words: str, code: int = 0) -> Any:
    """What a command says, beside a daemon or without one."""
    done = await cellblock(*words, "--config", folder / "cellblock.json", "--state-dir", folder / "s")
    assert done.code == code, done.err
    return json.loads(done.out) if done.out else done.err


async def command(folder: Path, *words: str) -> Any:
    """What `cellblock runs` says."""
    return await said_by(folder, "runs", *words, "--json")


async def page(served: Daemon, path: str) -> Any:
    answer = await served.ask("GET", path, headers=served.auth)
    assert answer.status == 200
    return json.loads(answer.body)


async def test_a_killed_daemon_leaves_what_was_known(tmp_path: Path) -> None:
    async with daemon(tmp_path, **SECTION) as served:
        async with served.client() as client:
            done = await within(client.call_tool(TOOL, {"code": "globalThis.__codemode_result__ = 1"}))
            whole = done.structured_content["usage"]["runId"]

        async def asking() -> None:
            with contextlib.suppress(Exception):
                async with served.client() as client:
                    await client.call_tool(TOOL, {"code": WAITS})

        task = asyncio.create_task(asking())
        await until(lambda: len(ledger(served.ledger)) >= 5, "all three calls are made")
        (lost, _) = await command(tmp_path, "list")
        steps: list[dict[str, Any]] = []
        while [step["ok"] for step in steps] != [True, None, True]:
            steps = (await command(tmp_path, "show", lost["id"], "--values"))["values"]
        served.process.kill()
        await within(served.process.wait())
        task.cancel()
    heads = await command(tmp_path, "list")
    assert [(head["id"], head["outcome"]) for head in heads] == [(lost["id"], None), (whole, "ok")]
    shown = await command(tmp_path, "show", lost["id"], "--values")
    assert shown["script"] == WAITS and shown["state"] == "no end"
    outcomes = [(call["tool"], call["outcome"]) for call in shown["timeline"]]
    assert outcomes == [("echo", "ok"), ("never", "may_have_run"), ("give", "ok")]
    assert [call["input"]["text"] for call in shown["values"]] == ["before", "under way", "answered"]
    # This one goes on with nothing that it finds (`tests/integration/test_going_on.py` has one that does).
    async with daemon(tmp_path, **{**SECTION, "journal": "off"}) as served:
        assert [run["id"] for run in (await page(served, "/dashboard/kept"))["runs"]] == [lost["id"], whole]
        again = await page(served, f"/dashboard/runs/{lost['id']}")
        assert again["timeline"] == shown["timeline"] and "script" not in again and "values" not in again
        assert (await page(served, f"/dashboard/runs/{whole}"))["outcome"] == "ok"
    replayed = await said_by(tmp_path, "replay", whole)
    assert (replayed["result"], replayed["replay"]["same"]) == (1, True)
    # It stops where nothing more was known, and calls nobody.
    calls = len(ledger(served.ledger))
    ended = await said_by(tmp_path, "replay", lost["id"], code=1)
    assert [found["code"] for found in ended["diagnostics"]] == ["REPLAY_ENDED"]
    assert len(ledger(served.ledger)) == calls
    assert "No run 0123456789abcdef is kept" in await said_by(tmp_path, "replay", "0123456789abcdef", code=2)
