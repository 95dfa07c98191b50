"""The table of a worker's life, and what binds a process to its first run."""

from __future__ import annotations

import itertools

import pytest

from cellblock_worker.wire import protocol
from cellblock_worker.worker.reuse import CPU_SECONDS, GROWTH_BYTES, Bond, ReuseBounds
from cellblock_worker.worker.states import MAY_SAY, TRANSITIONS, Event, IllegalTransition, State, advance
from cellblock_worker.worker.usage import Usage

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


BOUNDS = ReuseBounds(max_runs=3, max_age_ms=3_600_000, idle_ms=1, principal_warm=1)


def _run(key: str = "a", *, memory: int = 100, cpu: int = 100) -> protocol.Run:
    return protocol.Run(timeout_ms=1, cpu_ms=cpu, memory_bytes=memory, log_bytes=1, message_bytes=1, key=key)


def test_only_runs_of_its_key_fit_and_none_with_higher_limits() -> None:
    bond = Bond.begin(_run(), Usage(1.0, 1))
    assert bond.fits(_run(memory=50, cpu=50))
    assert not bond.fits(_run("b"))
    assert not bond.fits(_run(memory=101))
    assert not bond.fits(_run(cpu=101))


def test_it_has_so_many_runs_and_no_more() -> None:
    bond = Bond.begin(_run(), Usage(1.0, 1))
    lasting = []
    for served in range(4):
        bond.served = served
        lasting.append(bond.lasts(BOUNDS))
    assert lasting == [True, True, False, False]


def test_it_has_them_for_so_long_and_no_longer() -> None:
    bond = Bond.begin(_run(), Usage(1.0, 1))
    bond.since -= 3_601
    assert not bond.lasts(BOUNDS)


def test_it_may_neither_grow_nor_compute_without_end() -> None:
    bond = Bond.begin(_run(), Usage(1.0, 1, data_bytes=1000))
    assert bond.within(Usage(1.0 + CPU_SECONDS, 1, data_bytes=1000 + GROWTH_BYTES))
    assert not bond.within(Usage(1.0, 1, data_bytes=1001 + GROWTH_BYTES))
    assert not bond.within(Usage(1.1 + CPU_SECONDS, 1, data_bytes=1000))
