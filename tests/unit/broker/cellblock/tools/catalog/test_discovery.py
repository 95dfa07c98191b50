"""Answers of `@codemode/discovery` (section 4), and of `cellblock types`, `search` and `inspect`."""

import re
from collections.abc import Callable
from typing import Any

import jsonschema
import pytest

from cellblock.app.cli.tools import search_text
from cellblock.base.errors import ConfigError, ScriptError, ServerNotFound, ToolNotFound
from cellblock.base.terminal import Painter
from cellblock.tools.catalog.model import (
    Catalog,
    Example,
    Given,
    JsonSchema,
    ServerEntry,
    ToolEntry,
    ToolOutput,
    Withheld,
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
from cellblock.types.discovery import MAX_SEARCH_LIMIT, Discovery, DiscoveryCache
from cellblock.types.lookup import (
    MAX_FOUND_CHARS,
    declare_found,
    find_server,
    find_tools,
    inspect_tool,
    list_servers,
    search_tools,
    show_types,
)
from support.discovery import answered

READ = ToolEntry(
    "read-file", "read_file", "Reads a file.", {"readOnlyHint": True}, {"type": "object"}, {"type": "string"}
)
BARE = ToolEntry("bare", "bare")
FILES = ServerEntry(
    "files",
    "Files",
    "files",
    version="1.0",
    description="Access to files.",
    capabilities=("tools",),
    tools=(BARE, READ),
    by_export={"read_file": READ, "bare": BARE},
)
CATALOG = Catalog(
    1,
    {
        "files": FILES,
        "git": ServerEntry(
            "git", "Git", "git", tools=(ToolEntry("log", "log", "Shows the history of files."),)
        ),
    },
    {"down": "no such command"},
)


def ask(operation: Any, *arguments: Any) -> Any:
    return answered(Discovery(CATALOG), operation, list(arguments))


def test_the_number_of_results_is_capped() -> None:
    tools = tuple(ToolEntry(f"find_{number}", f"find_{number}") for number in range(300))
    many = Discovery(Catalog(1, {"s": ServerEntry("s", "S", "s", tools=tools)}))
    assert len(answered(many, "searchTools", ["find", {"limit": 10**6}])["results"]) == MAX_SEARCH_LIMIT
    assert len(answered(many, "searchTools", ["find"])["results"]) == 10


@pytest.mark.parametrize(
    ("arguments", "kind", "word"),
    [
        (("describeServer", "fils"), ServerNotFound, "files"),
        (("describeServer", "down"), ServerNotFound, "no such command"),
        (("describeServer", "__proto__"), ServerNotFound, "listServers"),
        (("listTools", ""), ServerNotFound, "listServers"),
        (("searchTools", "x", {"serverId": "nope!"}), ServerNotFound, "listServers"),
        (("getTool", "files", "read-fil"), ToolNotFound, "read-file"),
        (("getTool", "git", "__meta__"), ToolNotFound, "listTools"),
    ],
)
def test_what_is_not_there(arguments: tuple[Any, ...], kind: type[ScriptError], word: str) -> None:
    with pytest.raises(kind) as caught:
        ask(*arguments)
    assert word in str(caught.value)
    assert caught.value.details["serverId"] == arguments[1] or arguments[0] == "searchTools"


@pytest.mark.parametrize(("given", "said"), [(None, "null"), ("all", '"all"'), (["name"], "no string")])
def test_a_wrong_detail_is_named_as_the_script_has_written_it(given: Any, said: str) -> None:
    with pytest.raises(ScriptError, match=f"^options.detail is {said}[.]"):
        ask("listTools", "files", {"detail": given})


def test_the_cache_keeps_the_newest_catalog_only() -> None:
    cache = DiscoveryCache()
    first = cache.get_or_make(CATALOG)
    assert cache.get_or_make(CATALOG) is first
    other = Catalog(2, {"files": FILES})
    assert cache.get_or_make(other) is not first
    assert answered(cache.get_or_make(other), "listServers", []) == [answered(first, "listServers", [])[0]]


SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


def lookup_catalog() -> Catalog:
    read = ToolEntry("read-file", "read_file", "Reads a file.", None, SCHEMA, {"type": "object"})
    lists = ToolEntry("list", "list", "Lists a folder.", None, SCHEMA)
    files = ServerEntry("my-files", "Files", "My Files", tools=(read, lists))
    mail = ServerEntry("mail", "Mail", "mail", tools=(ToolEntry("list", "list", "Lists mails."),))
    return Catalog(1, {"my-files": files, "mail": mail}, {"wiki": "HTTP 401"}, ids={"Our Wiki": "wiki"})


@pytest.mark.parametrize(
    "name",
    ["read-file", "read_file", "my-files.read-file", "My Files.read_file", "mcp__my-files__read-file"],
)
def test_inspect_takes_every_form_of_a_name(name: str) -> None:
    declaration = (
        "/** Reads a file. */\nexport function read_file(input: { path: string }): Promise<object>;\n"
    )
    found = inspect_tool(lookup_catalog(), name)
    assert list(found)[:4] == ["name", "description", "inputSchema", "outputSchema"]
    assert found == {
        "name": "mcp__My Files__read-file",
        "description": "Reads a file.",
        "inputSchema": SCHEMA,
        "outputSchema": {"type": "object"},
        "module": "@codemode/servers/my-files",
        "exportName": "read_file",
        "serverId": "my-files",
        "toolName": "read-file",
        "declaration": declaration,
        "output": {"note": "Declared by the server.", "source": "declared"},
    }


@pytest.mark.parametrize("declared", [None, {"type": "object"}])
def test_inspect_keeps_declared_given_and_observed_schemas_apart(declared: Any) -> None:
    given = Given(output_schema={"title": "Mine"}, examples=(Example({"path": "a"}, "text"),))
    seen = ToolOutput("observed", "Observed from 1 result.", schema={"type": "string"}, samples=1)
    tool = ToolEntry("read", "read", "Reads.", {"readOnlyHint": True}, SCHEMA, declared, given=given)
    catalog = Catalog(1, {"s": ServerEntry("s", "S", "s", tools=(tool,))})
    found = inspect_tool(catalog, "read", observed=lambda _server, _tool: seen)
    assert found.get("note", "").startswith("No output schema defined by the upstream server. ") == (
        declared is None
    )
    assert found == {
        **found,
        "outputSchema": declared,
        "givenOutputSchema": {"description": "Given by the user.", "title": "Mine"},
        "observedOutputSchema": {"description": "Observed from 1 result.", "type": "string"},
        "examples": [{"input": {"path": "a"}, "output": "text"}],
        "annotations": {"readOnlyHint": True},
        "output": {"note": "Given by the user.", "source": "given"},
    }


def test_what_is_found_is_declared_within_a_budget() -> None:
    names = [f"read_file_{number}" for number in range(60)]
    long = "Reads a file. " * 60
    tools = tuple(ToolEntry(name, name, long, None, SCHEMA) for name in names)
    text = declare_found(
        find_tools(Catalog(1, {"s": ServerEntry("s", "S", "s", tools=tools)}), "read file", limit=60)
    )
    assert len(text) < MAX_FOUND_CHARS + 60 * 20 + 2_000
    declared = [name for name in names if f"function {name}(" in text]
    named = re.findall(r"s\.(read_file_\d+)", text.partition("// Found too")[2])
    assert declared and named and sorted(declared + named) == sorted(names)


def test_list_servers_tells_what_there_is_and_what_is_not() -> None:
    files = {
        "serverId": "my-files",
        "serverName": "Files",
        "module": "@codemode/servers/my-files",
        "tools": 2,
    }
    mail = {"serverId": "mail", "serverName": "Mail", "module": "@codemode/servers/mail", "tools": 1}
    assert list_servers(lookup_catalog()) == {"servers": [files, mail], "notConnected": {"wiki": "HTTP 401"}}


def test_types_of_one_server_or_all() -> None:
    one = show_types(lookup_catalog(), ["mail"])
    assert 'declare module "@codemode/servers/mail"' in one and "my-files" not in one
    assert 'declare module "@codemode/servers/my-files"' in show_types(lookup_catalog(), [])


def test_search_finds_and_is_restricted() -> None:
    best = search_tools(lookup_catalog(), "read file", server=None, limit=5)
    assert best[0]["toolName"] == "read-file"
    mails = search_tools(lookup_catalog(), "list", server="mail", limit=5)
    assert {hit["serverId"] for hit in mails} == {"mail"}
    assert search_text(best, Painter(None)).startswith("my-files.read-file  Reads a file.")
    assert search_text([], Painter(None)) == "nothing found"


def test_inspect_says_that_a_tool_is_not_as_pinned() -> None:
    server = ServerEntry(
        "s",
        "S",
        "my s",
        tools=(ToolEntry("read", "read", "Reads.", None, SCHEMA),),
        unpinned={"read": "it is new"},
    )
    assert "cellblock pins approve 'my s'" in inspect_tool(Catalog(1, {"s": server}), "s.read")["warning"]
    assert "warning" not in inspect_tool(lookup_catalog(), "mail.list")


@pytest.mark.parametrize("name", ["s.read-it", "read_it", "mcp__s__read_it"])
def test_a_tool_that_is_left_out_is_said_to_be(name: str) -> None:
    withheld = (Withheld("read-it", "read_it", "it has changed", "Ask the user."),)
    with pytest.raises(ConfigError) as caught:
        inspect_tool(Catalog(1, {"s": ServerEntry("s", "S", "s", withheld=withheld)}), name)
    assert "it has changed" in caught.value.message and caught.value.hint == "Ask the user."


@pytest.mark.parametrize(
    ("look", "said"),
    [
        (lambda: inspect_tool(lookup_catalog(), "list"), r"my-files\.list, mail\.list"),
        (lambda: inspect_tool(lookup_catalog(), "my-files.red-file"), r"Did you mean .*my-files\.read-file"),
        (lambda: inspect_tool(lookup_catalog(), "qqqq"), "Try `cellblock search`"),
        (lambda: inspect_tool(lookup_catalog(), "qqqq", finder="search_tools"), "Try search_tools"),
        (lambda: find_server(lookup_catalog(), "wiki"), "HTTP 401"),
        (lambda: find_server(lookup_catalog(), "Our Wiki"), "HTTP 401"),
        (lambda: find_server(lookup_catalog(), "mial"), "Did you mean mail"),
    ],
)
def test_a_name_that_is_none_is_told_with_a_way_on(look: Callable[[], object], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        look()


# ---- tool definitions for others -------------------------------------------------------------------------


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
