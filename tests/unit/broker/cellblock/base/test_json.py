"""Parsed JSON is narrowed by its type alone."""

import json

import pytest

from cellblock.base.json import is_array, is_object


@pytest.mark.parametrize(
    ("text", "is_what"),
    [("{}", "object"), ('{"a": [1]}', "object"), ("[]", "array"), ("[{}]", "array")]
    + [(text, "neither") for text in ("1", "1.5", '"{}"', "true", "null")],
)
def test_a_value_is_what_its_text_says(text: str, is_what: str) -> None:
    value = json.loads(text)
    assert (is_object(value), is_array(value)) == (is_what == "object", is_what == "array")
