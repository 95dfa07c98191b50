"""Answers of `@codemode/discovery` (section 4), and of `cellblock types`, `search` and `inspect`."""

import json
import re
from collections.abc import Callable
from typing import Any

import pytest

from cellblock.app.cli.tools import search_text
from cellblock.base.errors import ConfigError, ScriptError, ServerNotFound, ToolNotFound
from cellblock.base.terminal import Painter
from cellblock.tools.catalog.model import (
    Catalog,
    Example,
    Given,
    ServerEntry,
    ToolEntry,
    ToolOutput,
    Withheld,
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
GIT = ServerEntry("git", "Git", "git", tools=(ToolEntry("log", "log", "Shows the history of files."),))
CATALOG = Catalog(1, {"files": FILES, "git": GIT}, {"down": "no such command"})


def ask(operation: Any, *arguments: Any) -> Any:
    answer = Discovery(CATALOG).answer(operation, list(arguments))
    json.dumps(answer)
    return answer


def test_the_number_of_results_is_capped() -> None:
    tools = tuple(ToolEntry(f"find_{number}", f"find_{number}") for number in range(300))
    many = Discovery(Catalog(1, {"s": ServerEntry("s", "S", "s", tools=tools)}))
    assert len(many.answer("searchTools", ["find", {"limit": 10**6}])["results"]) == MAX_SEARCH_LIMIT
    assert len(many.answer("searchTools", ["find"])["results"]) == 10


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
    assert cache.get_or_make(other).answer("listServers", []) == [first.answer("listServers", [])[0]]


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
    assert inspect_tool(lookup_catalog(), name) == {
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


def test_inspect_says_null_where_no_output_is_declared() -> None:
    found = inspect_tool(lookup_catalog(), "my-files.list")
    assert found["outputSchema"] is None
    assert found["note"].startswith(
        "No output schema defined by the upstream server. Inspect the return value"
    )
    assert list(found)[:4] == ["name", "description", "inputSchema", "outputSchema"]


@pytest.mark.parametrize("declared", [None, {"type": "object"}])
def test_inspect_keeps_declared_given_and_observed_schemas_apart(declared: Any) -> None:
    given = Given(output_schema={"title": "Mine"}, examples=(Example({"path": "a"}, "text"),))
    seen = ToolOutput("observed", "Observed from 1 result.", schema={"type": "string"}, samples=1)
    tool = ToolEntry("read", "read", "Reads.", {"readOnlyHint": True}, SCHEMA, declared, given=given)
    catalog = Catalog(1, {"s": ServerEntry("s", "S", "s", tools=(tool,))})
    found = inspect_tool(catalog, "read", observed=lambda _server, _tool: seen)
    assert ("note" in found) == (declared is None)
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
