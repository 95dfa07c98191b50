"""The opening of the description has all that a first script needs, within what clients pass on, for any catalog."""

from __future__ import annotations

from random import Random

import pytest

from cellblock.serve.mcp.opening import OPENING_CHARS, PURPOSE, RULES, listed_within, opening, rows_within
from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry


def catalog_of(functions: dict[str, list[str]], *absent: str) -> Catalog:
    servers = {
        name: ServerEntry(name, name, name, tools=tuple(ToolEntry(tool, tool) for tool in tools))
        for name, tools in functions.items()
    }
    return Catalog(1, servers, dict.fromkeys(absent, "HTTP 401"))


def test_a_usual_catalog_is_told_whole() -> None:
    functions = {"time": ["now", "convert"], "files": [f"file_{number}" for number in range(14)], "empty": []}
    text = opening(catalog_of(functions, "wiki"))
    assert text.startswith(PURPOSE) and all(rule in text for rule in RULES)
    assert 'import { now } from "@codemode/servers/time";' in text
    rows = ["- time: now, convert", f"- files: {', '.join(functions['files'])}", "- empty: none"]
    assert text.splitlines()[-4:] == [*rows, "Not connected: wiki."]
    assert len(text) <= OPENING_CHARS


@pytest.mark.parametrize("seed", range(40))
def test_it_fits_for_any_catalog_and_names_every_server_that_it_can(seed: int) -> None:
    """However many servers and functions there are, and however long their names."""
    random = Random(seed)
    longest = random.choice([5, 30, 300, 3000])
    functions = {
        f"{'s' * random.randint(1, longest)}{number}": [
            f"{'f' * random.randint(1, longest)}{place}" for place in range(random.choice([0, 1, 9, 90]))
        ]
        for number in range(random.choice([1, 2, 8, 50, 300]))
    }
    absent = ["a" * random.randint(1, longest) for _ in range(random.choice([0, 1, 40]))]
    text = opening(catalog_of(functions, *absent))
    assert len(text) <= OPENING_CHARS
    assert all(rule in text for rule in RULES)
    if sum(len(name) + 9 for name in functions) < 500 and not absent:
        assert all(f"- {name}" in text for name in functions)
    assert text == opening(catalog_of(functions, *absent))


def test_room_is_shared_by_need_and_what_is_left_out_is_counted() -> None:
    """A short list is whole; two long ones get as much as each other, though the first alone could fill the room."""
    functions = {"long": ["name"] * 900, "short": ["one", "two"], "other": ["name"] * 500}
    long, short, other = rows_within(functions, 600)
    assert short == "- short: one, two"
    assert long.startswith("- long (900): name, name") and long.endswith(", …")
    assert other.startswith("- other (500): name, name") and other.endswith(", …")
    assert abs(len(long) - len(other)) <= 10
    assert 560 <= sum(map(len, (long, short, other))) <= 600


def test_without_room_for_functions_the_servers_are_named_and_with_less_counted() -> None:
    functions = {f"server-{number}": ["name"] * 10 for number in range(100)}
    listed, where = rows_within(functions, 400)
    assert listed.startswith("server-0, server-1") and listed.endswith(" more") and "listTools" in where
    assert listed_within(["x" * 50] * 3, 10) == "3 in all"
    assert listed_within(["a", "b", "c"], 10) == "a, b, c"


def test_the_example_calls_what_there_is() -> None:
    assert 'import { b } from "@codemode/servers/two";' in opening(
        catalog_of({"one": ["x" * 99], "two": ["b"]})
    )
    assert "No server is connected." in opening(catalog_of({}))
