"""The syntax of configuration files: JSON with and without comments, TOML, and where either stops being any."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock.base.settings.syntax import Position, SyntaxFault, parse, position_at, without_comments


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
