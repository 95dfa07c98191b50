"""Large or slow scripts are parsed in a process: the same answer, and the loop goes on meanwhile."""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Callable, Iterable
from dataclasses import replace

import psutil
import pytest

from cellblock.base.admission import Admission, Room
from cellblock.base.errors import HostUnavailable, Overloaded
from cellblock.base.offload import pool
from cellblock.base.offload.pool import AT_ONCE, RESERVED, Apart
from cellblock.base.offload.share import Share, share_of_one
from cellblock.base.offload.task import Answer, Task
from cellblock.run.policy.asking import Caller
from cellblock.script import source_apart
from cellblock.script.imports import Imports, TooComplex, TooSlow, find_imports
from cellblock.script.source_apart import INLINE_BYTES, analysed
from support.memory_host import World, codes, succeed, turns
from support.processes import gone
from support.waits import until, within

MIXED = (
    'import { a } from "@codemode/servers/é";\nconst s = "\U0001f4a5"; await import("@codemode/x"); '
    "await import(s);\n"
).encode()


async def found(source: bytes) -> Imports:
    """What is found with processes of its own."""
    share = share_of_one()
    try:
        return await analysed(source, share)
    finally:
        await share.apart.close()


@pytest.fixture
def parsed_here(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what is parsed in this process."""
    sizes: list[int] = []

    def recording(source: bytes, bound: float) -> object:
        sizes.append(len(source))
        return find_imports(source, bound)

    monkeypatch.setattr(source_apart, "find_imports", recording)
    return sizes


async def test_a_small_script_is_parsed_here(parsed_here: list[int]) -> None:
    found = await analysed(MIXED, share_of_one())
    assert parsed_here == [len(MIXED)]
    assert (len(found.statics), [span.is_string for span in found.dynamics]) == (1, [True, False])


@pytest.mark.parametrize("ending", [b"", b"let a: number = 1;"])
async def test_a_large_script_is_parsed_apart_with_the_same_answer(
    ending: bytes, parsed_here: list[int]
) -> None:
    source = MIXED + b"f(1);\n" * (INLINE_BYTES // 6) + ending
    imports = await within(found(source))
    assert parsed_here == []
    assert imports == find_imports(source, 20)


async def test_a_small_script_that_is_slow_goes_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(source_apart, "INLINE_SECONDS", 0.0)
    source = MIXED * 100
    assert await within(found(source)) == find_imports(source, 20)


async def test_a_refusal_comes_from_apart(parsed_here: list[int]) -> None:
    with pytest.raises(TooComplex, match="nested too deeply"):
        await within(found(b"[" * 200_000))
    assert parsed_here == []


async def test_the_loop_goes_on_while_a_large_script_is_parsed() -> None:
    work = asyncio.ensure_future(found(b"function f(a) { return a.map((x) => x + 1); }\n" * 10_000))
    turns = 0
    while not work.done():
        turns += 1
        await asyncio.sleep(0.005)
    await work
    # Parsed here, it would have taken all of the time in one turn.
    assert turns > 5


async def test_a_parser_that_dies_or_hangs_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    large = b"f();\n" * INLINE_BYTES
    with monkeypatch.context() as patch:
        patch.setattr(pool, "WALL_SECONDS", 0.0)
        with pytest.raises(TooSlow):
            await within(found(large))
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(TooComplex, match="ran out"):
        await within(found(large))


async def test_a_cancelled_caller_leaves_no_process() -> None:
    before = {child.pid for child in psutil.Process().children()}
    work = asyncio.ensure_future(found(b"1 + " * 250_000 + b"1"))

    def started() -> list[psutil.Process]:
        return [child for child in psutil.Process(os.getpid()).children() if child.pid not in before]

    await until(started, "a process")
    children = started()
    work.cancel()
    await asyncio.gather(work, return_exceptions=True)
    await gone(children)


# ---- turns -------------------------------------------------------------------------------------------------

SHARE = AT_ONCE - RESERVED


class Parsers:
    """Stands for the processes: shows whose script each has, and lets one end when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sources: list[bytes] = []
        self._ends: dict[bytes, asyncio.Event] = {}
        monkeypatch.setattr(Apart, "_done", self._done)

    async def _done(
        self, task: Task, facts: object, parts: tuple[bytes], subject: str, bill: object
    ) -> Answer:
        (source,) = parts
        self.sources.append(source)
        ends = self._ends[source] = asyncio.Event()
        await ends.wait()
        return Answer(*source_apart.parse({}, b"1"))

    @property
    def names(self) -> list[str]:
        """Of the scripts that were begun, in that order."""
        return [source[2 : source.index(b" ")].decode() for source in self.sources]

    def end(self, name: str) -> None:
        """The process of one script answers."""
        self._ends[large(name)].set()


def large(name: str) -> bytes:
    """A script that is parsed apart."""
    return f"//{name} ".encode() + b" " * INLINE_BYTES


@pytest.fixture
def parsers(monkeypatch: pytest.MonkeyPatch) -> Parsers:
    return Parsers(monkeypatch)


def share_of(apart: Apart, client: str) -> Share:
    return replace(share_of_one(client), apart=apart)


def begin(apart: Apart, name: str, client: str, room: Room | None = None) -> asyncio.Task[Imports]:
    return asyncio.ensure_future(analysed(large(name), share_of(apart, client), room))


async def cancelled(tasks: Iterable[asyncio.Task[Imports]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_client_that_has_no_process_waits_for_none_of_anothers(parsers: Parsers) -> None:
    apart = Apart()
    noisy = [begin(apart, f"noisy{number}", "noisy") for number in range(20)]
    await turns()
    assert parsers.names == [f"noisy{number}" for number in range(SHARE)]
    quiet = begin(apart, "quiet0", "quiet")
    await turns()
    assert parsers.names[-1] == "quiet0"
    parsers.end("quiet0")
    await within(quiet)
    parsers.end("noisy1")
    await turns()
    assert parsers.names[-1] == f"noisy{SHARE}", "within one client: first come, first served"
    await cancelled(noisy)
    await within(asyncio.gather(*(begin_and_end(apart, parsers, f"c{number}") for number in range(AT_ONCE))))


async def begin_and_end(apart: Apart, parsers: Parsers, name: str) -> None:
    """One script of a client of its own, to its end."""
    work = begin(apart, name, name)
    await until(lambda: name in parsers.names, "it has its turn")
    parsers.end(name)
    await work


async def test_clients_that_wait_take_turns(parsers: Parsers) -> None:
    apart = Apart()
    tasks = [
        begin(apart, f"{client}{number}", client) for client in ("a", "b", "c", "d") for number in range(3)
    ]
    await turns()
    assert parsers.names == ["a0", "a1", "b0"], "the last place is for a client that has none"
    for place in range(len(tasks) - AT_ONCE):
        parsers.end(parsers.names[place])
        await turns()
    # Between two turns of one client, each that waited all along has one.
    assert sorted(parsers.names[AT_ONCE : AT_ONCE + 4]) == ["a2", "b1", "c0", "d0"]
    assert sorted(parsers.names[AT_ONCE + 4 :]) == ["b2", "c1", "c2", "d1"]
    await cancelled(tasks)


async def test_small_scripts_wait_for_nobody(parsers: Parsers) -> None:
    apart = Apart()
    tasks = [begin(apart, f"{number}", f"{number}") for number in range(2 * AT_ONCE)]
    await turns()
    assert len((await analysed(MIXED, share_of(apart, "0"))).statics) == 1
    await cancelled(tasks)


async def test_turns_that_nobody_takes_any_more_are_given_on(parsers: Parsers) -> None:
    apart = Apart()
    clients = [f"c{number}" for number in range(AT_ONCE + 2)]
    tasks = [begin(apart, client, client) for client in clients]
    await turns()
    # The turn and the cancellation come in the same moment.
    parsers.end("c0")
    await asyncio.sleep(0)
    tasks[AT_ONCE].cancel()
    await turns()
    assert parsers.names[-1] == clients[-1]
    await cancelled(tasks)
    assert apart.free == AT_ONCE and apart.waiting == 0


async def test_waiting_is_bounded_in_time_and_ends_with_the_broker(parsers: Parsers) -> None:
    apart = Apart(queue_wait_ms=50)
    tasks = [begin(apart, f"{number}", "one") for number in range(SHARE)]
    await turns()
    with pytest.raises(Overloaded, match=r"within 50 ms \(pool\.queue_wait_ms\)"):
        await within(analysed(large("late"), share_of(apart, "one")))
    apart = Apart()
    tasks += [begin(apart, f"x{number}", "one") for number in range(SHARE + 1)]
    await turns()
    await apart.close()
    with pytest.raises(HostUnavailable, match="stopping"):
        await within(tasks[-1])
    await cancelled(tasks)


async def test_who_waits_for_a_process_counts_in_the_queue(parsers: Parsers) -> None:
    queue: Admission[str] = Admission(queue_size=3)
    apart = Apart()
    tasks = [begin(apart, f"{number}", "noisy", queue.room) for number in range(SHARE + 2)]
    await turns()
    with pytest.raises(Overloaded, match=r"This client has 2 runs waiting.*half of pool.queue_size"):
        await within(analysed(large("over"), share_of(apart, "noisy"), queue.room))
    with pytest.raises(Overloaded, match=r"half of pool\.queue_size"):
        queue.room.check("noisy")
    ticket = queue.join("quiet", "waits for a place")
    with pytest.raises(Overloaded, match=r"3 runs wait.*pool\.queue_size"):
        queue.room.check("third")
    queue.leave(ticket)
    await cancelled(tasks)
    for number in range(3):
        queue.join(f"client {number}", "")


async def test_requests_beyond_the_queue_are_refused_while_others_are_planned(
    make_world: Callable[..., World], parsers: Parsers
) -> None:
    world = make_world(pool={"queue_size": 3})
    await world.host(succeed)
    flood = [
        asyncio.ensure_future(world.executor.run({"code": large(f"{number}").decode()}, Caller("noisy")))
        for number in range(50)
    ]
    await turns()
    refused = [task.result() for task in flood if task.done()]
    assert len(refused) == len(flood) - SHARE - 2 and len(parsers.names) == SHARE
    assert all(codes(response) == ["OVERLOADED"] for response in refused)
    assert codes(await world.run("1")) == [], "a small script of another client runs meanwhile"
    for number in range(SHARE + 2):
        await until(lambda number=number: f"{number}" in parsers.names, "it has its turn")
        parsers.end(f"{number}")
    answered = await within(asyncio.gather(*flood))
    assert sum(codes(response) == [] for response in answered) == SHARE + 2
