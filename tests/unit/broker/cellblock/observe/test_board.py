"""The board of running runs, and who watches it."""

import asyncio
import gc
import json
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from cellblock import Broker
from cellblock.app.config.load import load_settings
from cellblock.base.errors import ConfigError
from cellblock.observe.traces import make_exporter
from cellblock.run.board import MAX_LOGS, MAX_SCRIPT_CHARS, Board
from cellblock.run.events import RunFacts
from support.entries import settings
from support.memory_host import HostedRun, MakeWorld, hold, turns
from support.waits import until


async def play(run: HostedRun) -> None:
    run.log("one")
    await run.call(1, value={"text": "in the input"})
    await run.call(2, tool="missing")
    run.done({"text": "in the result"}, wall_ms=9)


async def test_a_run_with_its_timeline_and_logs(make_world: MakeWorld) -> None:
    world, board = make_world(), Board(10)
    world.events.add(board)
    await world.played(play, "'in the script'")
    (short,) = board.recent()
    assert (short["outcome"], short["calls"], short["failedCalls"], short["state"]) == ("ok", 2, 1, "ended")
    assert "timeline" not in short
    whole = board.run(short["id"])
    assert whole is not None
    assert [(call["tool"], call["outcome"]) for call in whole["timeline"]] == [
        ("echo", "ok"),
        ("missing", "not_sent"),
    ]
    assert [entry["message"] for entry in whole["logs"]] == ["one"]
    assert list(whole["steps"]) == ["queued", "leased", "started", "ended"]
    assert whole["usage"]["wallMs"] == 9
    assert "in the" not in json.dumps(whole)


async def test_live_runs_with_their_last_log(make_world: MakeWorld) -> None:
    world, board = make_world(), Board(10)
    world.events.add(board)
    host = await world.host(hold)
    task = world.begin()
    await host.until_runs(1)
    host.runs[0].log("half way")
    await turns()
    (live,) = board.live()
    assert (live["state"], live["lastLog"], live["outcome"]) == ("running", "half way", "running")
    assert board.run(live["id"]) is not None
    assert board.recent() == []
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


async def test_memory_is_bounded(make_world: MakeWorld) -> None:
    async def chatty(run: HostedRun) -> None:
        for number in range(MAX_LOGS + 50):
            run.log(f"line {number}")
        run.done("x" * 100_000)

    world, board = make_world(), Board(3)
    world.events.add(board)
    await world.host(chatty)
    for _ in range(5):
        await world.run("1" * 10_000)
    kept = board.recent()
    assert len(kept) == 3
    whole = board.run(kept[0]["id"])
    assert whole is not None
    assert (len(whole["logs"]), whole["logsLeftOut"]) == (MAX_LOGS, 50)
    assert whole["logs"][-1]["message"] == f"line {MAX_LOGS + 49}"
    gc.collect()
    # The facts hold the script and the response: none of them may live on.
    kept_facts = [known for known in gc.get_objects() if isinstance(known, RunFacts)]
    # Those of other tests' runs are none of this board's.
    assert not [known for known in kept_facts if known.code == "1" * 10_000]
    assert len(json.dumps(kept)) < 2_000


def test_one_principals_runs_hide_no_others() -> None:
    board = Board(4)
    for number, principal in enumerate(["ann", *["eve"] * 20, "bob", *["eve"] * 20]):
        board.run_ended(RunFacts(f"{principal} {number}", "c", "", 0.0, 0.0, principal=principal))
    assert [one["id"] for one in board.recent()] == ["eve 41", "eve 40", "bob 21", "ann 0"]
    assert board.run("ann 0") is not None and board.run("eve 39") is None


async def test_logs_can_be_left_out(make_world: MakeWorld) -> None:
    world, board = make_world(), Board(3, logs=False)
    world.events.add(board)
    await world.played(play)
    whole: Any = board.run(board.recent()[0]["id"])
    assert (whole["logs"], whole["logsLeftOut"]) == ([], 1)


async def test_scripts_are_kept_only_where_asked_for_and_cut(make_world: MakeWorld) -> None:
    world, board = make_world(), Board(3)
    showing = Board(3, scripts=True)
    for one in (board, showing):
        world.events.add(one)
    await world.played(play, "1;" + "x" * MAX_SCRIPT_CHARS)
    (short,) = showing.recent()
    assert "script" not in short and "script" not in (board.run(short["id"]) or {})
    whole: Any = showing.run(short["id"])
    assert whole["script"] == "1;" + "x" * (MAX_SCRIPT_CHARS - 2) + "\n… (2 characters more)"


async def test_runs_of_each_second(make_world: MakeWorld, monkeypatch: Any) -> None:
    board = Board(3)
    now = 1000.5
    monkeypatch.setattr("cellblock.run.board.time.monotonic", lambda: now)
    board.ended.extend([(990.0, True), (998.2, True), (998.9, False), (999.1, True), (1000.4, True)])
    assert board.per_second(3) == [[0, 0], [2, 1], [1, 0]]


async def test_what_is_off_is_not_there(tmp_path: Path) -> None:
    before = {thread.name for thread in threading.enumerate()}
    async with Broker(settings(tmp_path)) as broker:
        assert not broker.events._watchers  # pyright: ignore[reportPrivateUsage]
        assert not {thread.name for thread in threading.enumerate() if "audit" in thread.name} - before
    assert not (tmp_path / "audit.jsonl").exists()


async def test_the_audit_log_is_whole_when_the_broker_has_stopped(tmp_path: Path) -> None:
    # A run that is under way is ended by the stop, and its end is in the log too.
    async with Broker(settings(tmp_path, audit=["calls"])) as broker:
        assert (await broker.run("1")).ok
        task = asyncio.create_task(broker.run("await new Promise(() => {})"))
        await until(lambda: broker.facts().pool()["running"], "a run")
    await asyncio.gather(task, return_exceptions=True)
    lines = [json.loads(line) for line in (tmp_path / "audit.jsonl").read_text().splitlines()]
    assert [line["event"] for line in lines] == ["run", "run_end", "run", "run_end"]
    assert [line["outcome"] for line in lines if "outcome" in line] == ["ok", "CANCELLED"]


def test_a_service_has_an_audit_log_unless_told_otherwise(tmp_path: Path) -> None:
    assert load_settings(None).for_service().cellblock.audit == ["calls"]
    off = settings(tmp_path, audit="off")
    assert off.for_service().cellblock.audit == "off"


def test_traces_without_the_extra_say_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry.exporter.otlp.proto.http.trace_exporter", None)
    with pytest.raises(ConfigError, match=r"pip install 'cellblock\[otel\]'"):
        make_exporter("http://127.0.0.1:4318/v1/traces")


def test_the_broker_imports_none_of_it() -> None:
    heavy = (
        "prometheus_client",
        "opentelemetry.sdk",
        "cellblock.observe.audit",
        "cellblock.run.board",
    )
    code = f"import sys, cellblock.app; print([name for name in {heavy} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")
