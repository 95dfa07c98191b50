"""Places of one host, lent to several brokers: never more in use than there are, and none idle beside who waits."""

from collections import deque

import pytest
from hypothesis import example, given, strategies as st

from cellblock_worker.host.places import Places


class World:
    """Brokers that keep to what they have heard, which takes a while, and have runs."""

    def __init__(self, capacity: int, brokers: int) -> None:
        self.capacity = capacity
        self.now = 0.0
        self.places = Places[int](
            capacity, lambda broker, places: self.heard[broker].append(places), lambda: self.now
        )
        self.heard: dict[int, deque[int]] = {broker: deque() for broker in range(brokers)}
        self.limit = dict.fromkeys(range(brokers), 0)
        self.running = dict.fromkeys(range(brokers), 0)
        self.waiting = dict.fromkeys(range(brokers), 0)
        self.in_flight: dict[int, deque[int | None]] = {broker: deque() for broker in range(brokers)}
        """Lists what is on the way to the host: a run (None), or a grant that is repeated."""
        for broker in range(brokers):
            self.places.join(broker)

    def hear(self, broker: int) -> None:
        if self.heard[broker]:
            self.limit[broker] = self.heard[broker].popleft()
            self.in_flight[broker].append(self.limit[broker])
        self.start(broker)

    def start(self, broker: int) -> None:
        while self.waiting[broker] and (
            self.running[broker] + self.in_flight[broker].count(None) < self.limit[broker]
        ):
            self.waiting[broker] -= 1
            self.in_flight[broker].append(None)

    def arrive(self, broker: int) -> None:
        if self.in_flight[broker]:
            said = self.in_flight[broker].popleft()
            if said is None:
                assert self.places.began(broker), "a run within its grant has its place"
                self.running[broker] += 1
            else:
                assert self.places.repeated(broker, said)

    def ask(self, broker: int, more: int) -> None:
        self.waiting[broker] += more
        self.start(broker)
        self.tell(broker)

    def tell(self, broker: int) -> None:
        self.places.wants(broker, self.waiting[broker])

    def end(self, broker: int) -> None:
        if self.running[broker]:
            self.running[broker] -= 1
            self.places.ended(broker)

    def settle(self) -> "World":
        """Lets everything arrive."""
        for _ in range(1000):
            for broker in self.heard:
                self.hear(broker)
                self.arrive(broker)
                self.tell(broker)
            if not any(self.heard.values()) and not any(self.in_flight.values()):
                return self
        raise AssertionError("brokers and host never come to rest")


STEPS = st.lists(
    st.tuples(st.sampled_from(["ask", "hear", "arrive", "end", "tell"]), st.integers(0, 3)), max_size=120
)


@example(capacity=8, brokers=2, steps=[("ask", 1)])
@given(capacity=st.integers(1, 40), brokers=st.integers(1, 4), steps=STEPS)
def test_places_in_use_are_never_more_than_there_are_and_none_is_idle_beside_who_waits(
    capacity: int, brokers: int, steps: list[tuple[str, int]]
) -> None:
    world = World(capacity, brokers)
    for step, number in steps:
        broker = number % brokers
        if step == "ask":
            world.ask(broker, 1 + 7 * number)
        else:
            getattr(world, step)(broker)
        assert sum(world.running.values()) <= capacity
    world.settle()
    total = sum(world.running.values())
    assert total <= capacity
    idle = sum(not running for running in world.running.values())
    assert not any(world.waiting.values()) or total >= capacity - min(idle, capacity // 16)
    # Who has none waiting may have begun with what was free; who waits has at most one less than any that waits.
    for _ in range(3 * capacity):
        for broker in world.running:
            if world.waiting[broker]:
                world.end(broker)
        world.settle()
    holds = [world.running[broker] for broker in world.waiting if world.waiting[broker]]
    assert not holds or max(holds) - min(holds) <= 1


def test_an_idle_host_has_places_for_each_broker() -> None:
    assert sorted(World(16, 3).settle().limit.values()) == [5, 5, 6]


def test_all_places_but_a_reserved_one_are_lent_to_the_only_broker_with_work_and_come_back() -> None:
    world = World(16, 2).settle()
    world.ask(0, 100)
    assert world.settle().running == {0: 15, 1: 0}
    world.ask(1, 1)
    assert world.settle().running == {0: 15, 1: 1}, "the reserved place is there at once"
    world.ask(1, 100)
    for _ in range(20):
        world.end(0)
        world.settle()
    assert world.running == {0: 8, 1: 8}


def test_a_run_without_a_place_and_a_repetition_of_nothing_are_refused() -> None:
    world = World(1, 2).settle()
    holder = max(world.limit, key=lambda broker: world.limit[broker])
    assert [world.places.began(who) for who in (1 - holder, holder, holder, 7)] == [False, True, False, False]
    assert not world.places.repeated(holder, 1) and not world.places.repeated(7, 1)


def test_the_runs_of_a_broker_that_is_gone_keep_their_places_until_they_end() -> None:
    world = World(2, 2)
    world.ask(0, 2)
    world.settle()
    world.ask(1, 2)
    world.places.leave(0)
    world.heard[0].clear()
    assert world.settle().running == {0: 2, 1: 0}
    world.end(0)
    assert world.settle().running == {0: 1, 1: 1}
    world.end(0)
    assert world.settle().running == {0: 0, 1: 2} and world.places.is_idle(0)


def test_a_retired_broker_gets_no_more_and_is_idle_when_its_runs_have_ended() -> None:
    world = World(4, 2)
    world.ask(0, 3)
    world.settle()
    world.places.retire(0)
    assert not world.places.is_idle(0)
    world.settle()
    world.ask(0, 3)
    for _ in range(3):
        world.settle()
        world.end(0)
    assert world.places.is_idle(0) and world.waiting[0] == 3
    world.places.retire(0, False)
    assert world.settle().running[0] == 3


@pytest.mark.parametrize("late", [False, True])
def test_who_does_not_repeat_a_grant_is_overdue(late: bool) -> None:
    world = World(2, 1)
    world.now = 11.0 if late else 9.0
    assert world.places.overdue(10.0) == ([0] if late else [])
    assert world.settle().places.overdue(10.0) == []
