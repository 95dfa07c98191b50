"""The broker's side of a run's clock, when several things stop it."""

from __future__ import annotations

from contextlib import ExitStack

from cellblock.run.run_clock import RunClock


class Host:
    """What the host is told, and what the broker's own bound is."""

    def __init__(self, allowance: float) -> None:
        self.said: list[str] = []
        self.bounds: list[float] = []
        self.clock = RunClock(allowance, lambda message: self.said.append(message.t), self.bounds.append)
        self.clock.start(10.0)


async def test_it_goes_on_when_nobody_stops_it_any_more() -> None:
    host = Host(allowance=60.0)
    with ExitStack() as first:
        first.enter_context(host.clock.standing_still())
        with host.clock.standing_still():
            pass
        assert host.said == ["pause"]
    assert host.said == ["pause", "resume"]
    with host.clock.standing_still():
        assert host.said == ["pause", "resume", "pause"]
    assert host.bounds[0] == 10.0 and 65 < host.bounds[1] <= 70 and 9 < host.bounds[-1] <= 10


async def test_without_an_allowance_it_never_stops() -> None:
    host = Host(allowance=0.0)
    with host.clock.standing_still(), host.clock.standing_still():
        assert host.said == []
    assert host.said == [] and host.bounds == [10.0]
