"""The declarations in the agent's context: whole servers within the budget, names beyond it, the same bytes always."""

from __future__ import annotations

import subprocess
from pathlib import Path

import deno
import pytest

from cellblock.catalog.model import Catalog, ServerEntry, ToolEntry
from cellblock.catalog.typescript import declare_server, declare_shared
from cellblock.frontend.context import (
    MAX_NAMES,
    declarations_in_budget,
    resource_uri,
    server_of_uri,
)
from recorded_catalogs import recorded_catalog


def server(server_id: str, names: list[str]) -> ServerEntry:
    tools = tuple(ToolEntry(name, name, f"Does {name}.", None, {"type": "object"}) for name in names)
    return ServerEntry(server_id, server_id, server_id, tools=tools)


def catalog_of(*servers: ServerEntry) -> Catalog:
    return Catalog(1, {entry.server_id: entry for entry in servers})


def test_without_servers_it_says_so() -> None:
    assert declarations_in_budget(Catalog(), 1_000) == "No server is connected."


def test_servers_that_fit_are_declared_whole() -> None:
    text = declarations_in_budget(catalog_of(server("a", ["one"]), server("b", ["two"])), 100_000)
    assert 'declare module "@codemode/servers/a"' in text
    assert 'declare module "@codemode/servers/b"' in text
    assert "More servers" not in text


def test_a_server_beyond_the_budget_is_named_with_its_functions_and_its_resource() -> None:
    large, small = server("large", [f"tool_{number}" for number in range(50)]), server("small", ["one"])
    budget = len(declare_server(small, shared=True))
    text = declarations_in_budget(catalog_of(large, small), budget)
    assert 'declare module "@codemode/servers/small"' in text
    assert 'declare module "@codemode/servers/large"' not in text
    assert "tool_49" in text
    assert resource_uri("large") in text


def test_no_budget_names_every_server() -> None:
    text = declarations_in_budget(catalog_of(server("a", ["one"])), 0)
    assert "declare module" not in text
    assert "@codemode/servers/a" in text


def test_the_names_of_one_server_are_capped() -> None:
    many = server("many", [f"tool_{number}" for number in range(MAX_NAMES + 7)])
    assert "and 7 more" in declarations_in_budget(catalog_of(many), 0)


@pytest.mark.parametrize("budget", [0, 16_000, 1_000_000])
def test_equal_catalogs_give_equal_bytes(budget: int) -> None:
    assert declarations_in_budget(recorded_catalog(), budget) == declarations_in_budget(
        recorded_catalog(), budget
    )


def test_the_budget_holds_for_real_servers() -> None:
    text = declarations_in_budget(recorded_catalog(), 16_000)
    declared = text.partition("```ts\n")[2].partition("```")[0]
    assert 0 < len(declared) <= 16_000 + len(declare_shared()) + len(recorded_catalog().servers)
    for server_id in recorded_catalog().servers:
        assert f"@codemode/servers/{server_id}" in text


def test_what_is_shown_compiles(tmp_path: Path) -> None:
    text = declarations_in_budget(recorded_catalog(), 1_000_000)
    file = tmp_path / "context.d.ts"
    file.write_text(text.partition("```ts\n")[2].partition("\n```")[0], encoding="utf-8")
    command = [deno.find_deno_bin(), "check", "--no-config", "--quiet", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("server_id", ["a", "files--2", "with-dash"])
def test_a_resource_uri_gives_its_server_back(server_id: str) -> None:
    assert server_of_uri(resource_uri(server_id)) == server_id


@pytest.mark.parametrize("uri", ["", "file:///etc/passwd", "codemode://servers/a", "codemode://other/a.d.ts"])
def test_other_uris_have_no_server(uri: str) -> None:
    assert server_of_uri(uri) is None
