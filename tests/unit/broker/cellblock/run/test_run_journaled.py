"""Runs that are journaled and ask people: their clock stands still, other calls go on, and they are parked and go on. A
lying worker can do nothing to a journal but end its own run.
"""

import asyncio
from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

import pytest

from cellblock.base.questions import ParkedQuestion, QuestionId
from cellblock.record.journal import MAX_BYTES, Journal, JournalBudget
from cellblock.run.calls import IN_FLIGHT
from cellblock.run.hook import REFUSED_FOR_NOW
from cellblock.run.journaled import MAX_EVENT_BYTES
from cellblock.run.parking import GATHER_SECONDS, Parking
from cellblock.run.policy.asking import Grantee, Question, Verdict
from cellblock.run.run import REPLAY_CPU_MS
from cellblock_worker.wire import protocol
from cellblock_worker.wire.protocol import MAX_LOG_ENTRIES
from support.memory_host import BOUND, HostedRun, MakeWorld, World, codes, echo, hangs, hold, turns
from support.memory_keeper import MemoryKeeper, Park, begin
from support.virtual_time import in_virtual_time, virtual_time
from support.waits import within

LARGE = b"a1" * (protocol.MAX_EVENT_CHARS // 2)


@pytest.mark.parametrize(
    ("message", "body", "times", "journal", "code"),
    [
        (
            protocol.Call(id=1, server="tools", tool="echo", events="a1; drop"),
            b"",
            1,
            Journal(),
            "PROTOCOL_VIOLATION",
        ),
        (protocol.Noted(), b"\xff" * 3000, 1, Journal(), "PROTOCOL_VIOLATION"),
        (
            protocol.Call(id=1, server="tools", tool="echo", events="@1:2"),
            b"",
            1,
            Journal(),
            "PROTOCOL_VIOLATION",
        ),
        (protocol.Noted(), b"a1", 2 * MAX_LOG_ENTRIES, Journal(), "PROTOCOL_VIOLATION"),
        (protocol.Live(), b"", 1, Journal(), "PROTOCOL_VIOLATION"),
        (protocol.Noted(), LARGE, MAX_EVENT_BYTES // len(LARGE) + 1, Journal(), "SANDBOX_LIMIT"),
        (protocol.Noted(), b"", 1, None, "PROTOCOL_VIOLATION"),
        (protocol.Live(), b"", 1, None, "PROTOCOL_VIOLATION"),
    ],
    ids=[
        "malformed with a call",
        "malformed apart",
        "a place that nobody asked for",
        "many small ones",
        "live without a past",
        "without end",
        "events without a journal",
        "live without a journal",
    ],
)
async def test_events_that_are_none_or_have_no_end_end_the_run(
    message: protocol.Message, body: bytes, times: int, journal: Journal | None, code: str, world: World
) -> None:
    async def play(run: HostedRun) -> None:
        for _ in range(times):
            run.say(message, body)

    assert codes(await world.played(play, journal=journal)) == [code]
    assert world.failed == []


async def test_events_may_come_with_each_entry(world: World) -> None:
    async def play(run: HostedRun) -> None:
        for number in range(100):
            run.say(protocol.Noted(), b"c%d" % number)
            run.say(protocol.Log(level="log", ms=0), b"")
        run.done(1)

    journal = Journal()
    assert (await world.played(play, journal=journal)).ok
    assert journal.snapshot().events.endswith("c98c99")


async def test_a_run_that_is_too_large_to_be_recorded_goes_on(make_world: MakeWorld) -> None:
    size = 50_000

    async def play(run: HostedRun) -> None:
        for call_id in range(1, 9):
            assert (await run.call(call_id, value={"x": "x" * size}))[0]
        run.done(1)

    journal = Journal()
    journal.most_bytes = 10 * size
    assert (await make_world(limits={"max_tool_calls": 10}).played(play, journal=journal)).ok
    assert journal.lost is not None
    with pytest.raises(ValueError, match="bytes"):
        journal.snapshot()
    assert journal.most_bytes < MAX_BYTES


def filled(journal: Journal, size: int) -> None:
    begin(journal)
    assert journal.ask(1, "call", "s", "t", b"x" * size, None) is None


def test_journals_of_a_client_and_of_all_have_a_bound_together() -> None:
    budget = JournalBudget(1000, 1500)

    def of(client: str, size: int) -> Journal:
        journal = Journal(None, budget=budget, client=client)
        filled(journal, size)
        return journal

    first, second, third = (of("one", size) for size in (600, 600, 300))
    why = "the journals of its client have over 1000 bytes in all"
    assert (first.lost, second.lost, third.lost) == (None, why, None)
    assert (second.size, second.trace) == (0, [])
    assert of("other", 601).lost == "the journals of all together have over 1500 bytes"
    fourth = of("other", 600)
    assert fourth.lost is None
    del first, third, fourth
    assert of("one", 1000).lost is None


def test_one_that_goes_on_takes_the_place_of_the_one_before() -> None:
    budget = JournalBudget(1000, 1000)
    first = Journal(None, budget=budget, client="one")
    filled(first, 600)
    past = first.snapshot()
    assert Journal(past, budget=budget, client="one").lost is not None, "while both hold it"
    first.let_go()
    second = Journal(past, budget=budget, client="one")
    assert (second.lost, second.size, first.size) == (None, 600, 0)


def test_what_is_recorded_is_answered_though_the_journal_is_lost() -> None:
    first = Journal()
    filled(first, 10)
    first.answered(1, True, b"1")
    resumed = Journal(first.snapshot())
    resumed.most_bytes = 20
    resumed.note("a1" * 20)
    assert resumed.lost is not None
    assert resumed.ask(1, "call", "s", "t", b"x" * 10, None).answer == b"1"


async def test_intents_and_answers_are_told(world: World) -> None:
    async def play(run: HostedRun) -> None:
        await run.call(1, value={"a": 1})
        await run.query(2, "listServers")
        run.done(1)

    told: list[tuple[int, bool | None]] = []
    journal = Journal()
    journal.on_change = lambda call: told.append((call.id, call.ok))
    await world.played(play, journal=journal)
    assert told == [(1, None), (1, True), (2, None), (2, True)]
    recording = journal.snapshot()
    assert [(call.name, call.ok, call.answer[:8]) for call in recording.calls] == [
        ("tools.echo", True, b'{"a":1}'),
        ("listServers", True, b'[{"serve'),
    ]
    assert recording.catalog["servers"]["tools"]["tools"] == [["echo", "echo"]]


@pytest.fixture
def parks() -> list[Park]:
    """What was parked."""
    return []


@pytest.fixture
def keeper(parks: list[Park]) -> Iterator[MemoryKeeper]:
    """A keeper whose disk takes each park at once."""

    def on_park(park: Park) -> None:
        parks.append(park)
        park.written.set_result(True)

    made = MemoryKeeper(on_park)
    yield made
    made.close()


ASKS: dict[str, Any] = {"tools": {"asks": echo}, "policy": {"default": {"approve": ["tools.asks"]}}}


@pytest.fixture
async def asking(keeper: MemoryKeeper, make_world: MakeWorld) -> World:
    """Has a tool that a person must allow."""
    return make_world(keeper=keeper, **ASKS)


def test_what_is_replayed_counts_once_and_in_no_cap(keeper: MemoryKeeper, parks: list[Park]) -> None:
    """A run that is parked three times: its own time and CPU time count over all its processes, its replays apart."""
    used_ms: list[int] = []
    use = [(400, 0), (900, 650), (800, 790)]
    """What each process has used, and had when it was live."""

    async def play(run: HostedRun) -> None:
        parked = len(parks)
        await asyncio.sleep(3)
        if parked:
            for call_id in range(1, parked + 1):
                assert await run.call(call_id, "asks", {}) == (True, {})
            run.say(protocol.Live())
            await asyncio.sleep(1)
        run.call(parked + 1, "asks", {})
        await run.cancelled.wait()
        cpu_ms, replay_cpu_ms = use[parked]
        run.ended("cancelled", cpu_ms=cpu_ms, replay_cpu_ms=replay_cpu_ms)

    async def three_parks() -> list[protocol.Run]:
        world = World(keeper=keeper, **ASKS)
        host = await world.host(play, confirms=False)
        request = {"code": "1", "limits": {"maxCpuMs": 1000, "timeoutMs": 5000}, "durable": True}
        assert (await world.executor.run(request)).parked
        used_ms.append(keeper.cpu_ms(parks[-1]))
        for _ in use[1:]:
            kept = keeper.woken(parks[-1], {len(parks): Verdict.ACCEPTED})
            assert (await world.executor.run(kept.journal.request, kept=kept)).parked
            used_ms.append(keeper.cpu_ms(parks[-1]))
        await world.close()
        return [run.message for run in host.runs]

    first, second, third = in_virtual_time(three_parks())
    assert used_ms == [400, 650, 660]
    assert (first.cpu_ms, first.replay_ms, first.timeout_ms) == (1000, 0, 5000)
    assert (second.cpu_ms, second.replay_ms) == (600, 1000 + REPLAY_CPU_MS)
    assert third.cpu_ms == 350
    # Three seconds, one, and what passes until each is parked.
    assert second.timeout_ms == pytest.approx(2000, abs=200)
    assert third.timeout_ms == pytest.approx(1000, abs=300)


async def test_what_a_lost_process_had_used_is_seen_when_it_is_replayed(
    asking: World, keeper: MemoryKeeper, parks: list[Park]
) -> None:
    async def parks_again(run: HostedRun) -> None:
        run.say(protocol.Live())
        run.call(1, "asks", {})
        await run.cancelled.wait()
        replayed = REPLAY_CPU_MS + 2_000
        run.ended("cancelled", cpu_ms=replayed + 5, replay_cpu_ms=replayed)

    first = await asking.host(hold)
    run = asking.begin(durable=True)
    await first.until_runs(1)
    await turns()
    await asking.host(parks_again, identity=b"another", confirms=False)
    asking.lose(first)
    assert (await within(run)).parked
    assert keeper.cpu_ms(parks[0]) == 2_005


async def test_a_run_that_is_woken_and_finds_no_place_is_still_to_go_on(
    asking: World, keeper: MemoryKeeper, parks: list[Park], make_world: MakeWorld
) -> None:
    async def play(run: HostedRun) -> None:
        run.call(1, "asks", {})

    assert (await asking.played(play, durable=True)).parked
    kept = keeper.woken(parks[-1], {1: Verdict.ACCEPTED})
    full = make_world(keeper=keeper, pool={"queue_size": 1, "queue_wait_ms": 1})
    response = await within(full.executor.run(kept.journal.request, kept=kept))
    assert {entry.code for entry in response.diagnostics} & REFUSED_FOR_NOW, response
    # Its broker tries it again; if that dies before, another one does.
    assert keeper.store.owned() == [(kept.run_id, keeper.owner.name)]
    again = MemoryKeeper(parks.append, before=keeper)
    (kept,) = again.adopted(keeper)
    assert [call.id for call in kept.journal.past.calls] == [1]


async def test_a_worker_that_never_says_that_it_is_live_replays_nothing(
    asking: World, keeper: MemoryKeeper, parks: list[Park]
) -> None:
    """It makes calls that are new: all that it uses is the script's own."""

    async def play(run: HostedRun) -> None:
        run.call(1 + len(parks), "asks", {})
        await run.cancelled.wait()
        run.ended("cancelled", cpu_ms=300, replay_cpu_ms=300 if parks[1:] else 0)

    await asking.host(play, confirms=False)
    assert (await asking.run(durable=True)).parked
    kept = keeper.woken(parks[-1], {1: Verdict.ACCEPTED})
    assert kept.earlier_cpu_ms == 300
    assert (await within(asking.executor.run(kept.journal.request, kept=kept))).parked
    assert keeper.cpu_ms(parks[1]) == 600


async def test_a_run_that_goes_on_and_ends_before_it_is_live_has_its_outcome(
    asking: World, keeper: MemoryKeeper, parks: list[Park]
) -> None:
    """Its script may have come to another end; what it was asked is not asked again, and no call is made."""

    async def play(run: HostedRun) -> None:
        if not parks:
            run.call(1, "asks", {})
            await run.cancelled.wait()
            run.ended("cancelled")
        else:
            run.done("early", cpu_ms=30, replay_cpu_ms=30)

    await asking.host(play, confirms=False)
    assert (await asking.run(durable=True)).parked
    kept = keeper.woken(parks[-1], {1: Verdict.DECLINED})
    response = await within(asking.executor.run(kept.journal.request, kept=kept))
    assert (response.result, response.usage.resumed, response.tool_trace) == ("early", 1, [])
    assert not asking.failed


POLICY = {"default": {"approve": ["tools.echo"]}}


class User:
    """Is asked, and answers when a test says so."""

    def __init__(self) -> None:
        self.asked = asyncio.Event()
        self.answer: asyncio.Future[Verdict] = asyncio.get_running_loop().create_future()
        self.questions: list[Question] = []
        self.grantee = Grantee("embedding", self._ask)

    async def _ask(self, question: Question) -> Verdict:
        self.questions.append(question)
        self.asked.set()
        return await asyncio.shield(self.answer)


async def other(_: dict[str, Any]) -> str:
    return "other"


@pytest.mark.parametrize(("verdict", "sent"), [(Verdict.ACCEPTED, True), (Verdict.DECLINED, False)])
async def test_the_clock_stands_still_and_other_calls_go_on(
    make_world: MakeWorld, verdict: Verdict, sent: bool
) -> None:
    user = User()

    async def play(run: HostedRun) -> None:
        assert run.message.pause_ms == 600_000
        held = run.call(1, "echo", {"a": 1})
        await asyncio.wait_for(user.asked.wait(), BOUND)
        assert run.clock == ["pause"]
        assert await asyncio.wait_for(run.call(2, "other"), BOUND) == (True, "other")
        assert not held.done()
        user.answer.set_result(verdict)
        ok, value = await asyncio.wait_for(held, BOUND)
        assert run.clock == ["pause", "resume"]
        assert ok is sent
        assert value == {"a": 1} if sent else value["code"] == "APPROVAL_DECLINED"
        run.done(ok)

    response = await make_world(tools={"other": other}, policy=POLICY).played(play, grantee=user.grantee)
    assert response.result is sent and response.usage.approval_wait_ms is not None
    first = response.tool_trace[0]
    assert (first.ok, first.error) == ((True, None) if sent else (False, "refused by a person"))
    assert user.questions[0].arguments == {"a": 1}


@pytest.mark.parametrize("how", ["throws", "returns", "broker stops"])
async def test_a_call_that_was_allowed_is_made_though_the_script_ends_before_it(
    keeper: MemoryKeeper, make_world: MakeWorld, how: str
) -> None:
    """The refusal of another one ends a `Promise.all`, and with it the script."""
    goes = asyncio.Event()
    ended = asyncio.Event()

    async def slow(_: dict[str, Any]) -> str:
        await goes.wait()
        return "made"

    async def says(question: Question) -> Verdict:
        return Verdict.ACCEPTED if question.tool_name == "slow" else Verdict.DECLINED

    async def play(run: HostedRun) -> None:
        run.call(1, "slow")
        run.call(2, "hangs")
        ok, error = await within(run.call(3, "echo"))
        assert (ok, error["code"]) == (False, "APPROVAL_DECLINED")
        run.ended(outcome="exception" if how == "throws" else "done", body=b"1")
        ended.set()

    policy = {"default": {"approve": ["tools.echo", "tools.slow"]}}
    world = make_world(tools={"slow": slow, "hangs": hangs}, policy=policy, keeper=keeper)
    await world.host(play)
    running = asyncio.ensure_future(world.run(grantee=Grantee("embedding", says), durable=True))
    await within(ended.wait())
    await turns()
    assert not running.done()
    if how == "broker stops":
        await within(world.executor.close())
    goes.set()
    response = await within(running)
    assert [entry.error for entry in response.tool_trace] == [
        IN_FLIGHT if how == "broker stops" else None,
        IN_FLIGHT,
        "refused by a person",
    ]
    assert response.result == (None if how == "throws" else 1)


@pytest.mark.parametrize("how", ["timeout", "done", "lost", "aborted"])
async def test_a_run_that_ends_meanwhile(make_world: MakeWorld, how: str) -> None:
    user = User()

    async def play(run: HostedRun) -> None:
        run.call(1, "echo")
        await asyncio.wait_for(user.asked.wait(), BOUND)
        if how == "timeout":
            run.ended("timeout")
        elif how == "done":
            run.done(1)

    world = make_world(policy=POLICY)
    host = await world.host(play)
    task = asyncio.ensure_future(world.run(grantee=user.grantee))
    await asyncio.wait_for(user.asked.wait(), BOUND)
    if how == "lost":
        world.lose(host)
    if how == "aborted":
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        await world.executor.close()
    else:
        response = await task
        assert codes(response) == {"timeout": ["SANDBOX_LIMIT"], "done": [], "lost": ["HOST_LOST"]}[how]
        (call,) = response.tool_trace
        assert (call.ok, call.error) == (False, "not called: the run had ended before")
    # Nothing is said of a clock that is no more.
    assert host.runs[0].clock == ["pause"]


@virtual_time
async def test_the_brokers_own_bound_waits_with_the_clock() -> None:
    user = User()

    async def play(run: HostedRun) -> None:
        held = run.call(1, "echo")
        await asyncio.wait_for(user.asked.wait(), BOUND)
        await asyncio.sleep(BOUND / 2)
        assert not world.failed
        user.answer.set_result(Verdict.ACCEPTED)
        await asyncio.wait_for(held, BOUND)
        # And now the host lets it pass its deadline.

    world = World(policy=POLICY)
    response = await world.played(play, grantee=user.grantee, limits={"timeoutMs": 300})
    assert (codes(response), len(world.failed)) == (["HOST_LOST"], 1)
    await world.close()


async def test_without_a_policy_the_clock_may_never_stop(world: World) -> None:
    async def play(run: HostedRun) -> None:
        assert (await asyncio.wait_for(run.call(1), BOUND))[0]
        run.done(run.message.pause_ms)

    assert (await world.played(play, grantee=User().grantee)).result == 0


async def test_a_call_by_another_name_is_no_call(make_world: MakeWorld) -> None:
    """What a worker asks for in the protocol itself passes the same doors."""

    async def play(run: HostedRun) -> None:
        for number, name in enumerate(
            ["echo", "tools.echo", "Echo", "__proto__", "mcp__tools__echo", "echo\0"], 1
        ):
            ok, error = await asyncio.wait_for(run.call(number, name), BOUND)
            assert (ok, error["errorClass"]) == (False, "ToolNotFoundError"), name
        listed = await asyncio.wait_for(run.query(10, "listTools", "tools"), BOUND)
        assert [tool["toolName"] for tool in listed[1]] == ["other"]
        assert (await asyncio.wait_for(run.call(11, "other"), BOUND)) == (True, "other")
        run.done(1)

    world = make_world(tools={"other": other}, policy={"default": {"tools": ["tools.other"]}})
    response = await world.played(play)
    assert response.result == 1 and "not grant it" not in str(response.tool_trace)
    (refused,) = (await world.run('import "@codemode/servers/tools";', grants={"tools": []})).diagnostics
    assert refused.code == "IMPORT_FAILURE"
    assert "not granted" in refused.message and "grants" in refused.hint


def question(call: int) -> Question:
    return Question("files", "write", False, {"n": call}, 5.0, call)


def asked(call: int, nth: int = 1) -> ParkedQuestion:
    """Is what the server of a call asks."""
    return ParkedQuestion(
        call=call, server="s", tool="t", destructive=False, input="", bytes=0, kind="elicitation", nth=nth
    )


class Place:
    """A run with so many calls under way."""

    def __init__(self, in_flight: int = 0) -> None:
        self.in_flight = in_flight
        self.park = Mock()
        self.parking = Parking(lambda: self.in_flight, self.park)

    @property
    def parked(self) -> int:
        """How often it was parked."""
        return self.park.call_count

    def answered(self) -> None:
        self.in_flight -= 1
        self.parking.look()

    def asks_later(self, *calls: int) -> None:
        for call in calls:
            self.in_flight += 1
            self.parking.waits_for_later(question(call))


async def gathered() -> None:
    """Passes the time in which what is asked at once is gathered."""
    await asyncio.sleep(2 * GATHER_SECONDS)


@virtual_time
async def test_it_parks_once_with_all_that_is_asked_at_once() -> None:
    place = Place()
    place.asks_later(1)
    await asyncio.sleep(0)
    place.asks_later(2)
    await gathered()
    assert place.parked == 1 and sorted(place.parking.questions) == [QuestionId(1), QuestionId(2)]
    place.parking.look()
    assert place.parked == 1


@pytest.mark.parametrize(
    ("wait", "of"),
    [(Parking.waits, question), (Parking.waits, asked), (Parking.waits_for_later, asked)],
    ids=["somebody who is there", "a server's client", "nobody"],
)
@virtual_time
async def test_what_is_asked_when_it_was_time_already_parks_it_with_the_rest(wait: Any, of: Any) -> None:
    """The call that had held it asks, too."""
    place = Place(in_flight=1)
    place.asks_later(1)
    await gathered()
    assert place.parked == 0
    wait(place.parking, of(2))
    assert place.parked == 1


@virtual_time
async def test_whose_client_can_answer_is_never_parked_but_at_the_brokers_end() -> None:
    place = Place(in_flight=1)
    place.parking.waits(question(1))
    await gathered()
    assert place.parked == 0
    place.in_flight += 1
    assert not place.parking.park_now(), "a tool is at work"
    place.answered()
    assert place.parked == 0, "nor is it parked for that when the tool has answered"
    assert place.parking.park_now() and place.parked == 1
    assert not Place().parking.park_now(), "nobody is waited for"


@virtual_time
async def test_who_waits_for_it_to_be_parked_waits_until_cancelled() -> None:
    place = Place(in_flight=2)
    waits = [asyncio.create_task(place.parking.until_parked(question(call))) for call in (1, 2)]
    await gathered()
    assert sorted(place.parking.questions) == [QuestionId(1), QuestionId(2)]
    for wait in waits:
        wait.cancel()
    await asyncio.wait(waits)
    assert place.parking.questions == {} and place.parked == 1


@virtual_time
async def test_an_answer_in_time_keeps_it_and_the_next_question_is_another_matter() -> None:
    place = Place()
    place.asks_later(1)
    place.parking.goes_on(QuestionId(1))
    await gathered()
    place.parking.waits(question(2))
    assert place.parked == 0, "who can be asked now is asked"


@virtual_time
async def test_two_questions_of_one_call_are_one_that_waits() -> None:
    place = Place(in_flight=2)
    for nth in (1, 2):
        place.parking.waits_for_later(asked(1, nth))
    await gathered()
    assert place.parked == 0, "the other call asks nothing"
    place.answered()
    assert place.parked == 1


@virtual_time
async def test_one_that_is_over_is_not_parked() -> None:
    place = Place()
    place.asks_later(1)
    place.parking.close()
    await gathered()
    place.asks_later(2)
    place.parking.look()
    assert place.parked == 0 and [one.call for one in place.parking.questions] == [1, 2]
