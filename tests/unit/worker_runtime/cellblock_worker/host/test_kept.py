"""What a host keeps: warm workers and which run gets one, names, and what was never told."""

from __future__ import annotations

import asyncio
import socket
from dataclasses import dataclass

import pytest

from cellblock_worker.host.kept import SURPLUS_SECONDS, KeptWorkers
from cellblock_worker.host.remote import Names, addresses_of
from cellblock_worker.host.untold import LASTS_SECONDS, Untold
from cellblock_worker.host.warm import REMEMBERED_RUNS, WarmWorkers
from cellblock_worker.wire import protocol
from cellblock_worker.wire.endpoints import EndpointError
from cellblock_worker.worker.reuse import ReuseBounds
from cellblock_worker.worker.states import State
from support.virtual_time import VirtualTimeLoop

BOUNDS = ReuseBounds(max_runs=9, max_age_ms=9000, idle_ms=60_000, principal_warm=1)


@dataclass(eq=False)
class Process:
    """What is kept of a worker."""

    key: str
    fits: bool = True
    is_lowered: bool = False

    def may_have(self, run: protocol.Run, *, gives_way: bool) -> bool:
        """As it was told."""
        return self.fits and (gives_way or not self.is_lowered)


def _run(key: str) -> protocol.Run:
    return protocol.Run(timeout_ms=1, cpu_ms=1, memory_bytes=1, log_bytes=1, message_bytes=1, key=key)


def test_a_run_gets_a_process_of_its_key_alone_and_the_latest_first() -> None:
    kept = KeptWorkers[Process]()
    first, second, other = Process("a"), Process("a"), Process("b")
    for at, process in enumerate((first, second, other)):
        kept.put(process, float(at))
    assert [kept.take(_run("a"), gives_way=False) for _ in range(3)] == [second, first, None]
    assert len(kept) == 1
    assert kept.take(_run("c"), gives_way=False) is None
    assert kept.take(_run("b"), gives_way=False) is other


def test_a_process_that_may_not_have_the_run_stays() -> None:
    kept = KeptWorkers[Process]()
    process = Process("a", fits=False)
    kept.put(process, 0.0)
    assert kept.take(_run("a"), gives_way=False) is None
    process.fits = True
    assert kept.take(_run("a"), gives_way=False) is process


def test_a_lowered_process_has_runs_that_give_way_and_no_other() -> None:
    kept = KeptWorkers[Process]()
    raised, lowered = Process("a"), Process("a", is_lowered=True)
    for process in (raised, lowered):
        kept.put(process, 0.0)
    assert kept.take(_run("a"), gives_way=True) is lowered
    kept.put(lowered, 0.0)
    assert [kept.take(_run("a"), gives_way=False) for _ in range(2)] == [raised, None]


def test_those_over_a_number_go_the_longest_waiting_first() -> None:
    kept = KeptWorkers[Process]()
    all_of_them = [Process(key) for key in "abab"]
    for at, process in enumerate(all_of_them):
        kept.put(process, float(at))
    assert list(kept.over(2)) == all_of_them[:2]
    assert list(kept.over(-1)) == all_of_them[2:]
    assert len(kept) == 0


def test_a_key_keeps_its_latest_process_and_the_others_for_a_second() -> None:
    kept = KeptWorkers[Process]()
    early, late, alone = Process("a"), Process("a"), Process("b")
    for at, process in enumerate((early, late, alone)):
        kept.put(process, float(at))
    assert list(kept.idle(BOUNDS, SURPLUS_SECONDS)) == [early]
    assert list(kept.idle(BOUNDS, 60.0)) == []
    assert set(kept.idle(BOUNDS, 62.0)) == {late, alone}


def test_those_of_other_keys_go() -> None:
    kept = KeptWorkers[Process]()
    first, second, other = Process("a1"), Process("a1"), Process("b1")
    for process in (first, second, other):
        kept.put(process, 0.0)
    assert list(kept.others("b")) == [first, second]
    assert len(kept) == 1
    assert list(kept.others("")) == []


def test_one_that_is_gone_is_forgotten() -> None:
    kept = KeptWorkers[Process]()
    process = Process("a")
    kept.put(process, 0.0)
    kept.discard(process)
    kept.discard(process)
    assert len(kept) == 0


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


def test_runs_that_last_are_told_once_and_brief_ones_never() -> None:
    told: list[tuple[bytes, int]] = []

    async def a_while() -> None:
        untold = Untold(lambda token, wall_ms: told.append((token, wall_ms)))
        untold.add(b"brief")
        untold.add(b"lasts")
        await asyncio.sleep(LASTS_SECONDS / 2)
        untold.drop(b"brief")
        untold.drop(b"unknown")
        # It comes while the first look is on its way, and is not yet one that lasts at it.
        untold.add(b"later")
        untold.add(b"brief, later")
        assert told == []
        await asyncio.sleep(LASTS_SECONDS)
        untold.drop(b"brief, later")
        assert [token for token, _ in told] == [b"lasts"]
        await asyncio.sleep(LASTS_SECONDS)
        assert [token for token, _ in told] == [b"lasts", b"later"]
        assert all(LASTS_SECONDS <= wall_ms / 1000 <= 2 * LASTS_SECONDS for _, wall_ms in told)

        told.clear()
        await asyncio.sleep(10 * LASTS_SECONDS)
        untold.add(b"anew")
        await asyncio.sleep(2 * LASTS_SECONDS)
        assert [token for token, _ in told] == [b"anew"]

    loop = VirtualTimeLoop()
    loop.run_until_complete(a_while())
    loop.close()


def test_a_run_is_told_at_once_where_its_end_would_not_say_that_it_has_begun() -> None:
    told: list[tuple[bytes, int]] = []

    async def a_while() -> None:
        untold = Untold(lambda token, wall_ms: told.append((token, wall_ms)))
        untold.add(b"dies")
        untold.tell(b"dies")
        untold.tell(b"dies")
        untold.tell(b"unknown")
        await asyncio.sleep(2 * LASTS_SECONDS)

    loop = VirtualTimeLoop()
    loop.run_until_complete(a_while())
    loop.close()
    assert told == [(b"dies", 0)]


@dataclass(eq=False)
class Asked:
    """What is asked of a worker."""

    lasts: bool
    state: State = State.WARM


PLAIN, KEYED = _run(""), _run("a key")


def _warm(*workers: Asked, may_last: bool = True) -> WarmWorkers[Asked]:
    made = WarmWorkers[Asked](may_last=may_last)
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
