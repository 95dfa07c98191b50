"""What watchers are told of runs, over the in-memory wire: every step once, in order, whatever becomes of the run."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest

from cellblock.run.events import CallFacts, RunEvents, RunFacts, Watcher
from cellblock.run.response import LogEntry
from support.memory_host import HostedRun, World, hold
from support.waits import until

MakeWorld = Callable[..., World]


class Diary(Watcher):
    """Takes everything down."""

    def __init__(self) -> None:
        self.said: list[str] = []
        self.runs: list[RunFacts] = []

    def run_accepted(self, run: RunFacts) -> None:
        self.runs.append(run)
        self.said.append(f"accepted {run.client} {run.state}")

    def run_queued(self, run: RunFacts) -> None:
        self.said.append(f"queued {run.state}")

    def run_leased(self, run: RunFacts) -> None:
        self.said.append(f"leased {run.state}")

    def run_started(self, run: RunFacts) -> None:
        self.said.append(f"started {run.state}")

    def run_logged(self, run: RunFacts, entry: LogEntry) -> None:
        self.said.append(f"log {entry.message}")

    def call_begun(self, run: RunFacts, call: CallFacts) -> None:
        self.said.append(f"begun {call.number} {call.tool} {call.arguments.decode()}")

    def call_ended(self, run: RunFacts, call: CallFacts) -> None:
        result = None if call.result is None else call.result.decode()
        self.said.append(f"ended {call.tool} {call.ok} {call.export} {result}")

    def run_ended(self, run: RunFacts) -> None:
        self.said.append(f"over {run.outcome} {run.worker_end}")


async def play_all(run: HostedRun) -> None:
    run.leased()
    run.log("one")
    await run.call(1, value={"a": 1})
    await run.call(2, tool="missing")
    run.done(1)


async def test_every_step_of_a_run_in_order(make_world: MakeWorld) -> None:
    world, diary = make_world(), Diary()
    world.events.add(diary)
    await world.host(play_all)
    assert (await world.run()).ok
    assert diary.said == [
        "accepted default planning",
        "queued queued",
        "leased starting",
        "started running",
        "log one",
        'begun 1 echo {"a": 1}',
        'ended echo True echo {"a":1}',
        "begun 2 missing ",
        "ended missing False None None",
        "over ok finished",
    ]
    (run,) = diary.runs
    assert run.queued and run.leased and run.started and run.ended
    assert run.accepted <= run.queued <= run.leased <= run.started <= run.ended
    # Whoever keeps the facts keeps no inputs and outputs.
    assert [(call.arguments, call.result) for call in run.calls] == [(b"", None), (b"", None)]


async def test_nobody_watches(make_world: MakeWorld) -> None:
    events, diary = RunEvents(), Diary()
    assert events.open("me", "1") is None
    events.add(diary)
    assert events.open("me", "1") is not None
    events.remove(diary)
    assert events.open("me", "1") is None


async def test_a_watcher_of_one_run_hears_of_no_other(make_world: MakeWorld) -> None:
    world, mine = make_world(), Diary()
    await world.host()
    await world.run()
    await world.run(observer=mine)
    await world.run()
    assert [line.split()[0] for line in mine.said] == ["accepted", "queued", "leased", "started", "over"]


async def test_a_cancelled_run_ends_once_with_its_calls(make_world: MakeWorld) -> None:
    begun = asyncio.Event()

    async def slow(arguments: dict[str, Any]) -> Any:
        begun.set()
        await asyncio.sleep(60)

    async def play(run: HostedRun) -> None:
        run.leased()
        run.call(1, tool="slow")

    world, diary = make_world(tools={"slow": slow}), Diary()
    world.events.add(diary)
    await world.host(play)
    task = world.begin()
    async with asyncio.timeout(20):
        await begun.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await until(lambda: diary.said[-1].startswith("over"), "the end")
    assert diary.said[-2:] == ["ended slow False slow None", "over CANCELLED cancelled"]
    assert diary.runs[0].calls[0].error == "in flight when the run ended: may have run"


async def test_given_up_in_the_queue(make_world: MakeWorld) -> None:
    world, diary = make_world(), Diary()
    host = await world.host(hold, capacity=1)
    holding = world.begin()
    await host.until_runs(1)
    world.events.add(diary)
    waiting = world.begin()
    await until(lambda: world.pool.queued, "a queue")
    assert diary.said == ["accepted default planning", "queued queued"]
    waiting.cancel()
    await asyncio.gather(waiting, return_exceptions=True)
    assert diary.said[2:] == ["over CANCELLED None"]
    holding.cancel()
    await asyncio.gather(holding, return_exceptions=True)


async def test_what_never_gets_a_worker_is_told(make_world: MakeWorld) -> None:
    world, diary = make_world(pool={"queue_wait_ms": 1}), Diary()
    world.events.add(diary)
    await world.run()
    await world.run('import "npm:left-pad"; import "@codemode/servers/nowhere";')
    assert [line for line in diary.said if line.startswith("over")] == [
        "over WORKER_UNAVAILABLE None",
        "over IMPORT_FAILURE None",
    ]


async def test_a_lost_host_is_told(make_world: MakeWorld) -> None:
    world, diary = make_world(), Diary()
    world.events.add(diary)
    host = await world.host(hold)
    running = world.begin()
    await host.until_runs(1)
    world.lose(host)
    await running
    assert diary.said[-1] == "over HOST_LOST host_lost"


async def test_a_watcher_that_raises_harms_nobody(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    class Broken(Watcher):
        def run_started(self, run: RunFacts) -> None:
            raise ValueError("broken")

    world, diary = make_world(), Diary()
    world.events.add(Broken())
    world.events.add(diary)
    await world.host()
    with caplog.at_level(logging.ERROR):
        assert (await world.run()).ok
    assert "started running" in diary.said
    assert "broken" in caplog.text
