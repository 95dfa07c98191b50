"""What a lying worker can do to a journal: nothing but end its own run."""

from __future__ import annotations

import asyncio

import pytest

from cellblock.catalog.model import Catalog
from cellblock.execution.journaled import MAX_EVENT_BYTES
from cellblock.journal.journal import MAX_BYTES, Journal
from cellblock.journal.recording import RecordedCall
from cellblock.journal.room import JournalRoom
from cellblock_worker.wire import protocol
from cellblock_worker.worker.log_budget import MAX_LOG_ENTRIES
from support.memory_host import BOUND, HostedRun, Play, World, codes

LARGE = b"a1" * (protocol.MAX_EVENT_CHARS // 2)


async def malformed_with_a_call(run: HostedRun) -> None:
    run.leased()
    run.say(protocol.Call(id=1, server="tools", tool="echo", events="a1; drop"))


async def malformed_apart(run: HostedRun) -> None:
    run.leased()
    run.say(protocol.Noted(), b"\xff" * 3000)


async def a_place_that_nobody_asked_for(run: HostedRun) -> None:
    run.leased()
    run.say(protocol.Call(id=1, server="tools", tool="echo", events="@1:2"))


async def many_small_ones(run: HostedRun) -> None:
    run.leased()
    for _ in range(2 * MAX_LOG_ENTRIES):
        run.say(protocol.Noted(), b"a1")


async def live_without_a_past(run: HostedRun) -> None:
    run.leased()
    run.say(protocol.Live())


@pytest.mark.parametrize(
    "play",
    [
        malformed_with_a_call,
        malformed_apart,
        a_place_that_nobody_asked_for,
        many_small_ones,
        live_without_a_past,
    ],
)
async def test_events_that_are_none_end_the_run(play: Play) -> None:
    world = World()
    await world.host(play)
    journal = Journal.recording()
    async with asyncio.timeout(BOUND):
        response = await world.executor.run({"code": "1"}, journal=journal)
    assert codes(response) == ["PROTOCOL_VIOLATION"]
    assert world.failed == []
    await world.close()


@pytest.mark.parametrize("message", [protocol.Noted(), protocol.Live()])
async def test_a_run_without_a_journal_has_no_events(message: protocol.Message) -> None:
    async def play(run: HostedRun) -> None:
        run.leased()
        run.say(message)

    world = World()
    await world.host(play)
    assert codes(await world.run()) == ["PROTOCOL_VIOLATION"]
    await world.close()


async def test_events_without_end_end_the_run() -> None:
    async def play(run: HostedRun) -> None:
        run.leased()
        for _ in range(MAX_EVENT_BYTES // len(LARGE) + 1):
            run.say(protocol.Noted(), LARGE)

    world = World()
    await world.host(play)
    async with asyncio.timeout(BOUND):
        response = await world.executor.run({"code": "1"}, journal=Journal.recording())
    assert codes(response) == ["SANDBOX_LIMIT"]
    await world.close()


async def test_events_may_come_with_each_entry() -> None:
    async def play(run: HostedRun) -> None:
        run.leased()
        for number in range(100):
            run.say(protocol.Noted(), b"c%d" % number)
            run.say(protocol.Log(level="log", ms=0), b"")
        run.done(1)

    world = World()
    await world.host(play)
    journal = Journal.recording()
    async with asyncio.timeout(BOUND):
        response = await world.executor.run({"code": "1"}, journal=journal)
    assert response.ok
    assert journal.snapshot().events.endswith("c98c99")
    await world.close()


async def test_a_run_that_is_too_large_to_be_recorded_goes_on() -> None:
    size = 50_000

    async def play(run: HostedRun) -> None:
        run.leased()
        for call_id in range(1, 9):
            assert (await run.call(call_id, value={"x": "x" * size}))[0]
        run.done(1)

    world = World(limits={"max_tool_calls": 10})
    await world.host(play)
    journal = Journal.recording()
    journal.most_bytes = 10 * size
    async with asyncio.timeout(BOUND):
        response = await world.executor.run({"code": "1"}, journal=journal)
    assert response.ok
    assert journal.lost is not None
    with pytest.raises(ValueError, match="bytes"):
        journal.snapshot()
    assert journal.most_bytes < MAX_BYTES
    await world.close()


def filled(journal: Journal, size: int) -> None:
    journal.begin(
        made_by="",
        deno="",
        request={"code": ""},
        body=b"{}",
        conventions=True,
        limits={},
        message_bytes=1,
        catalog=Catalog(),
    )
    assert journal.ask(1, "call", "s", "t", b"x" * size, None) is None


def test_journals_have_a_bound_together() -> None:
    room = JournalRoom(1000)
    first, second = Journal(None, room=room), Journal(None, room=room)
    filled(first, 600)
    filled(second, 600)
    assert first.lost is None
    assert second.lost == "the journals of all runs hold over 1000 bytes"
    assert (second.size, second.trace) == (0, [])
    third = Journal(None, room=room)
    filled(third, 300)
    assert third.lost is None
    del first, third
    fourth = Journal(None, room=room)
    filled(fourth, 1000)
    assert fourth.lost is None


def test_what_is_recorded_is_answered_though_the_journal_is_lost() -> None:
    first = Journal.recording()
    filled(first, 10)
    first.answered(1, True, b"1")
    past = first.snapshot()
    resumed = Journal.resuming(past)
    resumed.most_bytes = 20
    resumed.note("a1" * 20)
    assert resumed.lost is not None
    again = resumed.ask(1, "call", "s", "t", b"x" * 10, None)
    assert isinstance(again, RecordedCall)
    assert again.answer == b"1"


async def test_intents_and_answers_are_told() -> None:
    async def play(run: HostedRun) -> None:
        run.leased()
        await run.call(1, value={"a": 1})
        await run.query(2, "listServers")
        run.done(1)

    world = World()
    await world.host(play)
    told: list[tuple[int, bool | None]] = []
    journal = Journal.recording()
    journal.on_change = lambda call: told.append((call.id, call.ok))
    async with asyncio.timeout(BOUND):
        await world.executor.run({"code": "1"}, journal=journal)
    assert told == [(1, None), (1, True), (2, None), (2, True)]
    recording = journal.snapshot()
    assert [(call.name, call.ok, call.answer[:8]) for call in recording.calls] == [
        ("tools.echo", True, b'{"a":1}'),
        ("listServers", True, b'[{"serve'),
    ]
    assert recording.catalog["servers"]["tools"]["tools"] == [["echo", "echo"]]
    await world.close()
