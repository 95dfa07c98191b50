"""Tool definitions for others."""

import re
from typing import Any

import jsonschema
import pytest

from cellblock.tools.catalog.model import (
    Catalog,
    Example,
    Given,
    JsonSchema,
    ServerEntry,
    ToolEntry,
    ToolOutput,
    stated_output,
)
from cellblock.types.definitions import (
    BOX,
    OUTPUT_KEY,
    declared_schema,
    definitions_in,
    learnt_schema,
    published,
    schema_document,
    structured,
)

ITEM = {"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]}
INPUT = {"type": "object", "properties": {"path": {"type": "string"}}}


def tool(name: str, **more: Any) -> ToolEntry:
    return ToolEntry(
        name, name, description=f"Does {name}", input_schema=more.pop("input_schema", INPUT), **more
    )


def catalog(**servers: tuple[ToolEntry, ...]) -> Catalog:
    return Catalog(1, {name: ServerEntry(name, name, name, tools=tools) for name, tools in servers.items()})


def seen(**parts: Any) -> ToolOutput:
    return ToolOutput("observed", "Observed from 3 results.", samples=3, **parts)


def test_names_fit_the_apis_and_depend_on_their_own_tool() -> None:
    odd = ("read file", "read.file", "read_file", "ö", "x" * 128, "a__b")
    names = published(catalog(files=tuple(map(tool, odd)), files__a=(tool("b"),), other=(tool("read_file"),)))
    assert len(names) == len(odd) + 2
    assert all(re.fullmatch("[a-zA-Z0-9_-]{1,64}", name) for name in names)
    assert names["mcp__files__read_file"].tool.tool_name == "read_file"
    assert names["mcp__other__read_file"].server.server_id == "other"
    [name] = published(catalog(files=(tool("read file"),)))
    assert names[name].tool.tool_name == "read file"


OUTPUTS = {
    "declared": None,
    "document": seen(document=ITEM),
    "text": seen(text=True),
    "mixed": seen(document=ITEM, text=True),
    "list": seen(schema={"type": "array", "items": ITEM}),
}
TOOLS = catalog(
    files=(
        tool("declared", output_schema=ITEM),
        *(tool(name) for name in OUTPUTS if name != "declared"),
        tool("nothing", input_schema=None),
        tool(
            "given",
            given=Given({"type": "object"}, examples=(Example({"path": "a"}), Example(7))),
            input_schema={"anyOf": [INPUT, {"required": ["x"]}]},
        ),
    )
)


def known(server: ServerEntry, one: ToolEntry) -> ToolOutput | None:
    return OUTPUTS.get(one.tool_name) or stated_output(server, one)


def defined(form: Any) -> tuple[dict[str, Any], dict[str, Any]]:
    """The definitions of the tools and what is said of their outputs, by the tools' own names."""
    made = definitions_in(published(TOOLS), form, known, known)
    tools = {one["name"].removeprefix("mcp__files__"): one for one in made["tools"]}
    return tools, {name.removeprefix("mcp__files__"): one for name, one in made.get("outputs", {}).items()}


def test_what_openai_takes() -> None:
    tools, outputs = defined("openai")
    keys = {"type", "name", "description", "parameters", "strict", "output_schema"}
    assert all(set(one) <= keys and one["strict"] is False for one in tools.values())
    observed = {"description": "Observed from 3 results."}
    assert {name: one["output_schema"] for name, one in tools.items() if "output_schema" in one} == {
        "declared": ITEM,
        "document": {**observed, **ITEM},
        "list": {**observed, "type": "array", "items": ITEM},
        "given": {"description": "Given by the user.", "type": "object"},
    }
    empty: dict[str, Any] = {"type": "object", "properties": {}}
    assert tools["nothing"]["parameters"] == empty == tools["given"]["parameters"]
    assert {name: output["source"] for name, output in outputs.items()} == {
        "declared": "declared",
        **dict.fromkeys(("document", "text", "mixed", "list"), "observed"),
        "nothing": "unknown",
        "given": "given",
    }


def test_what_anthropic_takes() -> None:
    tools, _ = defined("anthropic")
    keys = {"name", "description", "input_schema", "input_examples"}
    assert all(set(one) <= keys and one["input_schema"]["type"] == "object" for one in tools.values())
    assert tools["given"]["input_examples"] == [{"path": "a"}]
    assert (
        "Output (observed): Observed from 3 results. JSON of this type:\ntype Output = "
        in tools["list"]["description"]
    )
    assert tools["nothing"]["description"] == "Does nothing"


def test_only_what_is_declared_binds_mcp_clients() -> None:
    tools, _ = defined("mcp")
    assert tools["declared"]["outputSchema"] == ITEM
    for name in ("document", "list", "given"):
        schema = tools[name]["outputSchema"]
        jsonschema.Draft202012Validator.check_schema(schema)
        for value in ({"id": 1}, {"id": "another shape"}, {}, [], [{"id": 1}], "no JSON", None, 7):
            jsonschema.validate(structured(value), schema)
        assert tools[name]["_meta"][OUTPUT_KEY]["source"] in ("observed", "given")
    for name in ("text", "mixed", "nothing"):
        assert "outputSchema" not in tools[name]
    assert tools["mixed"]["_meta"][OUTPUT_KEY]["schema"]["anyOf"]


@pytest.mark.parametrize(
    ("schema", "stands"),
    [
        ({"type": "array", "items": {"$ref": "#/$defs/a"}, "$defs": {"a": ITEM}}, True),
        ({"type": "array", "items": {"$ref": "#"}}, False),
        ({"type": "object", "$id": "urn:x", "properties": {"a": {"$ref": "urn:x#/$defs/a"}}}, False),
        (True, False),
    ],
)
def test_a_schema_stands_within_another_where_its_references_still_lead(
    schema: JsonSchema, stands: bool
) -> None:
    made = learnt_schema(ToolOutput("given", "Given by the user.", schema=schema))
    assert (made is not None) == stands
    if made is not None:
        jsonschema.validate(structured([{"id": 1}]), made)
        assert made["properties"][BOX]["anyOf"][0]["items"] == {"$ref": "#/$defs/a"}


def test_what_a_server_declares_is_boxed_again() -> None:
    taken_out = tool(
        "x",
        output_schema={"type": "array", "items": {"$ref": "#/$defs/a"}, "$defs": {"a": ITEM}},
        box="result",
    )
    validator = jsonschema.Draft202012Validator(declared_schema(taken_out) or False)
    assert validator.is_valid({"result": [{"id": 1}]})
    assert not validator.is_valid({"result": [{"id": "a"}]})


def test_a_document_of_schemas_resolves() -> None:
    circle = {"type": "object", "properties": {"next": {"$ref": "#"}}, "required": ["id"]}
    found = published(catalog(files=(tool("walk", output_schema=circle, input_schema=True),)))
    document = schema_document(found, stated_output)
    jsonschema.Draft202012Validator.check_schema(document)
    validator = jsonschema.Draft202012Validator({**document, "$ref": "urn:cellblock:mcp__files__walk.output"})
    assert validator.is_valid({"id": 1, "next": {"id": 2}})
    assert not validator.is_valid({"id": 1, "next": {}})
