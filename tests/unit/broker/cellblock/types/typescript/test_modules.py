"""Declarations of whole servers and catalogs, and outputs of all kinds, as the compiler sees them."""

import json
from dataclasses import replace
from typing import Any

import pytest

from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry, ToolOutput
from cellblock.types.typescript import declare_all, declare_server, declare_tool

HOSTILE = "*/ } export const evil: 1; /* \u2028`${x}`\n@ts-ignore \ud800"


def server(*tools: ToolEntry, server_id: str = "tracker", **more: Any) -> ServerEntry:
    return ServerEntry(server_id, "Tracker", "tracker", tools=tools, **more)


def tool(name: str, **more: Any) -> ToolEntry:
    return ToolEntry(name, more.pop("export_name", name), **more)


CREATE = tool(
    "create-task",
    export_name="create_task",
    description="Creates a task.",
    annotations={"readOnlyHint": False, "destructiveHint": True, "title": "Create */"},
    input_schema={
        "type": "object",
        "properties": {"title": {"type": "string"}, "parent": {"$ref": "#/$defs/Node"}},
        "required": ["title"],
        "additionalProperties": False,
        "$defs": {"Node": {"type": "object", "properties": {"up": {"$ref": "#/$defs/Node"}}}},
    },
    output_schema={"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
)


@pytest.mark.parametrize("reading", [False, True])
def test_calls_type_check_as_the_schemas_say(check: Any, reading: bool) -> None:
    declarations = declare_server(server(CREATE), reading=reading)
    errors = check(
        "\n".join(
            [
                'import * as tracker from "@codemode/servers/tracker";',
                'const made: { id: number } = await tracker.create_task({ title: "x", parent: { up: {} } });',
                "const meta: readonly { readonly toolName: string }[] = tracker.__meta__.tools;",
                "tracker.create_task();",
                'tracker.create_task({ titel: "x" });',
                'tracker.create_task({ title: "x", parent: { up: 1 } });',
                "made.name;",
                "tracker.Node;",
                "void [meta];",
            ]
        ),
        declarations,
    )
    wrong = sorted(
        {
            int(line.rpartition(":")[0].rpartition(":")[2])
            for line in errors.split("\n")
            if line.startswith("    at ")
        }
    )
    assert wrong == [4, 5, 6, 7, 8]
    assert "type Node =" in declarations


def test_inputs_by_section_5_3_1(check: Any) -> None:
    tools = [
        tool("absent"),
        tool("empty", input_schema={}),
        tool("always", input_schema=True),
        tool("no_properties", input_schema={"type": "object"}),
        tool("all_optional", input_schema={"type": "object", "properties": {"a": {"type": "string"}}}),
        tool("some_required", input_schema={"type": "object", "properties": {"a": {}}, "required": ["a"]}),
        tool("a_list", input_schema={"type": "array", "items": {"type": "string"}}),
        tool("untyped", input_schema={"properties": {"a": {"type": "string"}}}),
    ]
    lines = ['import * as s from "@codemode/servers/tracker";']
    lines += [
        f"s.{name}(); s.{name}({{}});"
        for name in ("absent", "empty", "always", "no_properties", "all_optional", "untyped")
    ]
    lines += ['s.some_required({ a: null }); s.a_list(["x"]); s.untyped({ a: "x" });']
    assert check("\n".join(lines), declare_server(server(*tools))) == ""
    bad = "\n".join(
        [
            lines[0],
            "s.some_required();",
            "s.some_required({});",
            "s.a_list({});",
            "s.untyped(1);",
            "s.all_optional({ a: 1 });",
        ]
    )
    assert check(bad, declare_server(server(*tools))).count(" [ERROR]") == 5


def test_output_without_a_schema_is_a_text_or_a_result(check: Any) -> None:
    script = """
import { find } from "@codemode/servers/tracker";
const found = await find();
if (typeof found === "string") found.trim();
else if (Array.isArray(found.content)) void found.content.length;
const wrong: string = found;
"""
    errors = check(script, declare_server(server(tool("find"))))
    assert errors.count(" [ERROR]") == 1
    assert "script.ts:6:" in errors


def test_export_names_that_are_no_bindings(check: Any) -> None:
    names = [
        "enum",
        "eval",
        "arguments",
        "await",
        "default_",
        "interface",
        "async",
        "of",
        "type",
        "undefined",
        "Promise",
        "let",
        "$",
        "_",
    ]
    names += ["not an identifier", '\u2028*/"', "ünï"]
    declarations = declare_server(server(*(tool(name) for name in names), tool("__meta__"), tool("enum")))
    uses = "\n".join(f"await s[{json.dumps(name)}]();" for name in names)
    assert (
        check(f'import * as s from "@codemode/servers/tracker";\n{uses}\ns.__meta__.serverId;', declarations)
        == ""
    )


def test_alias_names_do_not_meet(check: Any) -> None:
    schema = {
        "$ref": "#/$defs/Node",
        "$defs": {"Node": {"type": "object", "properties": {"n": {"$ref": "#/$defs/Node"}}}},
    }
    names = ["a_b", "aB", "a__b", "mcp_tool", "a-b", "promise", "a_b_input"]
    tools = [
        tool(name, export_name=f"t{at}", input_schema=schema, output_schema=schema)
        for at, name in enumerate(names)
    ]
    twins = [tool(name, input_schema=schema, output_schema=schema) for name in ("a_b", "aB", "AB", "a__b")]
    declarations = declare_server(server(*tools, *twins, tool("find")))
    assert check('import { aB } from "@codemode/servers/tracker"; aB({ n: { n: {} } });', declarations) == ""


def test_hostile_text_cannot_leave_its_place(check: Any) -> None:
    schema = {
        "type": "object",
        "description": HOSTILE,
        "properties": {HOSTILE: {"description": HOSTILE, "const": HOSTILE}},
    }
    hostile = tool(
        HOSTILE,
        export_name="tool",
        description=HOSTILE * 1_000,
        annotations={HOSTILE: HOSTILE, "deep": [[HOSTILE]]},
        input_schema=schema,
        output_schema=schema,
    )
    entry = ServerEntry("x", HOSTILE, HOSTILE, HOSTILE, HOSTILE, tools=(hostile,))
    text = declare_all(Catalog(servers={"x": entry}, unavailable={HOSTILE: HOSTILE}))
    text.encode("utf-8")
    assert len(text) < 20_000
    assert check('import * as x from "@codemode/servers/x"; x.tool();', text) == ""
    assert check('import { evil } from "@codemode/servers/x"; evil;', text).count(" [ERROR]") == 1


def test_annotations_and_names_are_in_the_doc_comment() -> None:
    doc = '/** Creates a task. MCP tool name: "create-task" [!readOnlyHint, destructiveHint] */'
    tools = server(replace(CREATE, export_name="make_task"))
    assert f"\n{doc}\nfunction make_task(" in declare_server(tools)
    assert f"\n{doc}\nexport function make_task(" in declare_server(tools, reading=False)


def test_a_warning_reaches_the_doc_comment_of_the_tool() -> None:
    text = declare_server(
        server(tool("t", input_schema={"type": "object"}, output_schema={"$ref": "https://schemas.invalid/"}))
    )
    assert "Promise<unknown>" in text
    assert "Warning (output): At the root: The reference" in text


def test_fixed_modules(check: Any) -> None:
    script = """
import { describeServer, getTool, listServers, listTools, searchTools, specVersion } from "@codemode/discovery";
import * as errors from "@codemode/errors";
const version: string = specVersion;
const ids: string[] = (await listServers()).map((one) => one.serverId);
const about: string | undefined = (await describeServer("x")).version;
const names: string[] = (await listTools("x", { detail: "full" })).map((one) => one.exportName);
const tool: { toolName: string } = await getTool("x", "y");
const found: string[] = (await searchTools("q", { limit: 3, serverId: "x" })).results.map((one) => one.serverId);
try {
  throw new Error();
} catch (error) {
  if (error instanceof errors.SchemaValidationError) void [error.path, error.hint.length, error.expected];
  if (error instanceof errors.CodemodeError) void error.hint.length;
}
const all: (new () => errors.CodemodeError)[] = [
  errors.ToolNotFoundError, errors.ServerNotFoundError, errors.ToolCallError, errors.AuthenticationError,
  errors.SandboxLimitError,
];
void [version, ids, about, names, tool, found, all];
"""
    assert check(script, declare_all(Catalog())) == ""
    assert " [ERROR]" in check(script.replace('"full"', '"all"'), declare_all(Catalog()))


ROW = {
    "type": "object",
    "properties": {"id": {"type": "integer"}, "due": {"type": "null"}},
    "required": ["id"],
    "additionalProperties": False,
}
ROWS = {"type": "array", "items": ROW}
OUTPUTS = {
    "rows": ToolOutput("observed", "Observed.", document=ROWS),
    "mixed": ToolOutput("observed", "Observed.", text=True),
    "either": ToolOutput("observed", "Observed.", schema=ROWS, text=True),
    "full": ToolOutput("observed", "Observed.", schema=ROW, result=True),
    "nothing": ToolOutput("observed", "Observed.", schema={}, text=True),
}

OUTPUT_SCRIPT = """\
import * as files from "@codemode/servers/files";
import * as more from "@codemode/servers/more";
for (const row of JSON.parse(await files.rows({}))) {
  const id: number = row.id, due: null | undefined = row.due;
  // @ts-expect-error: rows have no title
  row.title;
}
const id: number = JSON.parse(await more.rows({}))[0].id;
const text: string = await files.rows({});
JSON.parse(text).anything; JSON.parse("{}").anything;
const mixed: string = await files.mixed({});
const either = await files.either({});
const ids: number[] = typeof either === "string" ? [] : either.map((row) => row.id);
const full = await files.full({});
if ("id" in full && typeof full.id === "number") { const id: number = full.id; }
const nothing: unknown = await files.nothing({});
"""


def outputs_of(name: str) -> ServerEntry:
    return ServerEntry(name, name, name, tools=tuple(ToolEntry(tool, tool) for tool in OUTPUTS))


def test_every_kind_of_output_compiles(check: Any) -> None:
    catalog = Catalog(1, {name: outputs_of(name) for name in ("files", "more")})
    text = declare_all(catalog, lambda _, tool: OUTPUTS[tool.tool_name], reading=False)
    assert check(OUTPUT_SCRIPT, text) == ""


def test_one_tool_declared_alone() -> None:
    text = declare_tool(ToolEntry("rows", "rows"), OUTPUTS["rows"])
    assert text.startswith(
        "// JSON.parse(text: JsonText<T>) gives a T.\n/** Output: Observed. */\nexport function rows("
    )
    assert "McpToolOutput" in declare_tool(ToolEntry("t", "t"), None)


def test_integers_of_an_exact_tool_are_numbers_or_bigints() -> None:
    ids = {"type": "object", "properties": {"ids": {"type": "array", "items": {"type": "integer"}}}}
    output = ToolOutput("declared", "Declared.", schema={"type": ["integer", "null"]})
    tool = ToolEntry("t", "t", input_schema=ids, exact=True)
    text = declare_tool(tool, output)
    assert "function t(input?: { ids?: Array<number | bigint> }): Promise<number | bigint | null>;" in text
    compiled = declare_server(server(replace(tool, output_schema=output.schema)), reading=False)
    assert "ids?: Array<number | bigint>" in compiled and "Promise<number | bigint | null>" in compiled
