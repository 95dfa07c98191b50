"""Warm workers: how many there are, which run gets one, and whose run is next; and processes of a key: which run gets
an idle one, which waits for a busy one, and which of them must go."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest
from hypothesis import given, strategies as st

from cellblock_worker.host import reusable
from cellblock_worker.host.reusable import SOON_SECONDS, SURPLUS_SECONDS, ReusableWorkers
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
from cellblock_worker.worker import life
from cellblock_worker.worker.life import State
from support.waits import within


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


def test_without_reuse_none_is_for_several_runs_and_one_with_a_key_gets_the_oldest() -> None:
    first, second = Asked(lasts=False), Asked(lasts=False)
    warm = _warm(first, second, may_last=False)
    warm.asked(KEYED)
    assert (warm.next_lasts([]), warm.take(KEYED)) == (False, first)


def burst(target: WarmTarget, runs: int, now: float) -> None:
    """So many runs at once, which then end."""
    tokens = [b"%d" % number for number in range(runs)]
    for token in tokens:
        target.began(token, now)
    for token in tokens:
        target.ended(token)


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
        (1, {turn * 0.001: 1 for turn in range(100)}, {1.0: 1}),
    ],
    ids=[
        "a burst is remembered for a while",
        "another as large from then on, and a smaller one is not",
        "once it is forgotten a smaller one counts",
        "no more than twice as many",
        "who keeps none warm keeps none after a burst",
        "runs one after the other are none, however fast they come",
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


def test_one_is_enough_until_the_first_run() -> None:
    target, none = WarmTarget(4, 0.0, one_at_first=True), WarmTarget(0, 0.0, one_at_first=True)
    assert [target.at(now) for now in (0.0, 1e6)] == [1, 1]
    target.began(b"run", 1e6)
    none.began(b"run", 1e6)
    assert [target.at(now) for now in (1e6, 2e6)] == [4, 4]
    assert none.at(1e6) == 0


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


@pytest.mark.parametrize(
    ("used", "waiting", "free", "keep", "taken"),
    [
        pytest.param([(NOISY, 5.0)], [(NOISY, 0.0)], 2, 2, None, id="as many workers are left as are kept"),
        pytest.param([(NOISY, 5.0)], [(NOISY, 0.0)], 3, 2, NOISY, id="and no more"),
        pytest.param(
            [(NOISY, 5.0)], [(NOISY, 0.0), (QUIET, 0.0)], 1, 1, QUIET, id="a heavy client goes behind"
        ),
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


@dataclass(eq=False)
class Process:
    """What is asked of a worker; one with a time is idle since then."""

    key: str
    idle_since: float | None = None
    ready_in: float | None = 0.002
    is_lowered: bool = False

    @property
    def state(self) -> State:
        return State.RUNNING if self.idle_since is None else State.WARM

    def may_have(self, run: protocol.Run, *, gives_way: bool) -> bool:
        return run.key == self.key and (gives_way or not self.is_lowered)


def _waiting(token: bytes, key: str = "a") -> Waiting:
    return Waiting(token, _run(key), b"", 0.0)


def _any(_waiting: Waiting) -> bool:
    return True


def _nobody(waiting: Waiting) -> None:
    raise AssertionError(f"{waiting.token!r} was given up")


def _with(*processes: Any, give_up: Any = _nobody) -> ReusableWorkers:
    made = ReusableWorkers(give_up)
    for process in processes:
        made.add(process)
    return made


async def test_a_run_gets_an_idle_process_of_its_key_alone_the_latest_first() -> None:
    first, second, other, busy = Process("a", 0.0), Process("a", 1.0), Process("b", 2.0), Process("a")
    workers = _with(first, second, other, busy)
    taken: list[Any] = []
    for _ in range(3):
        taken.append(process := workers.take_idle(_run("a"), gives_way=False))
        if process is not None:
            process.idle_since = None
    assert taken == [second, first, None]
    assert [workers.take_idle(_run(key), gives_way=False) for key in "cb"] == [None, other]


async def test_a_lowered_process_has_runs_that_give_way_and_no_other() -> None:
    raised, lowered = Process("a", 0.0), Process("a", 1.0, is_lowered=True)
    workers = _with(raised, lowered)
    assert [workers.take_idle(_run("a"), gives_way=gives) for gives in (False, True)] == [raised, lowered]
    workers = _with(Process("a", is_lowered=True))
    assert [workers.join(_waiting(b"1"), gives_way=gives) for gives in (False, True)] == [False, True]


async def test_those_over_a_number_go_the_longest_waiting_first() -> None:
    processes = [Process(key, float(at)) for at, key in enumerate("abab")]
    workers = _with(*processes, Process("a"))
    assert [workers.over(number) for number in (2, -1, 4, 9)] == [processes[:2], processes, [], []]


async def test_a_key_keeps_its_latest_process_and_the_others_for_a_second() -> None:
    early, late, alone = Process("a", 0.0), Process("a", 1.0), Process("b", 2.0)
    workers = _with(early, late, alone, Process("a"))
    assert [workers.expired(now) for now in (SURPLUS_SECONDS - 0.1, SURPLUS_SECONDS)] == [[], [early]]
    early.idle_since = None
    assert [workers.expired(now) for now in (life.IDLE_SECONDS, life.IDLE_SECONDS + 2.0)] == [
        [],
        [late, alone],
    ]


async def test_idle_ones_of_other_keys_go() -> None:
    first, second, other = Process("a1", 0.0), Process("a1", 1.0), Process("b1", 2.0)
    workers = _with(first, second, other, Process("a2"))
    assert [workers.others(prefix) for prefix in ("b", "")] == [[first, second], []]


async def test_runs_wait_in_their_order_for_any_process_of_their_key() -> None:
    workers = _with(Process("a"), Process("a"))
    first, second, other = _waiting(b"1"), _waiting(b"2"), _waiting(b"3", "b")
    assert [workers.join(waiting, gives_way=False) for waiting in (other, first, second)] == [
        False,
        True,
        True,
    ]
    assert [workers.next_run(key, _any) for key in "baaa"] == [None, first, second, None]


async def test_a_run_that_a_process_may_not_have_waits_for_the_next_one() -> None:
    workers = _with(Process("a"), Process("a"))
    first, second = _waiting(b"1"), _waiting(b"2")
    assert workers.join(first, gives_way=False) and workers.join(second, gives_way=False)
    assert workers.next_run("a", lambda waiting: waiting is second) is second
    assert workers.next_run("a", _any) is first


@pytest.mark.parametrize(
    ("times", "joined"),
    [
        ([SOON_SECONDS], 1),
        ([SOON_SECONDS * 1.1], 0),
        ([SOON_SECONDS / 5], 5),
        ([SOON_SECONDS, SOON_SECONDS / 2], 3),
        ([None, SOON_SECONDS / 2], 2),
        ([None], 0),
    ],
)
async def test_as_many_wait_as_are_served_soon(times: list[float | None], joined: int) -> None:
    workers = _with(*(Process("a", ready_in=seconds) for seconds in times))
    joins = [workers.join(_waiting(bytes([number])), gives_way=False) for number in range(9)]
    assert sum(joins) == len(workers.clear()) == joined


RETURNS = (State.RUNNING, State.RETURNING)


async def test_none_waits_before_there_are_as_many_processes_as_cores(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reusable, "CORES", 3)
    few, enough = _with(Process("a"), Process("a")), _with(Process("a"), Process("a"), Process("a"))
    assert [workers.join(_waiting(b"1"), gives_way=False) for workers in (few, enough)] == [False, True]
    enough.clear()
    # One makes a context: the next run has it in a millisecond.
    returning = Process("a")
    few = _with(Process("a"), returning)
    monkeypatch.setattr(Process, "state", property(lambda process: RETURNS[process is returning]))
    assert [few.join(_waiting(token), gives_way=False) for token in (b"1", b"2")] == [True, False]
    few.clear()


async def test_runs_are_given_up_when_the_last_process_of_their_key_is_gone() -> None:
    given_up: list[bytes] = []
    one, two = Process("a"), Process("a")
    workers = _with(one, two, Process("b"), give_up=lambda waiting: given_up.append(waiting.token))
    runs = (_waiting(b"1"), _waiting(b"2"), _waiting(b"3", "b"))
    assert all(workers.join(run, gives_way=False) for run in runs)
    workers.discard(one)  # type: ignore[arg-type]
    assert given_up == []
    workers.discard(two)  # type: ignore[arg-type]
    workers.discard(two)  # type: ignore[arg-type]
    assert given_up == [b"1", b"2"]
    workers.clear()


async def test_who_waits_for_too_long_is_given_up_and_the_process_stays(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(reusable, "WAIT_SECONDS", 0.001)
    given_up: asyncio.Queue[Waiting] = asyncio.Queue()
    workers = _with(Process("a"), give_up=given_up.put_nowait)
    assert workers.join(_waiting(b"1"), gives_way=False)
    assert (await within(given_up.get())).token == b"1"
    assert workers.next_run("a", _any) is None
    assert workers.join(_waiting(b"2"), gives_way=False)
    workers.clear()
