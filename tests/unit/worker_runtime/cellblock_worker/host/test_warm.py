"""Warm workers, how many there are and which run gets one; and the names of brokers."""

import socket
from dataclasses import dataclass

import pytest

from cellblock_worker.host.remote import Names, addresses_of
from cellblock_worker.host.warm import (
    BURST_KEPT_SECONDS,
    IDLE_SECONDS,
    REMEMBERED_RUNS,
    WarmTarget,
    WarmWorkers,
)
from cellblock_worker.wire import protocol
from cellblock_worker.wire.endpoints import EndpointError
from cellblock_worker.worker.life import State


def _run(key: str) -> protocol.Run:
    return protocol.Run(timeout_ms=1, cpu_ms=1, memory_bytes=1, log_bytes=1, message_bytes=1, key=key)


async def test_an_address_is_itself_and_a_name_is_each_of_its_addresses() -> None:
    known: dict[str, list[str] | None] = {"brokers.example": ["10.0.0.2", "fd00::1", "10.0.0.1", "10.0.0.2"]}

    async def resolve(host: str) -> list[str]:
        found = known[host]
        if found is None:
            raise socket.gaierror(socket.EAI_AGAIN, "try again")
        return found

    names = Names(["tcp://one.example:7070", "dns://brokers.example:7071", "tcp://one.example:7070"], resolve)
    assert names.endpoints == ["tcp://one.example:7070"]
    await names.look_up()
    assert names.endpoints == [
        "tcp://one.example:7070", "tcp://10.0.0.1:7071", "tcp://10.0.0.2:7071", "tcp://[fd00::1]:7071",
    ]  # fmt: skip
    known["brokers.example"] = None
    await names.look_up()
    assert len(names.endpoints) == 4, "nobody could say"
    known["brokers.example"] = ["10.0.0.2"]
    await names.look_up()
    assert names.endpoints == ["tcp://one.example:7070", "tcp://10.0.0.2:7071"]


async def test_the_machine_s_own_name_has_addresses_of_one_family() -> None:
    found = await addresses_of("localhost")
    assert found and len({":" in address for address in found}) == 1


@pytest.mark.parametrize(
    "name", ["dns://brokers", "dns://brokers:99999", "http://brokers:1", "dns://tcp://a:1"]
)
def test_what_is_no_name(name: str) -> None:
    with pytest.raises(EndpointError, match="tcp://HOST:PORT"):
        Names([name])


@dataclass(eq=False)
class Asked:
    """What is asked of a worker."""

    lasts: bool
    state: State = State.WARM


PLAIN, KEYED = _run(""), _run("a key")


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
    assert warm.next_lasts([False, False, False])
    assert not warm.next_lasts([True, False, False])
    for _ in range(REMEMBERED_RUNS // 2):
        warm.asked(KEYED)
    assert warm.next_lasts([True, False])
    assert not warm.next_lasts([True, True, True])


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
