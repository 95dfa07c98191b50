"""A client that comes back in the moment in which its run is parked: its answer counts, and its word is good once."""

from __future__ import annotations

import asyncio
import threading
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client

from cellblock import Broker
from cellblock.config.settings import parse_settings
from cellblock.execution.run import Run
from cellblock.frontend.mcp.held_runs import HeldRun, HeldRuns
from cellblock.frontend.mcp.mcp_server import FrontServer
from cellblock.journal.store import JournalStore
from support.local_tools import write
from support.waits import until, within

CODE = (
    'import { write } from "@codemode/servers/local"; globalThis.__codemode_result__ = await write({ n: 1 });'
)


def broker_on(folder: Path) -> Broker:
    section: dict[str, Any] = {
        "policy": {"default": {"approve": ["local.write"]}},
        "journal": {"park_after_ms": 100},
        "auth": {"keyring": "off"},
        "typecheck": "off",
    }
    return Broker(parse_settings({"cellblock": section}), tools=[write], state_dir=folder)


class Returns:
    """Says that the client is back: its run, and the round of its word."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.run: HeldRun | None = None
        self.round = 0
        self.taken = threading.Event()
        take = HeldRuns.take

        def watched(runs: HeldRuns, *args: Any, **options: Any) -> HeldRun | None:
            run = take(runs, *args, **options)
            if run is not None:
                self.run, self.round = run, run.round - 1
                self.taken.set()
            return run

        monkeypatch.setattr(HeldRuns, "take", watched)


async def response_of(broker: Broker, is_time: Any) -> dict[str, Any]:
    """What a client is told that comes back, with a yes, when it is time."""

    async def says_yes(context: object, params: types.ElicitRequestParams) -> types.ElicitResult:
        await until(is_time, "the run is being parked")
        return types.ElicitResult(action="accept", content={})

    server = FrontServer(broker, version="1").open()
    async with Client(server, mode="auto", elicitation_callback=says_yes) as client:
        found = await within(client.call_tool("codemode.run", {"code": CODE, "durable": True}), 60)
    assert found.structured_content is not None
    return found.structured_content


async def test_an_answer_counts_that_comes_when_the_run_is_written_and_its_process_ends(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    returns, kill, held_back = Returns(monkeypatch), Run._kill, list[asyncio.Task[None]]()

    def later(run: Run, diagnostic: Any) -> None:
        async def kills() -> None:
            await until(returns.taken.is_set, "the client is back")
            kill(run, diagnostic)

        if diagnostic.code == "RUN_PARKED":
            held_back.append(asyncio.create_task(kills()))
        else:
            kill(run, diagnostic)

    monkeypatch.setattr(Run, "_kill", later)
    async with broker_on(tmp_path) as broker:
        response = await response_of(broker, lambda: bool(held_back))
        assert response["result"] == {"result": 10}, response
        await asyncio.gather(*held_back)
        assert await broker.parked() == []


async def test_a_word_is_good_once_also_where_a_park_was_taken_back(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    returns, park, is_written = Returns(monkeypatch), JournalStore.park, threading.Event()

    def slow(store: JournalStore, *args: Any) -> None:
        is_written.set()
        assert returns.taken.wait(60)
        park(store, *args)

    monkeypatch.setattr(JournalStore, "park", slow)
    async with broker_on(tmp_path) as broker:
        response = await response_of(broker, is_written.is_set)
        assert response["result"] == {"result": 10}, response
        assert returns.run is not None
        word = (returns.run.id, returns.round, returns.run.owner)
        assert await broker.parked_runs.answered_elsewhere(*word) is None
