"""The first place among a host's runs: one at a time, and for nobody while a worker is started."""

from __future__ import annotations

import os
import sys

import pytest

from cellblock_worker.scheduling.scheduling import FirstPlace


class Runner:
    """Stands where a worker stands."""

    def __init__(self) -> None:
        self.goes_first = False

    def take_turns(self) -> None:
        self.goes_first = False


def test_where_it_is_not_wanted_there_is_none() -> None:
    place = FirstPlace(wanted=False)
    place.open()
    assert not place.is_free and place.missing == []
    place.vacate()
    place.close()


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux has real-time priority")
def test_one_has_it_at_a_time_until_its_moment_is_over_or_a_worker_is_started(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    place = FirstPlace(wanted=True)
    assert not place.is_free, "not before the host's own threads have their priority"
    place.open()
    try:
        if place.missing:
            pytest.skip("this machine grants no real-time priority")
        one, other = Runner(), Runner()
        assert place.is_free
        one.goes_first = True
        place.note(one)
        assert not place.is_free
        place.note(other)
        assert not place.is_free, "a run that does not go first changes nothing"
        one.goes_first = False
        assert place.is_free, "its moment is over"
        other.goes_first = True
        place.note(other)
        place.vacate()
        assert not other.goes_first and place.is_free
        monkeypatch.setattr(os, "sched_getaffinity", lambda _: {1})
        assert not place.is_free, "an only core is for all"
    finally:
        place.close()
    assert not place.is_free
