"""Sources are let go of when they are parsed, and refused where they would use up a stack. Large or slow ones are
parsed in a process: the same answer, and the loop goes on meanwhile.
"""

import asyncio
import contextlib
import gc
import os
import sys
import threading
from collections.abc import Callable, Iterable
from unittest.mock import Mock

import psutil
import pytest
from tree_sitter import Node, Parser

from cellblock.base.admission import Admission, QueueBound
from cellblock.base.errors import HostUnavailable, Overloaded
from cellblock.run.policy.asking import Caller
from cellblock.script import parsing, trees
from cellblock.script.imports import Imports, TooComplex, TooSlow, find_imports
from cellblock.script.parser_process import Parsed
from cellblock.script.parsing import AT_ONCE, INLINE_BYTES, RESERVED, Parsers
from cellblock.script.trees import MAX_COST, MAX_LEVELS
from support.accounts import account_of
from support.at_once import at_once
from support.loop_steps import longest_step
from support.memory_host import World, codes, succeed, turns
from support.processes import gone
from support.waits import until, within

MIXED = (
    'import { a } from "@codemode/servers/é";\nconst s = "\U0001f4a5"; await import("@codemode/x"); '
    "await import(s);\n"
).encode()


async def found(source: bytes) -> Imports:
    """What is found with processes of its own."""
    return await within(Parsers().parsed(source, account_of()))


@pytest.fixture
def parsed_here(monkeypatch: pytest.MonkeyPatch) -> Mock:
    """Parses in this process."""
    parses = Mock(side_effect=find_imports)
    monkeypatch.setattr(parsing, "find_imports", parses)
    return parses


async def test_a_small_script_is_parsed_here(parsed_here: Mock) -> None:
    imports = await found(MIXED)
    assert [one.args[0] for one in parsed_here.call_args_list] == [MIXED]
    assert (len(imports.statics), [span.text is None for span in imports.dynamics]) == (1, [False, True])


@pytest.mark.parametrize("ending", [b"", b"let a: number = 1;"])
async def test_a_large_script_is_parsed_apart_with_the_same_answer(ending: bytes, parsed_here: Mock) -> None:
    source = MIXED + b"f(1);\n" * (INLINE_BYTES // 6) + ending
    assert await found(source) == find_imports(source, 20)
    assert not parsed_here.called


async def test_a_small_script_that_is_slow_goes_apart(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(parsing, "INLINE_SECONDS", 0.0)
    source = MIXED * 100
    assert await found(source) == find_imports(source, 20)


async def test_a_refusal_comes_from_apart(parsed_here: Mock) -> None:
    with pytest.raises(TooComplex, match="nested too deeply"):
        await found(b"[" * 200_000)
    assert not parsed_here.called


async def test_the_loop_goes_on_while_a_large_script_is_parsed() -> None:
    with longest_step() as longest:
        await asyncio.create_task(found(b"function f(a) { return a.map((x) => x + 1); }\n" * 22_000))
    # Parsed here, it would have taken all of the time in one step.
    assert longest[0] < 0.2


async def test_a_parser_that_dies_or_hangs_is_a_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    large = b"f();\n" * INLINE_BYTES
    with monkeypatch.context() as patch, pytest.raises(TooSlow):
        patch.setattr(parsing, "WALL_SECONDS", 0.0)
        await found(large)
    monkeypatch.setattr(sys, "executable", "/bin/false")
    with pytest.raises(TooComplex, match="ran out"):
        await found(large)


async def test_a_cancelled_caller_leaves_no_process() -> None:
    before = {child.pid for child in psutil.Process().children()}
    work = asyncio.ensure_future(found(b"1 + " * 250_000 + b"1"))

    def started() -> list[psutil.Process]:
        return [child for child in psutil.Process(os.getpid()).children() if child.pid not in before]

    await until(started, "a process")
    children = started()
    await cancelled([work])
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


@pytest.fixture
def parsers() -> Parsers:
    return Parsers()


def begin(parsers: Parsers, name: str, client: str, bound: QueueBound | None = None) -> asyncio.Task[Imports]:
    return asyncio.ensure_future(parsers.parsed(large(name), account_of(client), bound))


async def cancelled(tasks: Iterable[asyncio.Task[Imports]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_client_that_has_no_process_waits_for_none_of_anothers(
    begun: Begun, parsers: Parsers
) -> None:
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


async def test_clients_that_wait_take_turns(begun: Begun, parsers: Parsers) -> None:
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


async def test_small_scripts_wait_for_nobody(begun: Begun, parsers: Parsers) -> None:
    tasks = [begin(parsers, f"{number}", f"{number}") for number in range(2 * AT_ONCE)]
    await turns()
    assert len((await parsers.parsed(MIXED, account_of("0"))).statics) == 1
    await cancelled(tasks)


async def test_turns_that_nobody_takes_any_more_are_given_on(begun: Begun, parsers: Parsers) -> None:
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


async def test_waiting_is_bounded_in_time_and_ends_with_the_broker(begun: Begun, parsers: Parsers) -> None:
    brief = Parsers(queue_wait_ms=50)
    tasks = [begin(brief, f"{number}", "one") for number in range(SHARE)]
    await turns()
    with pytest.raises(Overloaded, match=r"within 50 ms \(pool\.queue_wait_ms\)"):
        await within(brief.parsed(large("late"), account_of("one")))
    tasks += [begin(parsers, f"x{number}", "one") for number in range(SHARE + 1)]
    await turns()
    parsers.close()
    with pytest.raises(HostUnavailable, match="stopping"):
        await within(tasks[-1])
    await cancelled(tasks)


async def test_who_waits_for_a_process_counts_in_the_queue(begun: Begun, parsers: Parsers) -> None:
    queue: Admission[str] = Admission(queue_size=3)
    tasks = [begin(parsers, f"{number}", "noisy", queue.bound) for number in range(SHARE + 2)]
    await turns()
    with pytest.raises(Overloaded, match=r"This client has 2 runs waiting.*half of pool.queue_size"):
        await within(parsers.parsed(large("over"), account_of("noisy"), queue.bound))
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


SOURCE = b"const { a } = await tools.look({ q: `x${1}` });\n" * 40
NEVER_ENDS = b",+" * 4_096


def parsed(source: bytes = SOURCE, *, typescript: bool = False, is_late: bool = False) -> Node:
    return trees.parse(source, typescript=typescript, is_late=lambda: is_late)


@pytest.mark.parametrize("is_stopped", [False, True])
def test_nothing_that_the_parser_was_given_stays(*, is_stopped: bool) -> None:
    source = NEVER_ENDS if is_stopped else SOURCE

    def parse() -> None:
        with pytest.raises(ValueError, match="Parsing failed") if is_stopped else contextlib.nullcontext():
            parsed(source, is_late=is_stopped)

    def views() -> int:
        gc.collect()
        return sum(isinstance(one, memoryview) for one in gc.get_objects())

    parse()
    before = sys.getrefcount(source), views()
    for _ in range(50):
        parse()
    assert sys.getrefcount(source) == before[0], "the parser holds on to what it has read"
    assert views() < before[1] + 50, "the parser holds on to views of what it has read"


def test_nodes_know_their_text_and_hold_the_source_no_longer_than_the_tree() -> None:
    before = sys.getrefcount(SOURCE)
    root = parsed(typescript=True)
    assert (root.text, root.children[0].text) == (SOURCE, SOURCE.splitlines()[0])
    del root
    assert sys.getrefcount(SOURCE) == before


@pytest.mark.parametrize(
    "source",
    [
        b"",
        b";",
        SOURCE,
        b"f(((" * 500,
        b"a" * 70_000,
        SOURCE * 100,
        "let \u00e4 = '\U0001f600';\n".encode() * 9_999,
        *(b"x" * length + "\u00e4\U0001f600()".encode() * 60 for length in range(7)),
    ],
)
def test_a_source_read_in_pieces_has_the_tree_of_the_whole(source: bytes) -> None:
    whole = Parser(trees._language(False)).parse(source).root_node
    pieces = parsed(source)
    assert (str(pieces), pieces.end_byte) == (str(whole), whole.end_byte)


def test_somebody_who_looks_at_all_objects_disturbs_no_parse() -> None:
    ended = threading.Event()

    def look() -> None:
        while not ended.is_set():
            gc.get_objects()

    looking = threading.Thread(target=look)
    looking.start()
    try:
        for _ in range(500):
            assert parsed().text == SOURCE
    finally:
        ended.set()
        looking.join()


def test_parses_at_once_read_their_own_sources() -> None:
    def parse(number: int) -> bool:
        source = b"a%d(`${b}`);\n" % number * 3_000
        root = parsed(source)
        return root.text == source and not root.has_error and root.named_child_count == 3_000

    assert all(at_once(parse, range(10, 42)))


def refused(code: str) -> bool:
    try:
        # Far more than these texts take.
        find_imports(code.encode(), 20.0)
    except TooComplex as error:
        assert "nested too deeply" in str(error)
        return True
    return False


LEVELS: dict[str, Callable[[int], str]] = {
    "brackets": lambda n: "[" * n + "]" * n,
    "parentheses": lambda n: "(" * n + "1" + ")" * n,
    "blocks": lambda n: "{" * n + "}" * n,
    "templates": lambda n: "`${" * n + "1" + "}`" * n,
    "functions": lambda n: "(() => {" * n + "})" * n,
    "objects": lambda n: "({ a: " * n + "1" + "})" * n,
    "arrows": lambda n: "a => " * n + "1",
    "types": lambda n: "let a: " + "A<" * n + "1" + ">" * n,
    "open brackets": lambda n: "[" * n,
    "open parentheses": lambda n: "(" * n,
    "open templates": lambda n: "`${" * n,
    "open functions": lambda n: "(()=>{" * n,
    "open arrows": lambda n: "a=>" * n,
    "open classes": lambda n: "class A{static{" * n,
}


@pytest.mark.parametrize("name", LEVELS)
def test_levels_are_refused_from_some_depth_on(name: str) -> None:
    """Crashing takes 300 levels of the dearest form, which are several brackets or nodes each."""
    assert not refused(LEVELS[name](50))
    assert refused(LEVELS[name](MAX_LEVELS + 10))
    assert refused("const before = 1;\n" * 100 + LEVELS[name](1000))


CHAINS: dict[str, Callable[[int], str]] = {
    "sums": lambda n: "1 + " * n + "1",
    "negations": lambda n: "!" * n + "1",
    "calls": lambda n: "f" + "()" * n,
    "members": lambda n: "a" + ".b" * n,
    "conditions": lambda n: "a ? 1 : " * n + "1",
    "else": lambda n: "if (a) 1; else " * n + "1;",
}


@pytest.mark.parametrize("name", CHAINS)
def test_long_chains_are_ordinary_and_very_long_ones_are_refused(name: str) -> None:
    assert not refused(CHAINS[name](1_000))
    assert refused(CHAINS[name](MAX_COST + 10))


@pytest.mark.parametrize(
    "code",
    [
        "f([{ a: (1) }]);\n" * 3_000,
        "[" + "[1], " * 3_000 + "]",
        "const text = `" + "[({" * 3_000 + "`;",
        "a, " * 3_000 + "a",
        "f([{ a: (1) }]);\n" * 500 + "const = 1;\n" + "g({ b: [2] });\n" * 500,
    ],
    ids=["calls", "lists", "a text", "a sequence", "an ordinary mistake, which stays a syntax error"],
)
def test_what_is_long_but_flat_is_fine(code: str) -> None:
    assert not refused(code)
