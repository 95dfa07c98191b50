"""Processes of a key: which run gets an idle one, which waits for a busy one, and which of them must go."""

import asyncio
from dataclasses import dataclass
from typing import Any

import pytest

from cellblock_worker.host import reusable
from cellblock_worker.host.reusable import BOOT_SECONDS, SURPLUS_SECONDS, ReusableWorkers
from cellblock_worker.host.warm import Waiting
from cellblock_worker.wire import protocol
from cellblock_worker.worker.life import IDLE_SECONDS, State
from support.waits import within


@dataclass(eq=False)
class Process:
    """What is asked of a worker; one with a time is idle since then."""

    key: str
    idle_since: float | None = None
    ready_in: float | None = 0.002
    fits: bool = True
    is_lowered: bool = False

    @property
    def state(self) -> State:
        return State.RUNNING if self.idle_since is None else State.WARM

    def may_have(self, run: protocol.Run, *, gives_way: bool) -> bool:
        return self.fits and run.key == self.key and (gives_way or not self.is_lowered)


def _run(key: str) -> protocol.Run:
    return protocol.Run(timeout_ms=1, cpu_ms=1, memory_bytes=1, log_bytes=1, message_bytes=1, key=key)


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


async def test_a_process_that_may_not_have_the_run_stays() -> None:
    process = Process("a", 0.0, fits=False)
    workers = _with(process)
    assert workers.take_idle(_run("a"), gives_way=False) is None
    process.fits = True
    assert workers.take_idle(_run("a"), gives_way=False) is process


async def test_a_lowered_process_has_runs_that_give_way_and_no_other() -> None:
    raised, lowered = Process("a", 0.0), Process("a", 1.0, is_lowered=True)
    workers = _with(raised, lowered)
    assert [workers.take_idle(_run("a"), gives_way=gives) for gives in (True, False)] == [lowered, raised]
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
    assert [workers.expired(now) for now in (IDLE_SECONDS, IDLE_SECONDS + 2.0)] == [[], [late, alone]]


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
        ([BOOT_SECONDS], 1),
        ([BOOT_SECONDS * 1.1], 0),
        ([BOOT_SECONDS / 5], 5),
        ([BOOT_SECONDS, BOOT_SECONDS / 2], 3),
        ([None, BOOT_SECONDS / 2], 2),
        ([None], 0),
    ],
)
async def test_as_many_wait_as_are_served_before_a_boot_is_over(
    times: list[float | None], joined: int
) -> None:
    workers = _with(*(Process("a", ready_in=seconds) for seconds in times))
    joins = [workers.join(_waiting(bytes([number])), gives_way=False) for number in range(9)]
    assert sum(joins) == len(workers.clear()) == joined


async def test_who_leaves_waits_no_longer() -> None:
    workers = _with(Process("a"))
    assert all(workers.join(_waiting(token), gives_way=False) for token in (b"1", b"2"))
    assert [workers.leave(b"1"), workers.leave(b"1")] == [True, False]
    assert [one.token for one in workers.clear()] == [b"2"]


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
