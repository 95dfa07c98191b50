"""The wall clock of a run: what stands still is not counted, and it stands still no longer than was said before."""

import asyncio

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from cellblock_worker.worker.run_limits import ClockState, WallClock
from support.virtual_time import virtual_time


class World:
    """A clock in virtual time."""

    def __init__(self, seconds: float, allowance: float) -> None:
        self.over_at: float | None = None
        self.clock = WallClock(seconds, allowance, self._over)

    def _over(self) -> None:
        assert self.over_at is None, "over twice"
        self.over_at = asyncio.get_running_loop().time()
        self.clock.cancel()


@pytest.mark.parametrize("stands", [False, True])
@virtual_time
async def test_the_time_of_a_run_that_has_come_back_begins_anew(*, stands: bool) -> None:
    world = World(100, 100)
    if stands:
        world.clock.stop()
    await asyncio.sleep(50)
    world.clock.restart(5)
    await asyncio.sleep(3)
    assert world.over_at is None
    if stands:
        world.clock.go_on()
    await asyncio.sleep(10)
    assert world.over_at == pytest.approx(58 if stands else 55)


@virtual_time
async def test_what_stands_still_does_not_count() -> None:
    world = World(5, 100)
    await asyncio.sleep(4)
    assert world.clock.stop()
    await asyncio.sleep(60)
    assert world.over_at is None
    assert world.clock.go_on()
    await asyncio.sleep(0.5)
    assert world.over_at is None
    await asyncio.sleep(1)
    assert world.over_at == pytest.approx(65)


@virtual_time
async def test_it_goes_on_by_itself_when_nobody_says_so() -> None:
    world = World(5, 10)
    world.clock.stop()
    await asyncio.sleep(12)
    assert world.clock.state is ClockState.OVERDRAWN
    # The word that comes late changes nothing; another stop is none.
    assert world.clock.go_on()
    assert not world.clock.stop()
    await asyncio.sleep(10)
    assert world.over_at == pytest.approx(15)


@virtual_time
async def test_what_does_not_fit_changes_nothing() -> None:
    world = World(5, 10)
    assert not world.clock.go_on()
    assert world.clock.stop()
    assert not world.clock.stop()
    assert world.clock.go_on()
    assert not world.clock.go_on()
    await asyncio.sleep(10)
    assert world.over_at == pytest.approx(5)


STEPS = st.lists(st.sampled_from(["stop", "go on"]) | st.floats(0.1, 20), max_size=20)


@example(5.0, 10.0, ["stop", 6.0, "go on", "stop"])
@given(st.floats(1, 30), st.floats(0, 30), STEPS)
@virtual_time
async def test_it_is_over_no_sooner_than_its_time_and_no_later_than_with_its_allowance(
    seconds: float, allowance: float, steps: list[str | float]
) -> None:
    world = World(seconds, allowance)
    for step in steps:
        if world.over_at is not None:
            break
        if isinstance(step, float):
            await asyncio.sleep(step)
        elif step == "stop":
            world.clock.stop()
        else:
            world.clock.go_on()
    if world.over_at is None:
        await asyncio.sleep(100)
    assert seconds - 1e-6 <= world.over_at <= seconds + allowance + 1e-6
