"""Positions: whatever a parser finds in a text has a place, and at that place stands what the parser found."""

from __future__ import annotations

import json
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellblock.base.settings.positions import Path, find_positions
from cellblock.base.settings.syntax import Position

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


def places(value: Any, path: Path = ()) -> Iterator[tuple[Path, Any]]:
    yield path, value
    items = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, below in items:
        yield from places(below, (*path, key))


@given(VALUES, st.sampled_from([None, 2]), st.booleans())
def test_every_json_value_is_where_it_is_said_to_be(value: Any, indent: int | None, ascii_only: bool) -> None:
    text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    found = find_positions(text, toml=False)
    expected = dict(places(value))
    assert set(found.values) == set(expected)
    assert set(found.keys) == {path for path in expected if path and isinstance(path[-1], str)}
    decoder = json.JSONDecoder()
    for path, below in expected.items():
        assert decoder.raw_decode(text, found.values[path])[0] == below
        if path in found.keys:
            assert decoder.raw_decode(text, found.keys[path])[0] == path[-1]
    assert found.duplicates == []


TOML = r'''
title = "a # b"        # a comment with [brackets]
"quoted.key".'other' = { q = [1, 2, { r = "#]}" }], 's' = 2020-01-01 10:00:00 }
a . b.c = -1_000

[t . u]
basic = """one "two" ""three"" four"""
literal = \'\'\'it's ''fine\'\'\'
ends = """two quotes"""""
escaped = "say \"x\" \\"
empty = ""
day = 1979-05-27
inf = +inf
list = [
  "x", # one

  [ ], { }, [ [ 1 ], 2 ],
]

[[many]]
v = 1
[many.sub]
w = true
[[many.deep]]
x = 0x1F
[[many.deep]]
x = 2
[[many]]
v = 'C:\temp'
[z]
'''.replace("\\'", "'")


def test_every_toml_value_is_where_it_is_said_to_be() -> None:
    data = tomllib.loads(TOML)
    found = find_positions(TOML, toml=True)
    expected = dict(places(data))
    assert set(found.values) == set(expected)
    lines = TOML.splitlines(keepends=True)
    for path, value in expected.items():
        position = found.find(path, key=False)
        assert sum(map(len, lines[: position.line - 1])) + position.column - 1 == found.values[path]
        if not isinstance(value, dict | list):
            assert _first_value(TOML[found.values[path] :]) == value, path
    for path, offset in found.keys.items():
        assert TOML[offset:].startswith((str(path[-1]), f'"{path[-1]}"', f"'{path[-1]}'")), path


def _first_value(text: str) -> Any:
    """What TOML reads at the beginning of a text: of the longest part that is a value."""
    for end in range(min(len(text), 60), 0, -1):
        try:
            return tomllib.loads(f"k = {text[:end]}")["k"]
        except tomllib.TOMLDecodeError:
            continue
    return None


KEYS = st.text(st.characters(codec="utf-8", exclude_categories=["Cc", "Cs"]), max_size=8)


def toml_value(value: Any) -> str:
    if isinstance(value, dict):
        return (
            "{"
            + ", ".join(
                f"{json.dumps(key, ensure_ascii=False)} = {toml_value(below)}" for key, below in value.items()
            )
            + "}"
        )
    if isinstance(value, list):
        return "[" + ",\n ".join(map(toml_value, value)) + "]"
    return json.dumps(value, ensure_ascii=False)


@settings(max_examples=40)
@given(
    st.dictionaries(
        KEYS,
        st.recursive(
            st.booleans() | st.integers(-(2**63), 2**63 - 1) | KEYS,
            lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner),
            max_leaves=12,
        ),
    )
)
def test_any_toml_document_is_walked_to_its_end(document: dict[str, Any]) -> None:
    text = "".join(
        f"{json.dumps(key, ensure_ascii=False)} = {toml_value(value)} # x\n"
        for key, value in document.items()
    )
    assert tomllib.loads(text) == document
    assert set(find_positions(text, toml=True).values) == {path for path, _ in places(document)}


def test_a_key_that_is_there_twice() -> None:
    found = find_positions('{"a": 1,\n "b": {"c": 1, "c": [2]}}', toml=False)
    assert [(path, found.at(offset)) for path, offset in found.duplicates] == [(("b", "c"), Position(2, 16))]
    assert found.find(("b", "c", 0), key=False) == Position(2, 22)


@pytest.mark.parametrize(
    ("path", "key", "where"),
    [
        (("a",), True, Position(1, 2)),
        (("a",), False, Position(1, 7)),
        (("a", "missing"), True, Position(1, 7)),
        (("a", "b", 7), False, Position(2, 7)),
        (("nothing",), True, Position(1, 1)),
    ],
)
def test_what_is_not_there_is_where_it_would_be(path: Path, key: bool, where: Position) -> None:
    assert find_positions('{"a": {\n "b": [1]}}', toml=False).find(path, key=key) == where
