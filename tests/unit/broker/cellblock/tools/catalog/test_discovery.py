"""Answers of `@codemode/discovery` (section 4): fields by detail, errors with a hint, hostile arguments."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cellblock.base.errors import ScriptError, ServerNotFound, ToolNotFound
from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry
from cellblock.types.discovery import MAX_SEARCH_LIMIT, Discovery, DiscoveryCache

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

NAMES = {"toolName": "read-file", "exportName": "read_file"}
DESCRIBED = {**NAMES, "description": "Reads a file.", "annotations": {"readOnlyHint": True}}
FULL = {**DESCRIBED, "inputSchema": {"type": "object"}, "outputSchema": {"type": "string"}}


def ask(operation: Any, *arguments: Any) -> Any:
    answer = Discovery(CATALOG).answer(operation, list(arguments))
    json.dumps(answer)
    return answer


def test_list_servers() -> None:
    assert ask("listServers") == [
        {"serverId": "files", "serverName": "Files", "capabilities": ["tools"]},
        {"serverId": "git", "serverName": "Git"},
    ]
    assert Discovery(Catalog()).answer("listServers", []) == []


def test_describe_server() -> None:
    assert ask("describeServer", "files") == {
        "serverId": "files",
        "serverName": "Files",
        "capabilities": ["tools"],
        "description": "Access to files.",
        "version": "1.0",
    }
    assert ask("describeServer", "git") == {"serverId": "git", "serverName": "Git"}


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"detail": "name"}, NAMES),
        ({"detail": "description"}, DESCRIBED),
        ({"detail": "full"}, FULL),
        ({}, DESCRIBED),
        (None, DESCRIBED),
        ({"unknown": 1}, DESCRIBED),
    ],
)
def test_detail_levels(options: Any, expected: dict[str, Any]) -> None:
    bare, read = ask("listTools", "files", options)
    assert read == expected
    assert bare == {"toolName": "bare", "exportName": "bare"}
    results = ask("searchTools", "read file", options)["results"]
    assert {"serverId": "files", **expected} in results


def test_get_tool_by_either_name_in_full() -> None:
    assert ask("getTool", "files", "read-file") == FULL
    assert ask("getTool", "files", "read_file") == FULL


def test_search_within_one_server_and_with_a_limit() -> None:
    found = ask("searchTools", "files")
    assert found["query"] == "files"
    assert {result["serverId"] for result in found["results"]} == {"files", "git"}
    only = ask("searchTools", "files", {"serverId": "git"})["results"]
    assert [result["toolName"] for result in only] == ["log"]
    assert len(ask("searchTools", "files", {"limit": 1.0})["results"]) == 1
    assert len(ask("searchTools", "files", {"limit": 10**9})["results"]) <= MAX_SEARCH_LIMIT


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


@pytest.mark.parametrize(
    "arguments",
    [
        ("describeServer",),
        ("describeServer", None),
        ("describeServer", ["files"]),
        ("getTool", "files"),
        ("getTool", "files", {"a": 1}),
        ("searchTools", 5),
        ("listTools", "files", "name"),
        ("listTools", "files", []),
        ("listTools", "files", {"detail": "everything"}),
        ("listTools", "files", {"detail": ["name"]}),
        ("listTools", "files", {"detail": None}),
        ("searchTools", "x", {"serverId": 1}),
        ("searchTools", "x", {"limit": 0}),
        ("searchTools", "x", {"limit": -1}),
        ("searchTools", "x", {"limit": 1.5}),
        ("searchTools", "x", {"limit": True}),
        ("searchTools", "x", {"limit": "3"}),
    ],
    ids=str,
)
def test_wrong_arguments_are_errors_of_the_script(arguments: tuple[Any, ...]) -> None:
    with pytest.raises(ScriptError) as caught:
        ask(*arguments)
    assert type(caught.value) is ScriptError and caught.value.hint


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
