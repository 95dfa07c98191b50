"""A run's events and log."""

import asyncio
import json
import logging
from collections.abc import Iterable
from typing import Any
from unittest.mock import Mock

import pytest

from cellblock.run.events import CallFacts, Observer, RunEvents, RunFacts, Watcher
from cellblock.run.heard import RunLog
from cellblock.run.queries import MAX_WAITING_BYTES, Queries
from cellblock.run.response import Diagnostic, LogEntry
from cellblock.script.source import Script
from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry, ToolOutput
from cellblock.types.discovery import Discovery
from cellblock_worker.wire import protocol
from support.discovery import answered
from support.memory_host import HostedRun, MakeWorld, hold, turns
from support.waits import until, within


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
    assert 0 < run.accepted <= run.queued <= run.leased <= run.started <= run.ended
    # Whoever keeps the facts keeps no inputs and outputs.
    assert [(call.arguments, call.result) for call in run.calls] == [(b"", None), (b"", None)]


async def test_a_watcher_of_one_run_hears_of_no_other(make_world: MakeWorld) -> None:
    world, mine = make_world(), Diary()
    await world.host()
    await world.run()
    await world.run(observer=mine)
    await world.run()
    assert [line.split()[0] for line in mine.said] == ["accepted", "queued", "leased", "started", "over"]


@pytest.mark.parametrize(
    ("how", "over"), [("cancelled", "CANCELLED cancelled"), ("lost", "HOST_LOST host_lost")]
)
async def test_a_run_that_is_cancelled_or_lost_ends_once_with_its_calls(
    how: str, over: str, make_world: MakeWorld
) -> None:
    begun = asyncio.Event()

    async def slow(arguments: dict[str, Any]) -> Any:
        begun.set()
        await asyncio.Event().wait()

    async def play(run: HostedRun) -> None:
        run.call(1, tool="slow")

    world, diary = make_world(tools={"slow": slow}), Diary()
    world.events.add(diary)
    host = await world.host(play)
    task = world.begin()
    await within(begun.wait())
    if how == "cancelled":
        task.cancel()
    else:
        world.lose(host)
    await until(lambda: diary.said[-1].startswith("over"), "the end")
    assert diary.said[-2:] == ["ended slow False slow None", f"over {over}"]
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


async def test_a_watcher_that_raises_harms_nobody(
    make_world: MakeWorld, caplog: pytest.LogCaptureFixture
) -> None:
    world, diary = make_world(), Diary()
    world.events.add(Observer(on_log=Mock(side_effect=ValueError("broken"))))
    world.events.add(diary)
    with caplog.at_level(logging.ERROR):
        assert (await world.played(play_all)).ok
    assert "log one" in diary.said
    assert "broken" in caplog.text


LINE = protocol.Log(level="warn", ms=3)


def said(max_log_bytes: int = 100, heard: list[LogEntry] | None = None) -> RunLog:
    events = RunEvents()
    if heard is not None:
        events.add(Observer(on_log=heard.append))
    return RunLog(Script("1"), max_log_bytes, events.open("tests", "1"))


def test_entries_are_kept_in_order_and_told() -> None:
    heard: list[LogEntry] = []
    one = said(heard=heard)
    assert [one.log(LINE, text) for text in (b"a", b"\xff")] == [None, None]
    entries = [LogEntry(level="warn", message=text, time_ms=3) for text in ("a", "\ufffd")]
    assert one.entries == heard == entries


def test_who_watches_is_told_once_that_entries_come_at_the_end() -> None:
    heard: list[LogEntry] = []
    one = said(heard=heard)
    one.log(LINE, b"a")
    one.held()
    one.held()
    one.log(LINE, b"b")
    note = "[the last logs come when the run ends, as many as maxLogBytes = 100 bytes has room for]"
    assert [entry.message for entry in heard] == ["a", note, "b"]
    assert [entry.message for entry in one.entries] == ["a", "b"], "the response says how many are left out"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ('<script src="data:text/javascript;base64,Zm9vKCk7"></script>', None),
        ("data:application/javascript;base64,Zm9v:1:2", None),
        ("data:application/typescript;base64,Zm9v and data:application/script", None),
        ("    at f (data:application/script:2:7)", "    at f (script.js:2:7)"),
    ],
)
def test_of_what_a_script_says_only_places_in_stacks_are_changed(text: str, shown: str | None) -> None:
    one = said(max_log_bytes=1000)
    assert one.log(LINE, text.encode()) is None
    assert one.notice(json.dumps({"code": "C", "message": text}).encode()) is None
    assert (one.entries[0].message, one.notices[0].message) == (shown or text,) * 2


@pytest.mark.parametrize("body", [b"", b"no JSON", b"[1]", b'"text"', b"\xff"])
def test_a_notice_that_is_none_is_passed_over(body: bytes) -> None:
    one = said()
    assert one.notice(body) is None and one.notices == []


def test_a_notice_is_cut_to_a_warning() -> None:
    one = said()
    sent: dict[str, Any] = {"code": "C" * 99, "message": "m" * 9999, "hint": "h" * 999, "path": 7}
    assert one.notice(json.dumps(sent).encode()) is None
    assert one.notices == [
        Diagnostic(severity="warning", code="C" * 64, message="m" * 1000, hint="h" * 500, path=None)
    ]


class Answers:
    """Queries with what was answered."""

    def __init__(self, discovery: Discovery | None = None, most: int = 100_000) -> None:
        catalog = Catalog(1, {"a": ServerEntry("a", "A", "a")})
        self.found: dict[int, tuple[bool, Any]] = {}
        self.has_room = True
        self.queries = Queries(
            discovery or Discovery(catalog), self._reply, most, has_room=lambda: self.has_room
        )

    def _reply(self, query_id: int, ok: bool, body: bytes) -> None:
        assert query_id not in self.found
        self.found[query_id] = ok, json.loads(body)

    def lists_servers(self, query_ids: Iterable[int]) -> None:
        for query_id in query_ids:
            self.queries.begin(query_id, "listServers", b"[]")


@pytest.fixture
async def made() -> Answers:
    return Answers()


async def test_they_are_answered_in_order_one_in_a_turn(made: Answers) -> None:
    made.lists_servers(range(5))
    seen = [[*made.found]]
    while len(made.found) < 5:
        await asyncio.sleep(0)
        seen.append([*made.found])
    # The first needs to wait for nobody.
    assert [*dict.fromkeys(map(tuple, seen))] == [(0,), (0, 1), (0, 1, 2), (0, 1, 2, 3), (0, 1, 2, 3, 4)]
    assert made.found[4] == (True, [{"serverId": "a", "serverName": "A"}])


async def test_a_long_list_takes_several_turns_and_is_encoded_once() -> None:
    schema = {"type": "object", "properties": {f"p{number}": {"type": "string"} for number in range(50)}}
    tools = [ToolEntry(f"tool {n}", f"tool{n}", input_schema=schema) for n in range(400)]
    outputs: dict[str, ToolOutput] = {}
    catalog = Catalog(1, {"a": ServerEntry("a", "A", "a", tools=tuple(tools))})

    def fresh() -> Discovery:
        return Discovery(catalog, lambda _, tool: outputs.get(tool.tool_name))

    made = Answers(fresh(), most=10_000_000)
    full = b'["a",{"detail":"full"}]'

    async def turns_for(query_id: int) -> int:
        made.queries.begin(query_id, "listTools", full)
        count = 0
        while query_id not in made.found:
            count += 1
            await asyncio.sleep(0)
        await turns()
        assert made.found[query_id] == (True, answered(fresh(), "listTools", json.loads(full)))
        return count

    assert await turns_for(1) > 5
    assert await turns_for(2) == 0
    outputs["tool 7"] = ToolOutput("observed", "Observed.", schema={"type": "string"})
    assert await turns_for(3) == 0, "of one that has changed, that one is encoded"
    assert "outputSchema" in made.found[3][1][7]


async def test_what_waits_is_capped_in_bytes(made: Answers) -> None:
    text = json.dumps(["x" * (60 * 1024)]).encode()
    for number in range(1, 11):
        made.queries.begin(number, "describeServer", text)
    # The first was answered at once.
    assert set(made.found) == {1, 10} and MAX_WAITING_BYTES == 8 * 64 * 1024
    ok, error = made.found[10]
    assert not ok and "Too many long" in error["message"]
    await turns(10)
    made.queries.begin(11, "describeServer", text)
    assert len(made.found) == 11 and "Too many" not in made.found[11][1]["message"]


async def test_they_wait_until_their_answers_can_be_sent(made: Answers) -> None:
    made.has_room = False
    made.lists_servers(range(3))
    await turns()
    assert made.found == {}
    made.has_room = True
    made.queries.go_on()
    made.queries.go_on()
    await turns()
    assert list(made.found) == [0, 1, 2]
    made.lists_servers((3, 4))
    made.queries.close()
    await turns()
    assert list(made.found) == [0, 1, 2, 3], "none is answered after the end"


@pytest.mark.parametrize("body", [b"", b"{", b"7", b"[" * 300, b'["\xff"]', b'{"a":1}'])
async def test_every_request_is_answered(body: bytes, made: Answers) -> None:
    made.queries.begin(1, "describeServer", body)
    assert made.found[1][0] is False


async def test_a_fault_of_ours_is_an_answer_too(
    made: Answers, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(Discovery, "encoded", Mock(side_effect=RuntimeError("no FTS5 here")))
    made.queries.begin(1, "searchTools", b'["x"]')
    ok, error = made.found[1]
    assert not ok and "Cellblock failed" in error["message"] and "no FTS5" in caplog.text


async def test_an_answer_over_the_cap_says_what_to_do() -> None:
    servers = {f"s{n}": ServerEntry(f"s{n}", "x" * 100, f"s{n}") for n in range(100)}
    made = Answers(Discovery(Catalog(1, servers)), most=5_000)
    made.queries.begin(1, "listServers", b"[]")
    assert made.found[1][0] is False and "too large" in made.found[1][1]["message"]


async def test_what_is_asked_again_in_one_go_is_made_once_and_made_anew_later(
    monkeypatch: pytest.MonkeyPatch, made: Answers
) -> None:
    answer = Mock(side_effect=Discovery.encoded, autospec=True)
    monkeypatch.setattr(Discovery, "encoded", lambda *asked: answer(*asked))
    # The first is answered at once; the others wait for the next turns.
    made.lists_servers(range(4))
    await turns()
    assert len(made.found) == 4 and all(found == made.found[0] for found in made.found.values())
    assert answer.call_count == 2
    made.lists_servers([4])
    await turns()
    assert answer.call_count == 3
