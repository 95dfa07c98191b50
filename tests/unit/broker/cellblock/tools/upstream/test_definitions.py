"""Tool lists: definitions and their digests, unusual tools, pages, caps."""

import asyncio
import json
from types import SimpleNamespace
from typing import Any

import pytest
from hypothesis import given, strategies as st

from cellblock.tools.catalog.model import Withheld
from cellblock.tools.upstream.definitions import (
    SHOWN_NAME_CHARS,
    ToolDefinition,
    admit,
    canonical,
    digest,
    shown,
)
from cellblock.tools.upstream.listing import MAX_LEFT_OUT, Listing, facts_of, in_order_of, list_tools
from cellblock.tools.upstream.resources import key_of, new_listing
from cellblock.tools.upstream.wire.results import ToolResult
from support.nesting import nested


def definition(raw: str | dict[str, Any]) -> ToolDefinition | Withheld:
    return admit((raw if isinstance(raw, str) else json.dumps(raw)).encode())


def admitted(raw: str | dict[str, Any]) -> ToolDefinition:
    found = definition(raw)
    assert isinstance(found, ToolDefinition)
    return found


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


@pytest.mark.parametrize(
    ("one", "other", "same"), [*((*pair, True) for pair in SAME), *((*pair, False) for pair in DIFFERENT)]
)
def test_equal_json_has_one_digest_and_no_other_has_it(one: str, other: str, same: bool) -> None:
    assert (admitted(one).digest == admitted(other).digest) is same
    assert (definition(one) == definition(other)) is same


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


def deep(depth: int) -> dict[str, Any]:
    return nested(depth, lambda schema: {"type": "object", "properties": {"a": schema}}, {"type": "object"})


@pytest.mark.parametrize(
    ("raw", "cap", "value"),
    [
        ({"name": "n" * 257}, "MAX_NAME_CHARS", 256),
        ({"name": "a", "inputSchema": deep(80)}, "MAX_TOOL_DEPTH", 100),
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
        monkeypatch.setattr(f"cellblock.tools.upstream.definitions.{cap}", 10**6)
        assert admitted({"inputSchema": {"type": "object"}, **raw})


def test_sizes_are_counted_as_utf_8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cellblock.tools.upstream.definitions.MAX_TOOL_BYTES", 5_000)
    assert isinstance(
        definition({"name": "a", "description": "é" * 3_000, "inputSchema": {"type": "object"}}), Withheld
    )


def test_a_name_is_shown_short_and_without_what_a_terminal_would_act_on() -> None:
    assert shown("read_file") == "read_file"
    assert shown("a\x1b[2J\u202eb\nc") == "a\\x1b[2J\\u202eb\\nc"
    assert len(shown("n" * 10_000)) == SHOWN_NAME_CHARS


@pytest.mark.parametrize(
    "beside",
    [
        {"_meta": {"x": "d" * 200_000}},
        {"_meta": {"x": [0] * 20_000}},
        {"_meta": deep(80)},
        {"icons": [{"src": "data:image/png;base64," + "a" * 200_000}]},
    ],
    ids=["bytes", "values", "depth", "icon"],
)
def test_what_is_beside_a_tool_over_a_cap_costs_not_the_tool(beside: dict[str, Any]) -> None:
    raw = {"name": "a", "inputSchema": {"type": "object"}}
    assert definition({**raw, **beside}) == definition(raw) != definition({**raw, "_meta": {"x": 1}})


@pytest.mark.parametrize("bad", [5, None, {}, {"name": []}, {"name": ""}])
async def test_a_malformed_tool_costs_no_other(bad: Any) -> None:
    read = await read_pages([[bad, {"name": "good"}]])
    assert [tool.name for tool in read.kept] == ["good"]
    assert len(read.left_out) == 1


@pytest.mark.parametrize(
    "odd",
    [
        {"name": 5},
        {"name": "5", "description": []},
        {"name": "5", "annotations": []},
        {"name": "5", "annotations": {"readOnlyHint": "yes", "title": 3}},
        {"name": "5", "title": 7, "_meta": []},
        {"name": "5", "icons": {}, "_meta": {}},
        {"name": "5", "icons": [5, {}, {"src": 5}, {"src": "https://x/\u202e"}, {"src": "file:///x.png"}]},
        {"name": "5", "icons": [{"src": "https://x/i.png", "theme": "odd"}]},
        {"name": "5", "inputSchema": None, "outputSchema": "object"},
    ],
)
def test_what_is_odd_of_a_tool_is_dropped_alone(odd: dict[str, Any]) -> None:
    assert admitted(odd).definition == {"name": "5"}


PLAIN = {"type": "object", "properties": {"a": {"type": "string"}}}


@pytest.mark.parametrize(
    "shown",
    [
        *(
            {"inputSchema": schema}
            for schema in (
                {},
                {"type": "array", "items": {"type": "integer"}},
                {"type": "string"},
                True,
                {"anyOf": [{}]},
                PLAIN,
            )
        ),
        {},
        {"inputSchema": {"type": "object"}, "outputSchema": {"type": "array"}},
        {
            "title": "A",
            "description": "d",
            "inputSchema": {"type": "array"},
            "outputSchema": {"type": "object"},
            "annotations": {"readOnlyHint": True},
            "_meta": {"x": 1},
            "icons": [{"src": "https://example.com/i.png", "sizes": ["any"]}],
        },
    ],
)
def test_a_definition_keeps_what_scripts_are_shown_whatever_the_schema(shown: dict[str, Any]) -> None:
    found = admitted({"name": "odd", **shown, "execution": {"taskSupport": "odd"}})
    assert (found.definition, found.odd) == ({"name": "odd", **shown}, False)


@pytest.mark.parametrize(
    ("odd", "mended"),
    [
        ({"properties": []}, {"properties": {}}),
        ({"properties": None}, {"properties": {}}),
        (
            {"properties": {"a": "string", "b": [], "c": None, "d": True, "e": {"items": []}}},
            {"properties": {"a": {"type": "string"}, "b": {}, "c": {}, "d": True, "e": {"items": {}}}},
        ),
        ({"required": {}}, {}),
        ({"required": True}, {}),
        ({"required": "a"}, {}),
        ({"required": ["a", 3]}, {"required": ["a"]}),
        ({"$schema": 7, "type": "object"}, {"type": "object"}),
        ({"anyOf": [], "allOf": {}}, {}),
        ({"$defs": [], "additionalProperties": []}, {"$defs": {}, "additionalProperties": {}}),
    ],
)
def test_parts_of_a_schema_that_are_none_are_mended_alone(
    odd: dict[str, Any], mended: dict[str, Any]
) -> None:
    found = admitted({"name": "odd", "inputSchema": odd})
    assert (found.definition["inputSchema"], found.odd) == (mended, True)


def small_tool(name: str, **fields: Any) -> dict[str, Any]:
    return {"name": name, "inputSchema": {"type": "object"}, **fields}


async def read_pages(
    pages: list[list[Any]], *, endless: bool = False, silent_after: int = 100_000
) -> Listing[Any]:
    """What is read of a server with these pages; past the last one an endless one begins again."""

    async def ask(_method: str, params: dict[str, Any]) -> ToolResult:
        number = int(params.get("cursor", 0))
        if number >= silent_after:
            await asyncio.Event().wait()
        more = {"nextCursor": str(number + 1)} if endless or number + 1 < len(pages) else {}
        return ToolResult.of({"tools": pages[number % len(pages)], **more})

    session: Any = SimpleNamespace(protocol_version="2025-11-25", connection=SimpleNamespace(), ask=ask)
    return await list_tools(session)


def many(number: int, **fields: Any) -> list[dict[str, Any]]:
    return [small_tool(f"t{at}", **fields) for at in range(number)]


@pytest.mark.parametrize(
    ("pages", "kind", "bounds", "kept", "left_out", "note"),
    [
        # Cursors without end stop at the cap on pages.
        ([[]], {"endless": True}, {"listing.MAX_PAGES": 7}, [], 0, "after 7 pages"),
        ([many(1)], {"endless": True}, {"listing.MAX_PAGES": 7}, ["t0"], 0, "after 7 pages"),
        ([many(5_000)], {}, {}, [f"t{at}" for at in range(2_000)], 0, "more than 2,000 tools"),
        # Those that are left out count, and are named up to a number.
        (
            [[*many(500, _="d" * 100), small_tool("good")]],
            {},
            {"definitions.MAX_TOOL_BYTES": 60},
            ["good"],
            MAX_LEFT_OUT,
            f"{500 - MAX_LEFT_OUT} more of its tools are left out.",
        ),
        # What was read when a server falls silent is used.
        ([many(1), []], {"silent_after": 1}, {"listing.LIST_SECONDS": 0.05}, ["t0"], 0, "within 0.05 s"),
    ],
    ids=["empty pages", "the same page again", "thousands", "too long", "silence"],
)
async def test_a_list_without_end_or_measure_is_read_as_far_as_it_goes(
    pages: list[list[Any]],
    kind: dict[str, Any],
    bounds: dict[str, Any],
    kept: list[str],
    left_out: int,
    note: str,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    for name, value in bounds.items():
        monkeypatch.setattr(f"cellblock.tools.upstream.{name}", value)
    read = await read_pages(pages, **kind)
    assert [tool.name for tool in read.kept] == kept
    assert len(read.left_out) == left_out
    assert note in read.notes[0]
    assert len(read.notes) < 3


async def test_a_text_over_its_cap_is_cut_and_told(monkeypatch: pytest.MonkeyPatch) -> None:
    read = await read_pages(
        [[{"name": "a", "description": "d" * 32_769}, {"name": "b", "title": "d" * 32_768}]]
    )
    first, second = (tool.definition for tool in read.kept)
    assert (first["description"], second["title"]) == (f"{'d' * 32_768}…", "d" * 32_768)
    assert read.notes == ["Texts of 1 tools are cut at 32768 characters: a."]


async def test_of_two_tools_with_one_name_the_first_is_kept_and_the_other_said() -> None:
    read = await read_pages([[small_tool("a", description="good")], [small_tool("a", description="bad")]])
    assert [one.definition["description"] for one in read.kept] == ["good"]
    assert not read.left_out
    assert "more than once" in read.notes[0] and read.notes[0].endswith(" a.")


async def test_another_order_of_the_same_tools_is_no_change() -> None:
    connection = SimpleNamespace(notes=())
    about: Any = SimpleNamespace(
        server_info=None, server_capabilities=None, instructions=None, connection=connection
    )
    tools = [small_tool("b"), small_tool("a"), small_tool("c")]
    one, other = await read_pages([tools]), await read_pages([tools[::-1]])
    known, facts = facts_of(about, one), facts_of(about, other)
    assert [tool.name for tool in facts.tools] == ["c", "a", "b"], "a server's own order is kept"
    assert in_order_of(known, facts) == known != facts


async def test_all_definitions_together_have_a_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("cellblock.tools.upstream.listing.MAX_LISTED_BYTES", 10_000)
    read = await read_pages([many(20, description="d" * 1_000)])
    assert 5 < len(read.kept) < 10
    assert "together have over 10000 bytes" in read.left_out[0].why
    assert len(read.kept) + len(read.left_out) == 20


def test_of_resources_what_is_malformed_or_too_long_is_left_out_with_the_reason() -> None:
    listing = new_listing("resources")
    for item in (
        {"uri": "a:1", "name": "one"},
        {"uri": 7},
        {"uri": "a:2", "name": "x" * 1_000},
        {"uri": "a:1", "name": "two"},
        {"uri": "a:3", "name": None, "size": "big"},
    ):
        assert not listing.take(json.dumps(item).encode())
    listing.close()
    assert [(one.name, key_of(one)) for one in listing.kept] == [("one", "a:1"), ("a:3", "a:3")]
    assert [one.why for one in listing.left_out] == [
        "it is malformed, or too large",
        "one of its texts has over 256 characters",
    ]
    assert listing.notes == ["It lists 1 resources more than once, and the first of each is kept: a:1."]
