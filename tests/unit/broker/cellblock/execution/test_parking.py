"""When a run is parked: all that it waits for is people, and that for long enough."""

from __future__ import annotations

import asyncio

import pytest

from cellblock.execution import parking
from cellblock.execution.parking import Parking
from cellblock.journal.at_work import OpenQuestion
from cellblock.base.questions import ParkedQuestion
from cellblock.policy.asking import Question
from support.waits import within


def question(call: int) -> Question:
    return Question("files", "write", False, {"n": call}, 5.0, call)


class Place:
    """A run with so many calls under way."""

    def __init__(self, after: float | None = 0.01, tools_after: float | None = None) -> None:
        self.in_flight = 0
        self.parked = 0
        self.came = asyncio.Event()
        self.parking = Parking(after, lambda: self.in_flight, self._park, tools_after)

    def _park(self) -> None:
        self.parked += 1
        self.came.set()

    def calls(self, *calls: int) -> None:
        for call in calls:
            self.in_flight += 1
            self.parking.begins(call)

    def answered(self, call: int) -> None:
        self.in_flight -= 1
        self.parking.ends(call)

    def asked(self, call: int, nth: int = 1) -> OpenQuestion:
        """The server of a call that is under way asks something."""
        asked = ParkedQuestion(
            call=call, server="s", tool="t", destructive=False, input="", bytes=0, kind="elicitation", nth=nth
        )
        question = OpenQuestion(asked, asyncio.get_running_loop().create_future())
        self.parking.asks(question)
        return question

    def asks(self, *calls: int) -> None:
        for call in calls:
            self.in_flight += 1
            self.parking.waits(question(call))


async def test_it_parks_once_with_all_that_is_asked() -> None:
    place = Place()
    place.asks(1, 2)
    await within(place.came.wait())
    assert place.parked == 1 and sorted(place.parking.questions) == [1, 2]
    place.parking.look()
    assert place.parked == 1


async def test_what_is_asked_at_once_is_parked_together_also_where_nobody_is_waited_for() -> None:
    place = Place(0.0)
    place.asks(1)
    await asyncio.sleep(0)
    place.asks(2)
    await within(place.came.wait())
    assert place.parked == 1 and sorted(place.parking.questions) == [1, 2]


async def test_a_tool_at_work_holds_it_until_it_has_answered() -> None:
    place = Place(0.0)
    place.in_flight = 1
    place.asks(1)
    await asyncio.sleep(2 * parking.GATHER_SECONDS)
    assert place.parked == 0
    place.in_flight -= 1
    place.parking.look()
    assert place.parked == 1


@pytest.mark.parametrize("who", ["a call", "a call of which nobody can be asked", "a server"])
async def test_what_is_asked_when_it_was_time_already_parks_it_with_the_rest(who: str) -> None:
    """The call that had held it asks, too."""
    place = Place(0.0)
    place.asks(1)
    place.in_flight += 1
    await asyncio.sleep(2 * parking.GATHER_SECONDS)
    assert place.parked == 0
    waiting = None
    if who == "a call":
        place.parking.waits(question(2))
    elif who == "a server":
        place.parking.begins(2)
        place.asked(2)
    else:
        waiting = asyncio.create_task(place.parking.until_parked(question(2)))
    await within(place.came.wait())
    assert place.parked == 1
    if waiting is not None:
        waiting.cancel()


async def test_an_answer_in_time_keeps_it_and_the_next_question_has_its_own_time() -> None:
    place = Place(1000.0)
    place.asks(1)
    place.in_flight -= 1
    place.parking.goes_on(1)
    place.parking.look()
    assert place.parked == 0
    place.asks(2)
    place.parking.look()
    assert place.parked == 0, "its time has not come"
    assert place.parking.park_now() and place.parked == 1


async def test_whose_client_waits_is_never_parked_but_at_the_brokers_end() -> None:
    place = Place(None)
    place.asks(1)
    await asyncio.sleep(0.02)
    assert place.parked == 0
    place.in_flight += 1
    assert not place.parking.park_now(), "a tool is at work"
    place.in_flight -= 1
    assert place.parking.park_now()
    assert not Place(None).parking.park_now(), "nobody is waited for"


async def test_where_nobody_can_be_asked_it_parks_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parking, "GATHER_SECONDS", 0.001)
    place = Place(None)
    place.in_flight = 2
    waits = [asyncio.create_task(place.parking.until_parked(question(call))) for call in (1, 2)]
    await within(place.came.wait())
    assert sorted(place.parking.questions) == [1, 2]
    # It could not be written: those who wait go on, and it is not tried again.
    place.parking.failed(for_good=True)
    await within(asyncio.gather(*waits))
    assert place.parking.questions == {} and place.parked == 1
    place.asks(3)
    place.parking.look()
    assert place.parked == 1


async def test_one_that_went_on_meanwhile_may_be_parked_later() -> None:
    place = Place(0.0)
    place.asks(1, 2)
    await within(place.came.wait())
    place.in_flight -= 1
    place.parking.goes_on(1)
    place.parking.failed(for_good=False)
    place.parking.look()
    assert place.parked == 2
    place.parking.close()
    place.parking.failed(for_good=False)


async def test_tools_that_are_at_work_for_long_park_it_alone_and_beside_people() -> None:
    for place in (Place(None, 0.0), Place(0.0, 0.0)):
        place.calls(1, 2)
        await within(place.came.wait())
        assert place.parked == 1 and sorted(place.parking.working) == [1, 2]
    place = Place(0.0, 0.0)
    place.calls(1)
    place.asks(2)
    await within(place.came.wait())
    assert (place.parked, list(place.parking.working), list(place.parking.questions)) == (1, [1], [2])


async def test_a_tool_whose_time_is_not_over_holds_it_and_so_does_a_call_that_is_not_sent() -> None:
    place = Place(0.0, 1000.0)
    place.calls(1)
    place.asks(2)
    await asyncio.sleep(2 * parking.GATHER_SECONDS)
    assert place.parked == 0, "the tool has time"
    place.answered(1)
    assert place.parked == 1, "and has answered in it"
    place.parking.close()
    place = Place(0.0, 0.0)
    place.in_flight = 1
    place.calls(1)
    await asyncio.sleep(2 * parking.GATHER_SECONDS)
    assert place.parked == 0, "one waits for its turn"
    place.in_flight -= 1
    place.parking.ends(9)
    assert place.parked == 1


async def test_a_client_that_is_asked_where_it_waits_holds_it_and_so_does_a_server_that_asks() -> None:
    place = Place(None, 0.0)
    place.calls(1)
    place.asks(2)
    await asyncio.sleep(2 * parking.GATHER_SECONDS)
    assert place.parked == 0
    place = Place(0.0, 0.0)
    place.calls(1)
    with place.parking.asking():
        await asyncio.sleep(2 * parking.GATHER_SECONDS)
        assert place.parked == 0
    assert place.parked == 1


async def test_a_call_whose_server_asks_waits_for_a_person_and_stays_with_its_broker() -> None:
    place = Place(0.0)
    place.calls(1)
    place.asks(2)
    question = place.asked(1)
    await within(place.came.wait())
    waiting = place.parking.waiting
    assert waiting.working == {1} and [*waiting.questions] == [2]
    assert [*waiting.asked] == [question.asked.number]


async def test_a_call_without_a_question_holds_one_whose_server_asks() -> None:
    place = Place(0.0)
    place.calls(1, 2)
    question = place.asked(1)
    await asyncio.sleep(2 * parking.GATHER_SECONDS)
    assert place.parked == 0
    place.parking.asks_no_more(question)
    place.answered(2)
    assert place.parked == 0, "nobody is asked any more"


async def test_the_end_of_a_call_ends_its_questions_and_others_have_their_time() -> None:
    place = Place(1000.0, 0.0)
    place.calls(1, 2)
    questions = [place.asked(1), place.asked(1, 2)]
    place.answered(1)
    assert [question.answer.result() for question in questions] == [None, None]
    assert not place.parking.asked
    # The other one is at work for long, and is all that is waited for.
    await within(place.came.wait())
    assert place.parking.waiting.working == {2}
