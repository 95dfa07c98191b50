"""Places inside a JSON text."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellblock.learning.json_places import offset_of

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=3), inner, max_size=4),
    max_leaves=12,
)


def paths(value: Any) -> list[list[str | int]]:
    """The path of every part of a value."""
    items: Any = (
        value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    )
    return [[], *([step, *rest] for step, inside in items for rest in paths(inside))]


@settings(max_examples=60, deadline=None)
@given(VALUES, st.sampled_from([None, 2]), st.booleans())
def test_every_part_is_found(value: Any, indent: int | None, ascii_only: bool) -> None:
    text = " " + json.dumps(value, indent=indent, ensure_ascii=ascii_only)
    for path in paths(value):
        part = value
        for step in path:
            part = part[step]
        assert json.JSONDecoder().raw_decode(text, offset_of(text, path))[0] == part


@pytest.mark.parametrize(("path", "offset"), [(["b"], 0), (["a", 5], 6), (["a", 0, "x"], 7), ([0], 0)])
def test_what_is_not_there_is_told_by_what_is_around_it(path: list[str | int], offset: int) -> None:
    assert offset_of('{"a": [1]}', path) == offset


def test_of_a_name_that_is_there_twice_the_last_one_counts() -> None:
    assert offset_of('{"a": 1, "a": 2}', ["a"]) == 14
