"""Questions of a run: its clock stands still, other calls go on, and when the run is parked."""

import asyncio
from typing import Any

import pytest

from cellblock.base.questions import ParkedQuestion, QuestionId
from cellblock.run.calls import IN_FLIGHT
from cellblock.run.parking import GATHER_SECONDS, Parking
from cellblock.run.policy.asking import Grantee, Question, Verdict
from support.memory_host import BOUND, HostedRun, MakeWorld, World, codes, turns
from support.memory_keeper import MemoryKeeper
from support.virtual_time import virtual_time
from support.waits import within

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
    make_world: MakeWorld, how: str
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

    async def hangs(_: dict[str, Any]) -> None:
        await asyncio.Event().wait()

    policy = {"default": {"approve": ["tools.echo", "tools.slow"]}}
    keeper = MemoryKeeper(lambda park: park.written.set_result(True))
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
    keeper.close()


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
        self.parked = 0
        self.came = asyncio.Event()
        self.parking = Parking(lambda: self.in_flight, self._park)

    def _park(self) -> None:
        self.parked += 1
        self.came.set()

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
    await within(place.came.wait())
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
    await within(place.came.wait())
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
