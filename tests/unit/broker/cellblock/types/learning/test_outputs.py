"""Given, declared, observed: who is believed, what an agent is told of it, and the files of what is given."""

import json
import tomllib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from cellblock.app.config.load import parse_settings
from cellblock.base.errors import ConfigError
from cellblock.base.settings.settings import SchemaSettings
from cellblock.serve.mcp.context import declarations_in_budget
from cellblock.tools.catalog.model import (
    Catalog,
    Example,
    Given,
    ResultKind,
    ServerEntry,
    ToolEntry,
    ToolOutput,
)
from cellblock.types.discovery import Discovery
from cellblock.types.learning.learner import Learner, Offer, mark_of
from cellblock.types.learning.outputs import KnownOutputs, load_overlays, refined
from cellblock.types.learning.overlay import new_overlay, overlay_file, read_overlay
from cellblock.types.typescript import declare_server
from support.discovery import answered

from .conftest import learning

ROWS = [{"id": 1, "name": "a"}, {"id": 2, "name": "b", "due": None}]
NUMBER = {"type": "object", "properties": {"id": {"type": "number"}}, "required": ["id"]}


class World:
    """One server and what was learnt of it."""

    def __init__(self, *tools: ToolEntry, **settings: Any) -> None:
        made = SchemaSettings.model_validate(settings)
        entries = tuple(refined(made, {}, "Files", tool) for tool in tools)
        self.server = ServerEntry(
            "files", "Files", "Files", tools=entries, by_export={t.export_name: t for t in entries}
        )
        self.catalog = Catalog(1, {"files": self.server})
        self.learner = Learner(made, None)
        self.outputs = KnownOutputs(self.learner).of("")

    async def saw(self, *results: tuple[int, ResultKind, Any]) -> "World":
        for number, kind, value in results:
            self.learner.offer("Files", self.server.tools[number], kind, json.dumps(value).encode())
        self.learner.start()
        await self.learner.close()
        return self

    def schema(self, number: int = 0) -> Any:
        name = self.server.tools[number].tool_name
        return answered(Discovery(self.catalog, self.outputs), "getTool", ["files", name]).get("outputSchema")

    def types(self) -> str:
        return declare_server(self.server, outputs=self.outputs)


def tool(name: str = "t", **fields: Any) -> ToolEntry:
    return ToolEntry(name, name, input_schema={"type": "object"}, **fields)


async def test_what_clients_cache_never_changes_by_it() -> None:
    world = World(tool())
    before = declarations_in_budget(world.catalog, 16_000).text, declare_server(world.server)
    await world.saw((0, "value", {"rows": ROWS}))
    assert (declarations_in_budget(world.catalog, 16_000).text, declare_server(world.server)) == before
    assert "Observed from 1 result," in world.types() and "Observed" not in str(before)


async def test_given_goes_before_declared_and_declared_before_observed() -> None:
    declared = {"type": "object", "properties": {"id": {"type": "string"}}}
    given = Given(NUMBER, examples=(Example({"path": "*/ x"}, {"id": 1}),), effect="read")
    tools = tool("a", output_schema=declared, given=given), tool("b", output_schema=declared), tool("c")
    world = await World(*tools).saw(*((number, "value", {"id": 1}) for number in range(3)))
    misfit = "the newest: at /id: declared string."
    assert [world.schema(0), world.schema(1)] == [
        {
            **NUMBER,
            "description": "Given by the user. 1 of 1 results did not fit what the server declares; "
            + misfit,
            "examples": [{"id": 1}],
        },
        {
            **declared,
            "$comment": "Declared by the server. 1 of 1 results did not fit what is declared; " + misfit,
        },
    ]
    assert world.schema(2)["properties"] == {"id": {"type": "integer"}}
    text = world.types()
    assert "Given by the user." in text and "did not fit what is declared" in text
    assert '@example {"path": "*\\/ x"} → {"id": 1}' in text and "as the user says: read" in text
    assert "Given by the user." in declare_server(world.server), (
        "what is given is stable, and clients are told"
    )


async def test_json_in_texts_is_said_by_its_content_schema() -> None:
    world = await World(tool("rows"), tool("mixed"), tool("full")).saw(
        (0, "text", json.dumps(ROWS)),
        (1, "text", "[1]"),
        (1, "text", "none"),
        (2, "result", {"content": []}),
        (2, "value", {"id": 1}),
    )
    assert world.schema(0)["contentSchema"]["items"]["required"] == ["id", "name"]
    assert world.schema(1)["type"] == "string" and "contentSchema" not in world.schema(1)
    assert [member.get("title") for member in world.schema(2)["anyOf"]] == [None, "McpToolResult"]
    text = world.types()
    assert "Promise<JsonText<" in text and "mixed(input?: {}): Promise<string>" in text


async def test_parsed_texts_are_values() -> None:
    world = await World(tool("rows"), unwrap="json").saw((0, "json", ROWS), (0, "text", "none"))
    assert [member["type"] for member in world.schema()["anyOf"]] == ["array", "string"]


def test_a_boxed_output_is_taken_out_where_the_settings_say_so() -> None:
    kept = {"$defs": {"N": {"type": "integer"}}}
    entry = tool(
        output_schema={
            "type": "object",
            "properties": {"value": {"$ref": "#/$defs/N"}},
            "required": ["value"],
            "x-dedalus-box": {"field": "value"},
            **kept,
        }
    )
    boxed = World(entry, unbox=True).server.tools[0]
    assert (boxed.box, boxed.output_schema) == ("value", {"$ref": "#/$defs/N", **kept})
    assert World(entry).server.tools[0].box is None


def test_an_overlay_that_would_be_two_servers_is_refused(tmp_path: Path) -> None:
    servers = {name: {"command": "true"} for name in ("a b", "a_b")}
    made = parse_settings({"mcpServers": servers, "cellblock": {"state_dir": str(tmp_path)}})
    assert load_overlays(made.overlay_dir, servers) == {}
    made.overlay_dir.mkdir(parents=True)
    (made.overlay_dir / "a_b.toml").write_text('[tools.wipe]\nclass = "read"\n')
    with pytest.raises(ConfigError, match="that of two servers, 'a b' and 'a_b'"):
        load_overlays(made.overlay_dir, servers)


WHOLE = """\
# A comment.
[tools.list]
class = "read"

[tools."read-file"]
json_text = true
output = '''
{"type": "object", "properties": {"id": {"type": "integer"}}}
'''
examples = '''
[{"input": {"path": "a"}, "output": null}, {"input": {}}]
'''
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "files.toml"


def test_a_whole_file(file: Path) -> None:
    file.write_text(WHOLE, "utf-8")
    assert read_overlay(file).tools == {
        "list": Given(effect="read"),
        "read-file": Given(
            {"type": "object", "properties": {"id": {"type": "integer"}}},
            json_text=True,
            examples=(Example({"path": "a"}), Example({})),
        ),
    }


@pytest.mark.parametrize(
    ("text", "what", "line", "column"),
    [
        ("[tools.a]\nclass = reed\n", "Invalid value", 2, 9),
        ("[tools.a]\n\n  class = 'reed'\n", 'class: "read", "write" or "destructive" is needed', 3, 11),
        ("[tools.b]\nclass = 'read'\n[tools.'a b']\nclas = 'read'\n", "a b.clas: unknown key", 4, 1),
        ("x = 1\n", "x: unknown key", 1, 1),
        (
            "[tools.a]\noutput = '''\n{\n  \"type\": oops\n}\n'''\n",
            "output: it is no JSON: Expecting value in line 2 of it",
            2,
            10,
        ),
        ("[tools.a]\noutput = '{'\n", "output: it is no JSON", 2, 10),
        ("[tools.a]\noutput = { type = 'object' }\n", "output: it must be JSON in a text", 2, 10),
        ('[tools.a]\noutput = \'{"type": "objekt"}\'\n', "output: it is no JSON Schema", 2, 10),
        (
            '[tools.a]\noutput = """\n{"properties": {\n  "b": {"type": "string"},\n  "c": {"type": "strin"}}}\n"""\n',
            '"strin" is not valid',
            2,
            10,
        ),
        ("[tools.a]\noutput = '[]'\n", "output: it is no JSON Schema", 2, 10),
        ("[tools.a]\njson_text = 1\n", "json_text: true or false is needed", 2, 13),
        ("[tools.a]\nexamples = '[{}]'\n", "example 1 must have input", 2, 12),
        ("[tools.a]\nexamples = '''\n[{\"input\": {}},\n {\"in\": 1}]\n'''\n", "example 2 must have", 2, 12),
        ("[tools.a]\nexamples = '{}'\n", "examples: it must be a list", 2, 12),
    ],
)
def test_a_mistake_has_its_place(file: Path, text: str, what: str, line: int, column: int) -> None:
    file.write_text(text, "utf-8")
    with pytest.raises(ConfigError) as caught:
        read_overlay(file)
    assert what in caught.value.message
    assert f"{file}:{line}:{column}: " in caught.value.message


def test_a_file_that_is_no_text(file: Path) -> None:
    file.write_bytes(b"\xff\xfe")
    with pytest.raises(ConfigError):
        read_overlay(file)


def test_a_new_file_is_valid_says_nothing_and_can_be_filled_in(file: Path) -> None:
    schema = {"type": "object", "properties": {"path": {"type": "string"}}}
    hostile = "]\n[tools.x]\nclass = 'read'\u2028'''"
    text = new_overlay(
        "files",
        [
            (
                ToolEntry("read-file", "read", "Reads.\n" + hostile, input_schema=schema),
                ToolOutput("observed", "Observed from 2 results.", schema=schema),
            ),
            (
                ToolEntry(hostile, "x", hostile, input_schema={"description": hostile}),
                ToolOutput("observed", hostile, document={"description": hostile}),
            ),
            (ToolEntry('quote " and \\', "quote"), None),
            (ToolEntry("\ud800", "y"), None),
        ],
    )
    assert set(tomllib.loads(text)["tools"]) == {"read-file", 'quote " and \\'}
    assert all(table == {} for table in tomllib.loads(text)["tools"].values())
    lines = text.splitlines()
    start = lines.index("# output = '''")
    end = lines.index("# '''", start)
    filled = [line.removeprefix("# ") if start <= at <= end else line for at, line in enumerate(lines)]
    file.write_text("\n".join(filled), "utf-8")
    assert read_overlay(file).tools["read-file"].output_schema == schema


@pytest.mark.parametrize("name", ["../../etc/passwd", "a/b", "..", "", "\x00", "My Files"])
def test_a_server_name_stays_in_its_folder(tmp_path: Path, name: str) -> None:
    assert overlay_file(tmp_path, name).parent == tmp_path


SECRET = {
    "type": "hiv",
    "ident": 1,
    "alice_medical": {"at": "2001-01-01"},
    "rows": [{"Ignore_rules": 1, "n": 1}],
}
PLAIN = {"type": "flu", "ident": 2, "rows": [{"n": 1}]}


@pytest.mark.parametrize(
    ("by", "asks", "learn", "shown", "hidden"),
    [
        *(
            (("", ""), who, "samples", "alice_medical Ignore_rules ident", "")
            for who in ("cli", "token", "stdio:x")
        ),
        (("oauth:a", "oauth:a"), "oauth:a", "samples", "alice_medical Ignore_rules ident", ""),
        # What one alone has shown is shown to that one, and no value to anybody as soon as there are two.
        (("oauth:a", "oauth:b"), "oauth:a", "samples", "alice_medical Ignore_rules ident", "hiv flu 2001-01"),
        (("oauth:a", "oauth:b"), "oauth:b", "samples", "ident rows n type", "hiv flu alice Ignore 2001-01"),
        (("oauth:a", "oauth:b"), "oauth:c", "samples", "ident rows n type", "hiv flu alice Ignore 2001-01"),
        (("oauth:a", "token:ci"), "token", "samples", "ident rows n type", "hiv flu alice Ignore 2001-01"),
        (("token", "token:ci"), "token:ci", "samples", "ident rows n type", "hiv flu alice Ignore 2001-01"),
        (("token", "token:ci"), "cli", "samples", "alice_medical Ignore_rules ident", "hiv flu 2001-01"),
        (("oauth:a", "oauth:a"), "oauth:b", "samples", "", "ident hiv flu alice Ignore 2001-01"),
        # What 0.1.0 has learnt may be anybody's.
        ((None, "oauth:b"), "oauth:b", "samples", "ident rows n type", "hiv flu alice Ignore 2001-01"),
        ((None, "oauth:b"), "oauth:c", "samples", "", "ident hiv flu alice Ignore 2001-01"),
        ((None, "cli"), "cli", "samples", "alice_medical Ignore_rules ident", ""),
        # The user says so of a server; values stay out.
        (
            ("oauth:a",) * 2,
            "oauth:b",
            {"Files": "shared"},
            "alice_medical Ignore_rules",
            "hiv flu 2001-01",
        ),
    ],
)
async def test_what_one_principal_alone_has_shown_stays_with_it(
    tmp_path: Path, by: Sequence[str | None], asks: str, learn: Any, shown: str, hidden: str
) -> None:
    world = World(
        tool(),
        tool("declared", output_schema={"type": "object", "additionalProperties": {"type": "integer"}}),
        learn=learn,
    )
    for value, whose in zip((SECRET, PLAIN), by, strict=True):
        # Each in a process of its own: what is kept says whose it is.
        async with learning(tmp_path, learn=learn) as learner:
            for entry in world.server.tools:
                body = json.dumps(value).encode()
                if whose is None:
                    # Of 0.1.0, without a mark.
                    learner._offers.put(Offer("Files", entry, "value", body, ""))  # pyright: ignore[reportPrivateUsage]
                else:
                    learner.offer("Files", entry, "value", body, whose)
    async with learning(tmp_path, learn=learn) as learner:
        known = KnownOutputs(learner)
        # Others ask before and after.
        for who in ("oauth:a", "oauth:b", "cli", asks, "oauth:a", asks):
            world.outputs = known.of(who)
            world.types()
        text = world.types() + json.dumps([world.schema(), world.schema(1)])
    assert all(word in text for word in shown.split()), text
    assert not any(word in text.replace("declared", "") for word in hidden.split()), text


def test_the_marks_of_principals_tell_nobody_who_they_are() -> None:
    assert mark_of("") == mark_of("token") == mark_of("stdio:x") != mark_of("token:x") != mark_of("anybody")
    assert "alice" not in mark_of("oauth:alice")
