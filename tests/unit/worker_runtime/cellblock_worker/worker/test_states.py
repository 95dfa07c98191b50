"""The table of a worker's life: one way only, and what may be said in each state."""

from __future__ import annotations

import itertools

import pytest

from cellblock_worker.wire import protocol
from cellblock_worker.worker.states import MAY_SAY, TRANSITIONS, Event, IllegalTransition, State, advance

ORDER = list(State)


@pytest.mark.parametrize(("state", "event"), list(itertools.product(State, Event)), ids=str)
def test_every_move_is_in_the_table_or_refused(state: State, event: Event) -> None:
    if (state, event) in TRANSITIONS:
        assert advance(state, event) is TRANSITIONS[state, event]
    else:
        with pytest.raises(IllegalTransition, match=f"{event.name} in {state.name}"):
            advance(state, event)


def test_life_is_one_way_but_for_a_worker_that_is_reused() -> None:
    back = [move for move, after in TRANSITIONS.items() if ORDER.index(after) <= ORDER.index(move[0])]
    assert back == [(State.RETURNING, Event.READY)]
    assert TRANSITIONS[back[0]] is State.WARM


def test_every_living_state_can_be_killed_or_exit_and_only_a_warm_one_is_leased() -> None:
    for state in State:
        assert ((state, Event.EXIT) in TRANSITIONS) == (state is not State.GONE)
        assert ((state, Event.KILL) in TRANSITIONS) == (state not in (State.ENDING, State.GONE))
    assert [before for before, event in TRANSITIONS if event is Event.LEASE] == [State.WARM]


def test_what_may_be_said() -> None:
    assert set(MAY_SAY) == set(State)
    assert MAY_SAY[State.WARM] == MAY_SAY[State.GONE] == ()
    assert MAY_SAY[State.BOOTING] == (protocol.Ready,)
    assert MAY_SAY[State.ENDING] == (protocol.Log,)
    assert MAY_SAY[State.RETURNING] == (protocol.Ready,)
    assert protocol.Ready not in MAY_SAY[State.RUNNING]
