"""The table of a run: one way to the one end."""

from __future__ import annotations

import itertools

import pytest

from cellblock.run.states import TRANSITIONS, Event, State, advance

ORDER = [State.SENT, State.RUNNING, State.KILLING, State.OVER]


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)), ids=str)
def test_every_move_is_in_the_table_or_none(state: State, event: Event) -> None:
    assert advance(state, event) is TRANSITIONS.get((state, event))


def test_runs_move_one_way_and_every_one_can_end() -> None:
    assert set(ORDER) == set(State)
    assert all(ORDER.index(after) > ORDER.index(before) for (before, _), after in TRANSITIONS.items())
    for state in State:
        assert (advance(state, Event.END) is State.OVER) == (state is not State.OVER)


def test_nothing_moves_a_run_that_is_over() -> None:
    assert all(advance(State.OVER, event) is None for event in Event)
