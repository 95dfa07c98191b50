"""Parsed JSON is narrowed by its type alone."""

from __future__ import annotations

import json
from collections import OrderedDict

import pytest

from cellblock.base.json import (
    FLAT_KEY_CHARS,
    FLAT_MEMBERS,
    FLAT_TEXT_CHARS,
    is_array,
    is_flat,
    is_object,
)


@pytest.mark.parametrize(
    ("text", "is_what"),
    [("{}", "object"), ('{"a": [1]}', "object"), ("[]", "array"), ("[{}]", "array")]
    + [(text, "neither") for text in ("1", "1.5", '"{}"', "true", "null")],
)
def test_a_value_is_what_its_text_says(text: str, is_what: str) -> None:
    value = json.loads(text)
    assert (is_object(value), is_array(value)) == (is_what == "object", is_what == "array")


@pytest.mark.parametrize(
    ("value", "flat"),
    [
        ({}, True),
        ({"a": 1, "b": None, "c": True, "d": 0.5, "e": "x" * FLAT_TEXT_CHARS}, True),
        ({str(number): number for number in range(FLAT_MEMBERS)}, True),
        ({"k" * FLAT_KEY_CHARS: 1}, True),
        ({str(number): number for number in range(FLAT_MEMBERS + 1)}, False),
        ({"k" * (FLAT_KEY_CHARS + 1): 1}, False),
        ({"a": "x" * (FLAT_TEXT_CHARS + 1)}, False),
        ({"a": []}, False),
        ({"a": {}}, False),
        ({1: 1}, False),
        (OrderedDict(a=1), False),
        ([], False),
        ("x", False),
        (None, False),
    ],
    ids=lambda item: type(item).__name__,
)
def test_what_is_flat_has_few_short_plain_members(value: object, flat: bool) -> None:
    assert is_flat(value) is flat
