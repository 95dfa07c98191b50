"""The wall clock of a run: what stands still is not counted, and it stands still no longer than was said before."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellblock_worker.worker.run_limits import ClockState, WallClock
from support.virtual_time import VirtualTimeLoop


class World:
    """A clock in virtual time."""

    def __init__(self, loop: VirtualTimeLoop, seconds: float, allowance: float) -> None:
        self.loop = loop
        self.over_at: float | None = None

        async def make() -> WallClock:
            return WallClock(seconds, allowance, self._over)

        self.clock = loop.run_until_complete(make())

    def _over(self) -> None:
        assert self.over_at is None, "over twice"
        self.over_at = self.loop.time()
        self.clock.cancel()

    def wait(self, seconds: float) -> None:
        async def pause() -> None:
            done = self.loop.create_future()
            self.loop.call_later(seconds, done.set_result, None)
            await done

        self.loop.run_until_complete(pause())


@pytest.fixture
def loop() -> Iterator[VirtualTimeLoop]:
    made = VirtualTimeLoop()
    yield made
    made.close()


def test_time_runs_out(loop: VirtualTimeLoop) -> None:
    world = World(loop, 5, 0)
    world.wait(10)
    assert world.over_at == pytest.approx(5)


@pytest.mark.parametrize("stands", [False, True])
def test_the_time_of_a_run_that_has_come_back_begins_anew(loop: VirtualTimeLoop, *, stands: bool) -> None:
    world = World(loop, 100, 100)
    if stands:
        world.clock.stop()
    world.wait(50)
    world.clock.restart(5)
    world.wait(3)
    assert world.over_at is None
    if stands:
        world.clock.go_on()
    world.wait(10)
    assert world.over_at == pytest.approx(58 if stands else 55)


def test_what_stands_still_does_not_count(loop: VirtualTimeLoop) -> None:
    world = World(loop, 5, 100)
    world.wait(4)
    assert world.clock.stop()
    world.wait(60)
    assert world.over_at is None
    assert world.clock.go_on()
    world.wait(0.5)
    assert world.over_at is None
    world.wait(1)
    assert world.over_at == pytest.approx(65)


def test_it_goes_on_by_itself_when_nobody_says_so(loop: VirtualTimeLoop) -> None:
    world = World(loop, 5, 10)
    world.clock.stop()
    world.wait(12)
    assert world.clock.state is ClockState.OVERDRAWN
    # The word that comes late changes nothing; another stop is none.
    assert world.clock.go_on()
    assert not world.clock.stop()
    world.wait(10)
    assert world.over_at == pytest.approx(15)


def test_what_does_not_fit_changes_nothing(loop: VirtualTimeLoop) -> None:
    world = World(loop, 5, 10)
    assert not world.clock.go_on()
    assert world.clock.stop()
    assert not world.clock.stop()
    assert world.clock.go_on()
    assert not world.clock.go_on()
    world.wait(10)
    assert world.over_at == pytest.approx(5)


def test_without_an_allowance_it_never_stops(loop: VirtualTimeLoop) -> None:
    world = World(loop, 5, 0)
    assert not world.clock.stop()
    world.wait(10)
    assert world.over_at == pytest.approx(5)


STEPS = st.lists(st.sampled_from(["stop", "go on"]) | st.floats(0.1, 20), max_size=20)


@settings(max_examples=200, deadline=None)
@given(st.floats(1, 30), st.floats(0, 30), STEPS)
def test_it_is_over_no_sooner_than_its_time_and_no_later_than_with_its_allowance(
    seconds: float, allowance: float, steps: list[str | float]
) -> None:
    loop = VirtualTimeLoop()
    try:
        world = World(loop, seconds, allowance)
        for step in steps:
            if world.over_at is not None:
                break
            if isinstance(step, float):
                world.wait(step)
            elif step == "stop":
                world.clock.stop()
            else:
                world.clock.go_on()
        if world.over_at is None:
            world.wait(100)
        assert world.over_at is not None
        assert seconds - 1e-6 <= world.over_at <= seconds + allowance + 1e-6
    finally:
        loop.close()
