"""Parsed sources: let go of when they are parsed, and refused where they would use up a stack."""

import gc
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest
from tree_sitter import Parser

from cellblock.script import trees
from cellblock.script.imports import TooComplex, find_imports
from cellblock.script.trees import MAX_COST, MAX_LEVELS

SOURCE = b"const { a } = await tools.look({ q: `x${1}` });\n" * 40
NEVER_ENDS = b",+" * 4_096


def test_a_source_that_was_parsed_stays_nowhere() -> None:
    trees.parse(SOURCE, typescript=False, is_late=lambda: False)
    before = sys.getrefcount(SOURCE)
    for _ in range(50):
        trees.parse(SOURCE, typescript=False, is_late=lambda: False)
    assert sys.getrefcount(SOURCE) == before, "the parser holds on to what it has read"


def test_a_source_whose_parser_was_stopped_stays_nowhere() -> None:
    before = sys.getrefcount(NEVER_ENDS)
    for _ in range(10):
        with pytest.raises(ValueError, match="Parsing failed"):
            trees.parse(NEVER_ENDS, typescript=False, is_late=lambda: True)
    assert sys.getrefcount(NEVER_ENDS) == before, "the parser holds on to what it has read"


@pytest.mark.parametrize("is_stopped", [False, True])
def test_nothing_that_the_parser_was_given_stays(*, is_stopped: bool) -> None:
    def views() -> int:
        gc.collect()
        return sum(isinstance(one, memoryview) for one in gc.get_objects())

    def parse() -> None:
        try:
            trees.parse(NEVER_ENDS if is_stopped else SOURCE, typescript=False, is_late=lambda: is_stopped)
        except ValueError:
            assert is_stopped

    parse()
    before = views()
    for _ in range(50):
        parse()
    assert views() < before + 50, "the parser holds on to views of what it has read"


def test_nodes_know_their_text_and_hold_the_source_no_longer_than_the_tree() -> None:
    before = sys.getrefcount(SOURCE)
    root = trees.parse(SOURCE, typescript=True, is_late=lambda: False)
    assert root.text == SOURCE
    assert root.children[0].text == SOURCE.splitlines()[0]
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
    pieces = trees.parse(source, typescript=False, is_late=lambda: False)
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
            assert trees.parse(SOURCE, typescript=False, is_late=lambda: False).text == SOURCE
    finally:
        ended.set()
        looking.join()


def test_parses_at_once_read_their_own_sources() -> None:
    def parse(number: int) -> bool:
        source = b"a%d(`${b}`);\n" % number * 3_000
        root = trees.parse(source, typescript=False, is_late=lambda: False)
        return root.text == source and not root.has_error and root.named_child_count == 3_000

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(parse, range(10, 42)))


BOUND = 20.0
"""Far more than these texts take."""


def refused(code: str) -> bool:
    try:
        find_imports(code.encode(), BOUND)
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


def test_what_is_long_but_flat_is_fine() -> None:
    many = 3_000
    assert not refused("f([{ a: (1) }]);\n" * many)
    assert not refused("[" + "[1], " * many + "]")
    assert not refused("const text = `" + "[({" * many + "`;")
    assert not refused("a, " * many + "a")


def test_an_ordinary_mistake_in_a_long_script_stays_a_syntax_error() -> None:
    assert not refused("f([{ a: (1) }]);\n" * 500 + "const = 1;\n" + "g({ b: [2] });\n" * 500)
