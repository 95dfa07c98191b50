"""`cellblock types`, `search` and `inspect`: names in every form, and a way on when there is none."""

from __future__ import annotations

import re

import pytest

from cellblock.app.cli.tools import search_text
from cellblock.base.errors import ConfigError
from cellblock.base.terminal import Painter
from cellblock.tools.catalog.model import Catalog, Example, Given, ServerEntry, ToolEntry, Withheld
from cellblock.tools.catalog.outputs import ToolOutput
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

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


def catalog() -> Catalog:
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
    found = inspect_tool(catalog(), name)
    assert (found["serverId"], found["toolName"], found["inputSchema"]) == ("my-files", "read-file", SCHEMA)
    assert (found["name"], found["outputSchema"]) == ("mcp__My Files__read-file", {"type": "object"})
    assert "note" not in found


def test_inspect_says_null_where_no_output_is_declared() -> None:
    found = inspect_tool(catalog(), "my-files.list")
    assert found["outputSchema"] is None
    assert found["note"].startswith(
        "No output schema defined by the upstream server. Inspect the return value"
    )
    assert list(found)[:4] == ["name", "description", "inputSchema", "outputSchema"]


def test_inspect_keeps_declared_given_and_observed_schemas_apart() -> None:
    given = Given(output_schema={"title": "Mine"}, examples=(Example({"path": "a"}, "text"),))
    seen = ToolOutput("observed", "Observed from 1 result.", schema={"type": "string"}, samples=1)
    for declared in (None, {"type": "object"}):
        tool = ToolEntry("read", "read", "Reads.", {"readOnlyHint": True}, SCHEMA, declared, given=given)
        server = ServerEntry("s", "S", "s", tools=(tool,))
        found = inspect_tool(Catalog(1, {"s": server}), "read", observed=lambda _server, _tool: seen)
        assert found["outputSchema"] == declared
        assert found["givenOutputSchema"]["title"] == "Mine"
        assert found["observedOutputSchema"] == {"description": "Observed from 1 result.", "type": "string"}
        assert ("note" in found) == (declared is None)
        assert found["examples"] == [{"input": {"path": "a"}, "output": "text"}]
        assert found["annotations"] == {"readOnlyHint": True}
        assert found["output"]["source"] == "given"


def test_what_is_found_is_declared_within_a_budget() -> None:
    names = [f"read_file_{number}" for number in range(60)]
    long = "Reads a file. " * 60
    tools = tuple(ToolEntry(name, name, long, None, SCHEMA) for name in names)
    hits = find_tools(Catalog(1, {"s": ServerEntry("s", "S", "s", tools=tools)}), "read file", limit=60)
    text = declare_found(hits)
    assert len(text) < MAX_FOUND_CHARS + 60 * 20 + 2_000
    declared = [name for name in names if f"function {name}(" in text]
    named = re.findall(r"s\.(read_file_\d+)", text.partition("// Found too")[2])
    assert declared and named and sorted(declared + named) == sorted(names)


def test_list_servers_tells_what_there_is_and_what_is_not() -> None:
    found = list_servers(catalog())
    assert [(server["module"], server["tools"]) for server in found["servers"]] == [
        ("@codemode/servers/my-files", 2),
        ("@codemode/servers/mail", 1),
    ]
    assert found["notConnected"] == {"wiki": "HTTP 401"}


def test_an_ambiguous_name_lists_the_choices() -> None:
    with pytest.raises(ConfigError, match=r"my-files\.list, mail\.list"):
        inspect_tool(catalog(), "list")


def test_a_near_miss_is_suggested() -> None:
    with pytest.raises(ConfigError, match=r"Did you mean .*my-files\.read-file"):
        inspect_tool(catalog(), "my-files.red-file")


def test_where_nothing_is_near_it_says_how_to_search() -> None:
    with pytest.raises(ConfigError, match="Try `cellblock search`"):
        inspect_tool(catalog(), "qqqq")
    with pytest.raises(ConfigError, match="Try search_tools"):
        inspect_tool(catalog(), "qqqq", finder="search_tools")


def test_types_of_one_server_or_all() -> None:
    one = show_types(catalog(), ["mail"])
    assert 'declare module "@codemode/servers/mail"' in one and "my-files" not in one
    assert 'declare module "@codemode/servers/my-files"' in show_types(catalog(), [])


def test_a_server_that_is_not_connected_says_why() -> None:
    with pytest.raises(ConfigError, match="HTTP 401"):
        find_server(catalog(), "wiki")
    with pytest.raises(ConfigError, match="HTTP 401"):
        find_server(catalog(), "Our Wiki")
    with pytest.raises(ConfigError, match="Did you mean mail"):
        find_server(catalog(), "mial")


def test_search_finds_and_is_restricted() -> None:
    best = search_tools(catalog(), "read file", server=None, limit=5)
    assert best[0]["toolName"] == "read-file"
    assert {hit["serverId"] for hit in search_tools(catalog(), "list", server="mail", limit=5)} == {"mail"}
    assert search_text(best, Painter(None)).startswith("my-files.read-file  Reads a file.")
    assert search_text([], Painter(None)) == "nothing found"


def test_inspect_says_that_a_tool_is_not_as_pinned() -> None:
    tool = ToolEntry("read", "read", "Reads.", None, SCHEMA)
    server = ServerEntry("s", "S", "my s", tools=(tool,), unpinned={"read": "it is new"})
    assert "cellblock approve 'my s'" in inspect_tool(Catalog(1, {"s": server}), "s.read")["warning"]
    assert "warning" not in inspect_tool(catalog(), "mail.list")


def test_a_tool_that_is_left_out_is_said_to_be() -> None:
    withheld = (Withheld("read-it", "read_it", "it has changed", "Ask the user."),)
    server = ServerEntry("s", "S", "s", withheld=withheld)
    for name in ("s.read-it", "read_it", "mcp__s__read_it"):
        with pytest.raises(ConfigError) as caught:
            inspect_tool(Catalog(1, {"s": server}), name)
        assert "it has changed" in caught.value.message and caught.value.hint == "Ask the user."
