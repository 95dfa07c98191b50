"""When a run is parked: all that it waits for is people, and nobody who is there can answer."""

from __future__ import annotations

import asyncio

from cellblock.base.questions import ParkedQuestion, QuestionId
from cellblock.run import parking
from cellblock.run.parking import Parking
from cellblock.run.policy.asking import Question
from support.waits import within


def question(call: int) -> Question:
    return Question("files", "write", False, {"n": call}, 5.0, call)


def asked(call: int, nth: int = 1) -> ParkedQuestion:
    """Is what the server of a call asks."""
    return ParkedQuestion(
        call=call, server="s", tool="t", destructive=False, input="", bytes=0, kind="elicitation", nth=nth
    )


class Place:
    """A run with so many calls under way."""

    def __init__(self) -> None:
        self.in_flight = 0
        self.parked = 0
        self.came = asyncio.Event()
        self.parking = Parking(lambda: self.in_flight, self._park)

    def _park(self) -> None:
        self.parked += 1
        self.came.set()

    def answered(self) -> None:
        self.in_flight -= 1
        self.parking.look()

    def calls(self, *calls: int) -> list[int]:
        return [question.call for question in self.parking.questions if question.call in calls]

    def asks_later(self, *calls: int) -> None:
        for call in calls:
            self.in_flight += 1
            self.parking.waits_for_later(question(call))


async def gathered() -> None:
    """Passes the time in which what is asked at once is gathered."""
    await asyncio.sleep(2 * parking.GATHER_SECONDS)


async def test_it_parks_once_with_all_that_is_asked_at_once() -> None:
    place = Place()
    place.asks_later(1)
    await asyncio.sleep(0)
    place.asks_later(2)
    await within(place.came.wait())
    assert place.parked == 1 and sorted(place.parking.questions) == [QuestionId(1), QuestionId(2)]
    place.parking.look()
    assert place.parked == 1


async def test_a_call_without_a_question_holds_it_until_it_has_its_answer() -> None:
    place = Place()
    place.in_flight = 1
    place.asks_later(1)
    await gathered()
    assert place.parked == 0
    place.answered()
    assert place.parked == 1


async def test_what_is_asked_when_it_was_time_already_parks_it_with_the_rest() -> None:
    """The call that had held it asks, too: somebody who is there, a server's client, or nobody."""
    for wait in (
        lambda place: place.parking.waits(question(2)),
        lambda place: place.parking.waits(asked(2)),
        lambda place: place.parking.waits_for_later(asked(2)),
    ):
        place = Place()
        place.asks_later(1)
        place.in_flight += 1
        await gathered()
        assert place.parked == 0
        wait(place)
        assert place.parked == 1


async def test_whose_client_can_answer_is_never_parked_but_at_the_brokers_end() -> None:
    place = Place()
    place.in_flight = 1
    place.parking.waits(question(1))
    await gathered()
    assert place.parked == 0
    place.in_flight += 1
    assert not place.parking.park_now(), "a tool is at work"
    place.answered()
    assert place.parked == 0, "nor is it parked for that when the tool has answered"
    assert place.parking.park_now() and place.parked == 1
    assert not Place().parking.park_now(), "nobody is waited for"


async def test_who_waits_for_it_to_be_parked_waits_until_cancelled() -> None:
    place = Place()
    place.in_flight = 2
    waits = [asyncio.create_task(place.parking.until_parked(question(call))) for call in (1, 2)]
    await within(place.came.wait())
    assert sorted(place.parking.questions) == [QuestionId(1), QuestionId(2)]
    for wait in waits:
        wait.cancel()
    await asyncio.wait(waits)
    assert place.parking.questions == {} and place.parked == 1


async def test_an_answer_in_time_keeps_it_and_the_next_question_is_another_matter() -> None:
    place = Place()
    place.in_flight = 1
    place.parking.waits_for_later(question(1))
    place.parking.goes_on(QuestionId(1))
    await gathered()
    place.parking.waits(question(2))
    assert place.parked == 0, "who can be asked now is asked"


async def test_two_questions_of_one_call_are_one_that_waits() -> None:
    place = Place()
    place.in_flight = 2
    for nth in (1, 2):
        place.parking.waits_for_later(asked(1, nth))
    await gathered()
    assert place.parked == 0, "the other call asks nothing"
    place.answered()
    assert place.parked == 1


async def test_one_that_is_over_is_not_parked() -> None:
    place = Place()
    place.asks_later(1)
    place.parking.close()
    await gathered()
    place.asks_later(2)
    place.parking.look()
    assert place.parked == 0 and place.calls(1, 2) == [1, 2]
