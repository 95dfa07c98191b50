"""A parsed source is let go of, whether the parser came to its end or was stopped."""

from __future__ import annotations

import gc
import sys
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest
from tree_sitter import Parser

from cellblock.script import trees

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
