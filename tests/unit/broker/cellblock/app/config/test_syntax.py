"""Syntax errors and places in a configuration file."""

import json
import tomllib
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellblock.base.settings.syntax import (
    Path,
    Position,
    SyntaxFault,
    find_positions,
    parse,
    position_at,
    without_comments,
)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ('{"a": 1} // end', {"a": 1}),
        ('// first\n{"a": /* , */ [1, 2,], }', {"a": [1, 2]}),
        ('{"url": "http://x/*y*/", "b": ",]",}', {"url": "http://x/*y*/", "b": ",]"}),
        ('{"quote\\"//": "\\\\",}', {'quote"//': "\\"}),
        ('{"a": [1 /* one */ , /* nothing */ ]}', {"a": [1]}),
    ],
)
def test_json_as_vs_code_allows_it(text: str, value: Any) -> None:
    assert parse(text, toml=False) == value
    assert len(without_comments(text)) == len(text)


@pytest.mark.slow
@given(st.recursive(st.none() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)))
def test_plain_json_is_left_as_it_is(value: Any) -> None:
    text = json.dumps(value, ensure_ascii=False)
    assert without_comments(text) == text


@pytest.mark.parametrize(
    ("text", "toml", "where"),
    [
        ("{", False, Position(1, 2)),
        ('{"a": 1,\n  b: 2}', False, Position(2, 3)),
        ('{\n// a comment, "x"\n"a" 1}', False, Position(3, 5)),
        ('{"a": "never ends}', False, Position(1, 7)),
        ("", False, Position(1, 1)),
        ("a = 1\nb = ", True, Position(2, 5)),
        ("[a\nb = 1", True, Position(1, 3)),
        ("a = 1\na = 2\n", True, Position(2, 6)),
        ("[" * 100_000, False, Position(1, 1)),
        ('{"a": ' + "1" * 5_000 + "}", False, Position(1, 1)),
    ],
)
def test_the_place_where_it_ends_being_valid(text: str, toml: bool, where: Position) -> None:
    with pytest.raises(SyntaxFault) as caught:
        parse(text, toml=toml)
    assert caught.value.position == where
    assert "line" not in caught.value.message or "newline" in caught.value.message


def test_lines_and_columns() -> None:
    text = "ab\n\u00e4\U0001f600x\n"
    assert [position_at(text, offset) for offset in (0, 2, 3, 5, 7)] == [
        (1, 1),
        (1, 3),
        (2, 1),
        (2, 3),
        (3, 1),
    ]


@pytest.mark.parametrize("unit", ["/*", ",", '"', "//", ", ", '{"'])
def test_text_that_is_made_to_take_long_does_not(unit: str) -> None:
    with pytest.raises(SyntaxFault):
        parse('{"a": ' + unit * 500_001, toml=False)


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


INLINE = [("quoted.key", "other"), ("t", "u", "list")]


def test_every_toml_value_is_where_it_is_said_to_be() -> None:
    """What is within a value stands where that does."""
    data = tomllib.loads(TOML)
    found = find_positions(TOML, toml=True)
    expected = dict(places(data))
    within = {path for path in expected if any(path[:n] in INLINE for n in range(len(path)))}
    assert set(found.values) == set(expected) - within
    lines = TOML.splitlines(keepends=True)
    for path, value in expected.items():
        position = found.find(path, key=False)
        if path in within:
            assert position == found.find(next(one for one in INLINE if path[: len(one)] == one), key=False)
            continue
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
    assert set(find_positions(text, toml=True).values) == {(), *((key,) for key in document)}


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
