"""Module paths of servers and export names of tools (sections 5.0.1 and 6.1)."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock import Broker
from cellblock.base.errors import ConfigError
from cellblock.tools.catalog.naming import (
    RESERVED_WORDS,
    check_tool_name,
    export_names,
    identifier,
    module_path,
    module_paths,
)
from cellblock.tools.python.tool_mark import tool
from cellblock_worker.wire.protocol import MAX_NAME_CHARS
from support.entries import settings

BAD = {"empty": "", "blank": "  ", "long": "x" * (MAX_NAME_CHARS + 1), "surrogate": "a\ud800"}
"""Names of Python tools that nothing could call."""
PATH = re.compile(r"[a-z0-9]+(-[a-z0-9]+)*(--[0-9]+)?")
IDENTIFIER = re.compile(r"[A-Za-z_$][A-Za-z0-9_$]*")


@pytest.mark.parametrize(
    ("name", "path"),
    [
        ("google-drive", "google-drive"),
        ("Google Drive", "google-drive"),
        ("A__B..C", "a-b-c"),
        ("--x--", "x"),
        ("@scope/pkg", "scope-pkg"),
        ("ÄÖ-1", "1"),
        ("İ", "i"),
        ("K", "k"),
        ("日本", "server"),
        ("", "server"),
        ("__proto__", "proto"),
    ],
)
def test_module_path(name: str, path: str) -> None:
    assert module_path(name) == path


def test_equal_paths_are_numbered_from_2_and_the_first_stays_clean() -> None:
    assert module_paths(["My Server", "my-server", "MY.SERVER", "other"]) == {
        "My Server": "my-server",
        "my-server": "my-server--2",
        "MY.SERVER": "my-server--3",
        "other": "other",
    }


@pytest.mark.parametrize(
    ("tool", "name"),
    [
        ("read_file", "read_file"),
        ("read-file", "read_file"),
        ("a.b/c d", "a_b_c_d"),
        ("123tool", "_123tool"),
        ("$x", "$x"),
        ("ä", "_"),
        ("", "_"),
        ("٣x", "_x"),
        ("delete", "delete_"),
        ("await", "await_"),
        ("then", "then_"),
        ("constructor", "constructor"),
        ("Delete", "Delete"),
    ],
)
def test_identifier(tool: str, name: str) -> None:
    assert identifier(tool) == name


@pytest.mark.parametrize("word", sorted(RESERVED_WORDS))
def test_reserved_words_get_an_underscore(word: str) -> None:
    assert export_names([word]) == {word: f"{word}_"}


def test_there_are_the_reserved_words_of_the_specification() -> None:
    text = """break case class const continue debugger default delete do else export extends false finally for
        function if import in instanceof new null return super switch this throw true try typeof var void while
        with yield let static await"""
    assert frozenset(text.split()) == RESERVED_WORDS


def test_collisions_are_numbered_in_alphabetical_order_of_the_tools() -> None:
    names = ["a_b", "a.b", "a-b", "c"]
    assert export_names(names) == {"a-b": "a_b", "a.b": "a_b__2", "a_b": "a_b__3", "c": "c"}
    assert export_names(reversed(names)) == export_names(names)


def test_a_numbered_name_that_is_taken_is_skipped() -> None:
    # "a-b" sorts before "a_b", and both before "a_b__2".
    assert export_names(["a-b", "a_b", "a_b__2"]) == {"a-b": "a_b", "a_b": "a_b__2", "a_b__2": "a_b__2__2"}


def test_no_tool_takes_the_name_of_the_modules_own_export() -> None:
    assert export_names(["__meta__"]) == {"__meta__": "__meta____2"}


@pytest.mark.slow
@given(st.lists(st.text(max_size=8), max_size=12))
def test_exports_are_unique_identifiers_whatever_the_tools_are_called(tools: list[str]) -> None:
    names = export_names(tools)
    assert set(names) == set(tools)
    assert len(set(names.values())) == len(names)
    for name in names.values():
        assert IDENTIFIER.fullmatch(name)
        assert name not in RESERVED_WORDS and name not in ("then", "__meta__")
    assert export_names(sorted(tools, reverse=True)) == names


@given(st.lists(st.text(max_size=8), max_size=12, unique=True))
def test_paths_are_unique_whatever_the_servers_are_called(servers: list[str]) -> None:
    paths = module_paths(servers)
    assert list(paths) == servers
    assert len(set(paths.values())) == len(servers)
    assert all(PATH.fullmatch(path) for path in paths.values())


@pytest.mark.parametrize("name", ["add", "größe", "a b", "\U0001f4a5", "x" * MAX_NAME_CHARS])
def test_good_names(name: str) -> None:
    check_tool_name(name)


@pytest.mark.parametrize("name", BAD.values(), ids=BAD)
def test_bad_names_are_refused_in_text_that_can_be_shown(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_tool_name(name)
    assert "name" in str(caught.value) and caught.value.hint
    assert len(str(caught.value).encode()) < 300


@pytest.mark.parametrize("kind", ["long", "surrogate"])
async def test_a_broker_with_such_a_tool_does_not_start(kind: str, tmp_path: Path) -> None:
    @tool(name=BAD[kind])
    def work() -> int:
        return 1

    with pytest.raises(ConfigError, match="name"):
        async with Broker(settings(tmp_path), tools=[work]):
            pass
