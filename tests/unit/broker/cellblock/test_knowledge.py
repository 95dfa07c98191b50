"""`cellblock types`, `search` and `inspect`: names in every form, and a way on when there is none."""

from __future__ import annotations

import pytest

from cellblock.catalog.model import Catalog, ServerEntry, ToolEntry, Withheld
from cellblock.errors import ConfigError
from cellblock.knowledge import as_text, find_server, inspect_tool, search_tools, show_types

SCHEMA = {"type": "object", "properties": {"path": {"type": "string"}}, "required": ["path"]}


def catalog() -> Catalog:
    read = ToolEntry("read-file", "read_file", "Reads a file.", None, SCHEMA, {"type": "object"})
    lists = ToolEntry("list", "list", "Lists a folder.", None, SCHEMA)
    files = ServerEntry("my-files", "Files", "My Files", tools=(read, lists))
    mail = ServerEntry("mail", "Mail", "mail", tools=(ToolEntry("list", "list", "Lists mails."),))
    return Catalog(1, {"my-files": files, "mail": mail}, {"wiki": "HTTP 401"})


@pytest.mark.parametrize(
    "name",
    ["read-file", "read_file", "my-files.read-file", "My Files.read_file", "mcp__my-files__read-file"],
)
def test_inspect_takes_every_form_of_a_name(name: str) -> None:
    found = inspect_tool(catalog(), name)
    assert (found["serverId"], found["toolName"], found["inputSchema"]) == ("my-files", "read-file", SCHEMA)


def test_inspect_says_null_where_no_output_is_declared() -> None:
    assert inspect_tool(catalog(), "my-files.list")["outputSchema"] is None


def test_an_ambiguous_name_lists_the_choices() -> None:
    with pytest.raises(ConfigError, match=r"my-files\.list, mail\.list"):
        inspect_tool(catalog(), "list")


def test_a_near_miss_is_suggested() -> None:
    with pytest.raises(ConfigError, match=r"Did you mean .*my-files\.read-file"):
        inspect_tool(catalog(), "my-files.red-file")


def test_types_of_one_server_or_all() -> None:
    one = show_types(catalog(), ["mail"])
    assert 'declare module "@codemode/servers/mail"' in one and "my-files" not in one
    assert 'declare module "@codemode/servers/my-files"' in show_types(catalog(), [])


def test_a_server_that_is_not_connected_says_why() -> None:
    with pytest.raises(ConfigError, match="HTTP 401"):
        find_server(catalog(), "wiki")
    with pytest.raises(ConfigError, match="Did you mean mail"):
        find_server(catalog(), "mial")


def test_search_finds_and_is_restricted() -> None:
    best = search_tools(catalog(), "read file", server=None, limit=5)
    assert best[0]["toolName"] == "read-file"
    assert {hit["serverId"] for hit in search_tools(catalog(), "list", server="mail", limit=5)} == {"mail"}
    assert as_text(best).startswith("my-files.read-file  Reads a file.")
    assert as_text([]) == "nothing found"


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
