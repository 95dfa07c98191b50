"""Definitions: one spelling for equal JSON, another for any that differs, and caps that say which and why."""

from __future__ import annotations

import json
from typing import Any

import mcp_types as types
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock.tools.catalog.model import Withheld
from cellblock.tools.upstream import definitions
from cellblock.tools.upstream.definitions import (
    SHOWN_NAME_CHARS,
    ToolDefinition,
    admit,
    canonical,
    digest,
    shown,
)


def definition(raw: str | dict[str, Any]) -> ToolDefinition | Withheld:
    data = json.loads(raw) if isinstance(raw, str) else raw
    return admit(types.Tool.model_validate(data, by_name=False))


def digest_of(raw: str | dict[str, Any]) -> str:
    admitted = definition(raw)
    assert isinstance(admitted, ToolDefinition)
    return admitted.digest


SAME = [
    ('{"name":"a","inputSchema":{"type":"object"}}', '{"inputSchema":{"type":"object"},"name":"a"}'),
    (
        '{"name":"a","inputSchema":{"type":"object","properties":{"x":{"maximum":1.0},"y":{}}}}',
        '{"name":"a","inputSchema":{"properties":{"y":{},"x":{"maximum":1}},"type":"object"}}',
    ),
    (
        '{"name":"a","inputSchema":{"type":"object","m":1e2}}',
        '{"name":"a","inputSchema":{"type":"object","m":100}}',
    ),
    (
        '{"name":"a","inputSchema":{"type":"object","m":-0.0}}',
        '{"name":"a","inputSchema":{"type":"object","m":0}}',
    ),
    ('{"name":"\\u0061","inputSchema":{"type":"object"}}', '{"name":"a","inputSchema":{"type":"object"}}'),
    (
        '{"name":"a","description":null,"inputSchema":{"type":"object"}}',
        '{"name":"a","inputSchema":{"type":"object"}}',
    ),
]

SCHEMAS = [
    ('"const":true', '"const":1'),
    ('"const":false', '"const":0'),
    ('"const":"1"', '"const":1'),
    ('"const":null', '"title":""'),
    ('"enum":[1,2]', '"enum":[2,1]'),
    ('"maximum":1', '"maximum":1.5'),
    ('"maximum":9007199254740993', '"maximum":9007199254740992'),
    ('"title":"\\ud800"', '"title":"\\ud801"'),
]
"""Keywords of an input schema that are not the same."""

FIELDS = [
    # A composed and a decomposed letter, a Cyrillic one, an invisible one.
    ('"description":"\\u00e9"', '"description":"e\\u0301"'),
    ('"description":"pay"', '"description":"p\\u0430y"'),
    ('"description":"x"', '"description":"x\\u200b"'),
    ('"description":"x"', '"description":"x "'),
    ('"description":"x"', '"title":"x"'),
    ('"description":"x"', '"description":""'),
    ('"outputSchema":{"type":"object"}', '"title":null'),
    ('"annotations":{"readOnlyHint":true}', '"annotations":{"readOnlyHint":false}'),
]
"""Fields of a tool that are not the same."""

DIFFERENT = [
    *(
        tuple(f'{{"name":"a","inputSchema":{{"type":"object",{keyword}}}}}' for keyword in pair)
        for pair in SCHEMAS
    ),
    *(
        tuple(f'{{"name":"a",{field},"inputSchema":{{"type":"object"}}}}' for field in pair)
        for pair in FIELDS
    ),
]


@pytest.mark.parametrize(("one", "other"), SAME)
def test_equal_json_has_one_digest(one: str, other: str) -> None:
    assert digest_of(one) == digest_of(other)


@pytest.mark.parametrize(("one", "other"), DIFFERENT)
def test_json_that_differs_has_another_digest(one: str, other: str) -> None:
    assert digest_of(one) != digest_of(other)
    assert definition(one) != definition(other)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=20,
)


@given(value=JSON)
def test_the_canonical_form_is_json_and_its_own_canonical_form(value: Any) -> None:
    spelled = canonical(value)
    assert canonical(json.loads(spelled.decode("utf-8", "surrogatepass"))) == spelled


def test_a_digest_names_its_algorithm() -> None:
    assert digest(b"") == "sha256:e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"


def nested(depth: int) -> dict[str, Any]:
    schema: dict[str, Any] = {"type": "object"}
    for _ in range(depth):
        schema = {"type": "object", "properties": {"a": schema}}
    return schema


@pytest.mark.parametrize(
    ("raw", "cap", "value"),
    [
        ({"name": "n" * 257}, "MAX_NAME_CHARS", 256),
        ({"name": "a", "description": "d" * 100_000}, "MAX_TEXT_CHARS", 32 * 1024),
        ({"name": "a", "title": "d" * 100_000}, "MAX_TEXT_CHARS", 32 * 1024),
        ({"name": "a", "inputSchema": nested(80)}, "MAX_TOOL_DEPTH", 100),
        (
            {"name": "a", "inputSchema": {"type": "object", "enum": [0] * 20_000}},
            "MAX_TOOL_VALUES",
            10_000,
        ),
        (
            {"name": "a", "outputSchema": {"type": "object", "description": "d" * 200_000}},
            "MAX_TOOL_BYTES",
            128 * 1024,
        ),
    ],
)
def test_a_tool_over_a_cap_is_left_out_and_one_within_a_higher_one_is_not(
    raw: dict[str, Any], cap: str, value: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    refused = definition({"inputSchema": {"type": "object"}, **raw})
    assert isinstance(refused, Withheld)
    assert refused.why.endswith(f", over {value}")
    assert len(refused.name) <= SHOWN_NAME_CHARS
    if cap != "MAX_TOOL_DEPTH":
        monkeypatch.setattr(definitions, cap, 10**6)
        assert isinstance(definition({"inputSchema": {"type": "object"}, **raw}), ToolDefinition)


def test_sizes_are_counted_as_utf_8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(definitions, "MAX_TOOL_BYTES", 5_000)
    raw = {"name": "a", "description": "é" * 3_000, "inputSchema": {"type": "object"}}
    assert isinstance(definition(raw), Withheld)


def test_a_name_is_shown_short_and_without_what_a_terminal_would_act_on() -> None:
    assert shown("read_file") == "read_file"
    assert shown("a\x1b[2J\u202eb\nc") == "a\\u001b[2J\\u202eb\\u000ac"
    assert len(shown("n" * 10_000)) == SHOWN_NAME_CHARS


def test_a_definition_keeps_what_scripts_are_shown() -> None:
    raw = {
        "name": "a",
        "title": "A",
        "description": "d",
        "inputSchema": {"type": "array"},
        "outputSchema": {"type": "object"},
        "annotations": {"readOnlyHint": True},
    }
    tool = types.Tool(
        name="a",
        title="A",
        description="d",
        input_schema={"type": "object"},
        output_schema={"type": "object"},
        annotations=types.ToolAnnotations(read_only_hint=True),
        _meta={"cellblock/inputSchema": {"type": "array"}},
    )
    admitted = admit(tool)
    assert isinstance(admitted, ToolDefinition)
    assert admitted.definition == raw
