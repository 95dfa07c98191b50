"""Warm workers: how many there are, which run gets one, and whose run is next."""

from dataclasses import dataclass

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock_worker.host.warm import (
    BURST_KEPT_SECONDS,
    GIVE_WAY_SECONDS,
    HALF_LIFE_SECONDS,
    HEAVY_CPU_SECONDS,
    IDLE_SECONDS,
    LANES_KEPT,
    OTHERS_SECONDS,
    REMEMBERED_RUNS,
    Turns,
    Waiting,
    WarmTarget,
    WarmWorkers,
)
from cellblock_worker.wire import protocol
from cellblock_worker.worker.life import State


def _run(key: str = "", lane: int = 0) -> protocol.Run:
    return protocol.Run(
        timeout_ms=1, cpu_ms=1, memory_bytes=1, log_bytes=1, message_bytes=1, key=key, lane=lane
    )


@dataclass(eq=False)
class Asked:
    """What is asked of a worker."""

    lasts: bool
    state: State = State.WARM


PLAIN, KEYED = _run(), _run("a key")


def _warm(*workers: Asked, may_last: bool = True) -> WarmWorkers:
    made = WarmWorkers(may_last=may_last)
    for worker in workers:
        made.put(worker)
    return made


def test_a_run_gets_the_oldest_of_its_kind_and_another_kind_rather_than_none() -> None:
    lasting, plain, later = Asked(lasts=True), Asked(lasts=False), Asked(lasts=False)
    warm = _warm(lasting, plain, later)
    assert [warm.take(PLAIN) for _ in range(3)] == [plain, later, lasting]
    with pytest.raises(IndexError):
        warm.take(PLAIN)
    warm = _warm(plain, lasting, later)
    assert [warm.take(KEYED) for _ in range(3)] == [lasting, plain, later]


def test_without_reuse_a_run_with_a_key_gets_the_oldest() -> None:
    first, second = Asked(lasts=False), Asked(lasts=False)
    assert _warm(first, second, may_last=False).take(KEYED) is first


def test_what_is_killed_is_taken_by_nobody() -> None:
    dead, alive, latest = Asked(lasts=False, state=State.ENDING), Asked(lasts=True), Asked(lasts=True)
    warm = _warm(dead, alive, latest)
    warm.drop_dead()
    assert len(warm) == 2
    assert warm.take_latest() is latest
    warm.discard(dead)
    assert warm.take(PLAIN) is alive


def test_the_next_is_of_the_kind_that_was_asked_for() -> None:
    warm = _warm()
    assert warm.next_lasts([]), "nobody has asked yet"
    for _ in range(REMEMBERED_RUNS):
        warm.asked(PLAIN)
    assert not warm.next_lasts([])
    warm.asked(KEYED)
    assert [warm.next_lasts([lasts, False, False]) for lasts in (False, True)] == [True, False]
    for _ in range(REMEMBERED_RUNS // 2):
        warm.asked(KEYED)
    assert [warm.next_lasts(there) for there in ([True, False], [True] * 3)] == [True, False]


def test_where_all_ask_for_processes_that_last_all_are() -> None:
    warm = _warm()
    for _ in range(REMEMBERED_RUNS):
        warm.asked(KEYED)
    assert all(warm.next_lasts([True] * there) for there in range(20))


def test_without_reuse_none_is_for_several_runs() -> None:
    warm = _warm(may_last=False)
    warm.asked(KEYED)
    assert not warm.next_lasts([])


def burst(target: WarmTarget, runs: int, now: float) -> None:
    """So many runs at once, which then end."""
    tokens = [b"%d" % number for number in range(runs)]
    for token in tokens:
        target.began(token, now)
    for token in tokens:
        target.ended(token)


def test_runs_one_after_the_other_are_no_burst_however_fast_they_come() -> None:
    target = WarmTarget(1, 0.0)
    for turn in range(100):
        burst(target, 1, turn * 0.001)
    assert target.at(1.0) == 1


def test_runs_that_need_no_warm_worker_keep_a_burst_in_mind_and_are_none() -> None:
    target = WarmTarget(4, 0.0)
    burst(target, 6, 0.0)
    for _ in range(8):
        target.came(50.0)
    assert [target.at(now) for now in (49.9 + IDLE_SECONDS, 50.0 + IDLE_SECONDS)] == [6, 4]


@pytest.mark.parametrize(
    ("full", "bursts", "seen"),
    [
        (4, {10.0: 6}, {10.0: 6, 9.9 + BURST_KEPT_SECONDS: 6, 10.0 + BURST_KEPT_SECONDS: 4}),
        (4, {0.0: 6, 100.0: 5, 200.0: 6}, {BURST_KEPT_SECONDS + 199.0: 6, BURST_KEPT_SECONDS + 200.0: 4}),
        (4, {0.0: 8, BURST_KEPT_SECONDS: 5}, {BURST_KEPT_SECONDS: 5}),
        (3, {1.0: 100}, {1.0: 6}),
        (0, {0.0: 8}, {0.0: 0}),
    ],
    ids=[
        "a burst is remembered for a while",
        "another as large from then on, and a smaller one is not",
        "once it is forgotten a smaller one counts",
        "no more than twice as many",
        "who keeps none warm keeps none after a burst",
    ],
)
def test_what_is_kept_warm_after_bursts(full: int, bursts: dict[float, int], seen: dict[float, int]) -> None:
    target = WarmTarget(full, 0.0)
    for at, runs in bursts.items():
        burst(target, runs, at)
    for at, wanted in seen.items():
        # Runs have come meanwhile.
        target.came(at)
        assert target.at(at) == wanted


NOISY, QUIET, OTHER = 1, 2, 3


def run_of(lane: int, name: bytes = b"run", since: float = 0.0) -> Waiting:
    return Waiting(name, _run(lane=lane), b"", since)


@pytest.fixture
def turns() -> Turns:
    return Turns()


def test_among_light_clients_the_first_goes_first(turns: Turns) -> None:
    turns.used(1, HEAVY_CPU_SECONDS * 0.9, 0.0)
    for name in (b"a", b"b", b"c"):
        turns.join(run_of(1 if name == b"a" else 2, name))
    assert [turns.take(1, 0.0, keep=1) for _ in range(4)] == [
        run_of(1, b"a"), run_of(2, b"b"), run_of(2, b"c"), None,
    ]  # fmt: skip


def test_a_heavy_client_goes_behind_and_leaves_the_last_worker(turns: Turns) -> None:
    turns.used(NOISY, 5.0, 0.0)
    turns.join(run_of(NOISY, b"noisy"))
    assert turns.take(1, 0.0, keep=1) is None
    turns.join(run_of(QUIET, b"quiet"))
    assert turns.take(1, 0.0, keep=1).token == b"quiet"
    assert turns.take(2, 0.0, keep=1).token == b"noisy"


@pytest.mark.parametrize(
    ("used", "waiting", "free", "keep", "taken"),
    [
        pytest.param([(NOISY, 5.0)], [(NOISY, 0.0)], 2, 2, None, id="as many workers are left as are kept"),
        pytest.param([(NOISY, 5.0)], [(NOISY, 0.0)], 3, 2, NOISY, id="and no more"),
        pytest.param([(NOISY, 5.0)], [(NOISY, 0.0)], 1, 0, NOISY, id="a pool of one serves a heavy client"),
        pytest.param(
            [(NOISY, 0.3), (NOISY, -0.31)], [(NOISY, 0.0)], 1, 1, NOISY, id="told too early, and taken back"
        ),
        pytest.param(
            [(NOISY, 5.0), (QUIET, 1.0)],
            [(NOISY, 0.0), (QUIET, 0.0)],
            3,
            1,
            QUIET,
            id="the heavier goes last",
        ),
        pytest.param(
            [(NOISY, 1000.0)],
            [(NOISY, -GIVE_WAY_SECONDS), (QUIET, 0.5 - GIVE_WAY_SECONDS)],
            1,
            1,
            NOISY,
            id="nobody gives way for ever",
        ),
    ],
)
def test_whose_run_is_next(
    used: list[tuple[int, float]],
    waiting: list[tuple[int, float]],
    free: int,
    keep: int,
    taken: int | None,
    turns: Turns,
) -> None:
    for lane, seconds in used:
        turns.used(lane, seconds, 0.0)
    for lane, since in waiting:
        turns.join(run_of(lane, since=since))
    found = turns.take(free, 0.0, keep=keep)
    assert (None if found is None else found.run.lane) == taken


def test_what_was_used_is_forgotten_by_half(turns: Turns) -> None:
    turns.used(NOISY, HEAVY_CPU_SECONDS * 1.5, 0.0)
    later = HALF_LIFE_SECONDS
    turns.join(run_of(NOISY, since=later))
    assert turns.take(1, later, keep=1) == run_of(NOISY, since=later)


def test_a_run_that_leaves_is_gone_and_the_queue_empties(turns: Turns) -> None:
    for name in (b"a", b"b", b"c"):
        turns.join(run_of(1, name))
    assert turns.leave(b"b") and not turns.leave(b"b")
    assert list(turns) == turns.clear() == [run_of(1, b"a"), run_of(1, b"c")]
    assert len(turns) == 0 and turns.clear() == []


@given(st.lists(st.tuples(st.integers(0, 2**32 - 1), st.floats(0, 10)), max_size=2 * LANES_KEPT))
def test_what_is_remembered_is_bounded_and_every_run_gets_its_turn(uses: list[tuple[int, float]]) -> None:
    turns = Turns()
    for now, (lane, seconds) in enumerate(uses):
        turns.used(lane, seconds, float(now))
        turns.join(run_of(lane, str(now).encode(), since=float(now)))
    end = len(uses) + GIVE_WAY_SECONDS
    taken: list[bytes] = []
    while (turn := turns.take(1, end, keep=1)) is not None:
        taken.append(turn.token)
    assert taken == [str(now).encode() for now in range(len(uses))]
    assert sum(turns._use(lane, end) > 0 for lane in {lane for lane, _ in uses}) <= LANES_KEPT  # pyright: ignore[reportPrivateUsage]


ALONE = [(NOISY, 50.0, 0.0)]
BESIDE = [*ALONE, (QUIET, 0.001, 1.0), (NOISY, 50.0, 1.0)]
AMONG_THEMSELVES = [*ALONE, (OTHER, 50.0, 0.0)]
# Of equal clients some are over the bound before the others.
ABOUT_AS_MUCH = [(NOISY, HEAVY_CPU_SECONDS * 1.1, 0.0), (OTHER, HEAVY_CPU_SECONDS * 0.9, 0.0)]


@pytest.mark.parametrize(
    ("used", "now", "giving_way"),
    [
        pytest.param(ALONE, 0.0, set(), id="alone it gives way to nobody"),
        pytest.param(BESIDE, 1.0, {NOISY}, id="beside another it does"),
        pytest.param(BESIDE, 0.9 + OTHERS_SECONDS, {NOISY}, id="as long as the other is there"),
        pytest.param(BESIDE, 1.0 + OTHERS_SECONDS, set(), id="and no longer"),
        pytest.param(AMONG_THEMSELVES, 0.0, set(), id="heavy clients among themselves"),
        pytest.param(
            [*AMONG_THEMSELVES, (QUIET, 0.001, 0.0), (NOISY, 50.0, 0.0)],
            0.0,
            {NOISY, OTHER},
            id="heavy clients beside a light one",
        ),
        pytest.param(ABOUT_AS_MUCH, 0.0, set(), id="one that is heavy first, beside one that uses as much"),
        pytest.param(
            [*ABOUT_AS_MUCH, (QUIET, HEAVY_CPU_SECONDS * 0.5, 0.0)],
            0.0,
            {NOISY},
            id="and beside a lighter one",
        ),
        pytest.param(
            [(NOISY, HEAVY_CPU_SECONDS, 0.0), (QUIET, 0.001, HALF_LIFE_SECONDS)],
            HALF_LIFE_SECONDS,
            set(),
            id="one that has become light",
        ),
    ],
)
def test_who_gives_way(
    used: list[tuple[int, float, float]], now: float, giving_way: set[int], turns: Turns
) -> None:
    for lane, seconds, at in used:
        turns.used(lane, seconds, at)
    assert {lane for lane in (NOISY, QUIET, OTHER) if turns.gives_way(lane, now)} == giving_way
