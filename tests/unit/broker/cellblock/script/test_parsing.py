"""Large or slow scripts are parsed in a process: the same answer, and the loop goes on meanwhile."""

import asyncio
import os
import sys
from collections.abc import Callable, Iterable

import psutil
import pytest

from cellblock.base.admission import Admission, QueueBound
from cellblock.base.budget import Account
from cellblock.base.errors import HostUnavailable, Overloaded
from cellblock.run.policy.asking import Caller
from cellblock.script import parsing
from cellblock.script.imports import Imports, TooComplex, TooSlow, find_imports
from cellblock.script.parser_process import Parsed
from cellblock.script.parsing import AT_ONCE, INLINE_BYTES, RESERVED, Parsers
from support.memory_host import World, codes, succeed, turns
from support.processes import gone
from support.waits import until, within

MIXED = (
    'import { a } from "@codemode/servers/é";\nconst s = "\U0001f4a5"; await import("@codemode/x"); '
    "await import(s);\n"
).encode()


async def found(source: bytes) -> Imports:
    """What is found with processes of its own."""
    return await Parsers().parsed(source, Account.of_one())


@pytest.fixture
def parsed_here(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The sizes of what is parsed in this process."""
    sizes: list[int] = []

    def recording(source: bytes, bound: float) -> object:
        sizes.append(len(source))
        return find_imports(source, bound)

    monkeypatch.setattr(parsing, "find_imports", recording)
    return sizes


async def test_a_small_script_is_parsed_here(parsed_here: list[int]) -> None:
    imports = await found(MIXED)
    assert parsed_here == [len(MIXED)]
    assert (len(imports.statics), [span.is_string for span in imports.dynamics]) == (1, [True, False])


@pytest.mark.parametrize("ending", [b"", b"let a: number = 1;"])
async def test_a_large_script_is_parsed_apart_with_the_same_answer(
    ending: bytes, parsed_here: list[int]
) -> None:
    source = MIXED + b"f(1);\n" * (INLINE_BYTES // 6) + ending
    imports = await within(found(source))
    assert parsed_here == []
    assert imports == find_imports(source, 20)


async def test_a_small_script_that_is_slow_goes_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "INLINE_SECONDS", 0.0)
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
        patch.setattr(parsing, "WALL_SECONDS", 0.0)
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


class Begun:
    """Stands for the processes: shows whose script each has, and lets one end when the test says so."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.sources: list[bytes] = []
        self._ends: dict[bytes, asyncio.Event] = {}
        monkeypatch.setattr(Parsers, "_in_process", self._parsed)

    async def _parsed(self, source: bytes) -> Parsed:
        self.sources.append(source)
        ends = self._ends[source] = asyncio.Event()
        await ends.wait()
        return Parsed(find_imports(b"1", 20), 1)

    @property
    def names(self) -> list[str]:
        """Of the scripts that were begun, in that order."""
        return [source[2 : source.index(b" ")].decode() for source in self.sources]

    def end(self, name: str) -> None:
        """The process of one script answers."""
        self._ends[large(name)].set()


def large(name: str) -> bytes:
    """A script that is parsed parsers."""
    return f"//{name} ".encode() + b" " * INLINE_BYTES


@pytest.fixture
def begun(monkeypatch: pytest.MonkeyPatch) -> Begun:
    return Begun(monkeypatch)


def begin(parsers: Parsers, name: str, client: str, bound: QueueBound | None = None) -> asyncio.Task[Imports]:
    return asyncio.ensure_future(parsers.parsed(large(name), Account.of_one(client), bound))


async def cancelled(tasks: Iterable[asyncio.Task[Imports]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_client_that_has_no_process_waits_for_none_of_anothers(begun: Begun) -> None:
    parsers = Parsers()
    noisy = [begin(parsers, f"noisy{number}", "noisy") for number in range(20)]
    await turns()
    assert begun.names == [f"noisy{number}" for number in range(SHARE)]
    quiet = begin(parsers, "quiet0", "quiet")
    await turns()
    assert begun.names[-1] == "quiet0"
    begun.end("quiet0")
    await within(quiet)
    begun.end("noisy1")
    await turns()
    assert begun.names[-1] == f"noisy{SHARE}", "within one client: first come, first served"
    await cancelled(noisy)
    await within(asyncio.gather(*(begin_and_end(parsers, begun, f"c{number}") for number in range(AT_ONCE))))


async def begin_and_end(parsers: Parsers, begun: Begun, name: str) -> None:
    """One script of a client of its own, to its end."""
    work = begin(parsers, name, name)
    await until(lambda: name in begun.names, "it has its turn")
    begun.end(name)
    await work


async def test_clients_that_wait_take_turns(begun: Begun) -> None:
    parsers = Parsers()
    tasks = [
        begin(parsers, f"{client}{number}", client) for client in ("a", "b", "c", "d") for number in range(3)
    ]
    await turns()
    assert begun.names == ["a0", "a1", "b0"], "the last place is for a client that has none"
    for place in range(len(tasks) - AT_ONCE):
        begun.end(begun.names[place])
        await turns()
    # Between two turns of one client, each that waited all along has one.
    assert sorted(begun.names[AT_ONCE : AT_ONCE + 4]) == ["a2", "b1", "c0", "d0"]
    assert sorted(begun.names[AT_ONCE + 4 :]) == ["b2", "c1", "c2", "d1"]
    await cancelled(tasks)


async def test_small_scripts_wait_for_nobody(begun: Begun) -> None:
    parsers = Parsers()
    tasks = [begin(parsers, f"{number}", f"{number}") for number in range(2 * AT_ONCE)]
    await turns()
    assert len((await parsers.parsed(MIXED, Account.of_one("0"))).statics) == 1
    await cancelled(tasks)


async def test_turns_that_nobody_takes_any_more_are_given_on(begun: Begun) -> None:
    parsers = Parsers()
    clients = [f"c{number}" for number in range(AT_ONCE + 2)]
    tasks = [begin(parsers, client, client) for client in clients]
    await turns()
    # The turn and the cancellation come in the same moment.
    begun.end("c0")
    await asyncio.sleep(0)
    tasks[AT_ONCE].cancel()
    await turns()
    assert begun.names[-1] == clients[-1]
    await cancelled(tasks)
    assert parsers.free == AT_ONCE and parsers.waiting == 0


async def test_waiting_is_bounded_in_time_and_ends_with_the_broker(begun: Begun) -> None:
    parsers = Parsers(queue_wait_ms=50)
    tasks = [begin(parsers, f"{number}", "one") for number in range(SHARE)]
    await turns()
    with pytest.raises(Overloaded, match=r"within 50 ms \(pool\.queue_wait_ms\)"):
        await within(parsers.parsed(large("late"), Account.of_one("one")))
    parsers = Parsers()
    tasks += [begin(parsers, f"x{number}", "one") for number in range(SHARE + 1)]
    await turns()
    parsers.close()
    with pytest.raises(HostUnavailable, match="stopping"):
        await within(tasks[-1])
    await cancelled(tasks)


async def test_who_waits_for_a_process_counts_in_the_queue(begun: Begun) -> None:
    queue: Admission[str] = Admission(queue_size=3)
    parsers = Parsers()
    tasks = [begin(parsers, f"{number}", "noisy", queue.bound) for number in range(SHARE + 2)]
    await turns()
    with pytest.raises(Overloaded, match=r"This client has 2 runs waiting.*half of pool.queue_size"):
        await within(parsers.parsed(large("over"), Account.of_one("noisy"), queue.bound))
    with pytest.raises(Overloaded, match=r"half of pool\.queue_size"):
        queue.bound.check("noisy")
    ticket = queue.join("quiet", "waits for a place")
    with pytest.raises(Overloaded, match=r"3 runs wait.*pool\.queue_size"):
        queue.bound.check("third")
    queue.leave(ticket)
    await cancelled(tasks)
    for number in range(3):
        queue.join(f"client {number}", "")


async def test_requests_beyond_the_queue_are_refused_while_others_are_planned(
    make_world: Callable[..., World], begun: Begun
) -> None:
    world = make_world(pool={"queue_size": 3})
    await world.host(succeed)
    flood = [
        asyncio.ensure_future(world.executor.run({"code": large(f"{number}").decode()}, Caller("noisy")))
        for number in range(50)
    ]
    await turns()
    refused = [task.result() for task in flood if task.done()]
    assert len(refused) == len(flood) - SHARE - 2 and len(begun.names) == SHARE
    assert all(codes(response) == ["OVERLOADED"] for response in refused)
    assert codes(await world.run("1")) == [], "a small script of another client runs meanwhile"
    for number in range(SHARE + 2):
        await until(lambda number=number: f"{number}" in begun.names, "it has its turn")
        begun.end(f"{number}")
    answered = await within(asyncio.gather(*flood))
    assert sum(codes(response) == [] for response in answered) == SHARE + 2
