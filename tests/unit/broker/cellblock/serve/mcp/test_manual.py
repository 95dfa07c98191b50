"""What agents are told first: the manual, the instructions, and which servers and functions there are."""

import re
from dataclasses import replace
from random import Random
from typing import Any

import pytest

from cellblock.app.assembly import front_config
from cellblock.app.config.load import parse_settings
from cellblock.base.settings.sections import LimitRange
from cellblock.base.settings.settings import LimitSettings, Profile, Settings
from cellblock.run.request import KEYS
from cellblock.serve.mcp.manual import (
    INSTRUCTIONS_CHARS,
    OPENING_CHARS,
    PURPOSE,
    RULES,
    by_use,
    deviations,
    instructions,
    left_out,
    listed_within,
    manual,
    opening,
    rows_within,
)
from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry
from support.params import mostly

MAX_CHARS = 5_000
"""About 1,250 tokens: what an agent is asked to read before its first script."""

DEFAULTS = front_config(Settings())


def catalog_of(functions: dict[str, list[str]], *absent: str) -> Catalog:
    servers = {
        name: ServerEntry(name, name, name, tools=tuple(ToolEntry(tool, tool) for tool in tools))
        for name, tools in functions.items()
    }
    return Catalog(1, servers, dict.fromkeys(absent, "HTTP 401"))


def numbered(servers: int, absent: int) -> Catalog:
    functions = [f"tool_{number}" for number in range(5)]
    known = {f"server-{number}": functions for number in range(servers)}
    return catalog_of(known, *(f"absent-{number}" for number in range(absent)))


def words_of(text: str) -> list[str]:
    return re.findall(r"[\w-]+", text)


def phrases(text: str) -> set[tuple[str, ...]]:
    """Each five words in a row."""
    words = [word.lower() for word in words_of(text)]
    return set(zip(*(words[at:] for at in range(5)), strict=False))


@pytest.mark.parametrize("profile", ["default", "extended"])
@pytest.mark.parametrize(("servers", "absent"), [(0, 0), (3, 1), (60, 0), (400, 0), (3, 400), (400, 400)])
def test_the_instructions_are_short_and_repeat_nothing_of_the_description(
    servers: int, absent: int, profile: Profile
) -> None:
    catalog = numbered(servers, absent)
    text = instructions(catalog, profile)
    assert len(text) <= INSTRUCTIONS_CHARS and text == instructions(catalog, profile)
    told = opening(catalog)
    assert not phrases(f"{told}\n{manual(DEFAULTS)}") & phrases(text)
    ids = {*catalog.servers, *catalog.unavailable}
    shown, named = ids & set(words_of(told)), ids & set(words_of(text))
    assert not shown & named, "each server is named by one of the two"
    assert (shown == ids) == (max(servers, absent) <= 3 or (servers, absent) == (60, 0))
    # What neither has room for is counted.
    assert shown | named == ids or "more." in text
    assert bool(named) == (shown != ids)


def test_in_the_profile_proxy_the_names_of_tools_say_which_servers_there_are() -> None:
    assert words_of(instructions(numbered(3, 2), "proxy"))[-4:] == [
        "Not",
        "connected",
        "absent-0",
        "absent-1",
    ]


def test_every_limit_is_told_with_the_settings_own_figures() -> None:
    text = manual(replace(DEFAULTS, limits=LimitSettings(timeout_ms=LimitRange(default=1234, maximum=5678))))
    assert "timeoutMs 1234 (at most 5678) ms" in text
    assert all(key in text for key in KEYS)
    assert len(manual(DEFAULTS)) < MAX_CHARS


SERVERS = {name: {"command": "x"} for name in ("My Files", "mail", "wiki")}


@pytest.mark.parametrize(
    ("schemas", "told"),
    [
        ({}, []),
        ({"unwrap": "json"}, ["parsed from all servers: no JSON.parse"]),
        (
            {"unwrap": {"*": "json", "mail": "bigint"}},
            ["beyond 2^53 come as BigInt from mail", "parsed from all servers: no JSON.parse"],
        ),
        ({"servers": {"My Files": {"unwrap": "json"}, "mail": {}}}, ["parsed from my-files: no JSON.parse"]),
        (
            {
                "unwrap": "json",
                "unbox": True,
                "servers": {"mail": {"unwrap": "spec"}},
            },
            ["parsed from all servers (but not mail)", "comes bare"],
        ),
        ({"unbox": True}, ["comes bare"]),
    ],
)
def test_servers_that_give_results_otherwise_are_named(schemas: dict[str, Any], told: list[str]) -> None:
    config = front_config(parse_settings({"mcpServers": SERVERS, "cellblock": {"schemas": schemas}}))
    for line, part in zip(deviations(config), told, strict=True):
        assert part in line
        assert line in manual(config)


def test_the_extended_profile_is_told_of() -> None:
    told = ["search_tools" in instructions(Catalog(), profile) for profile in ("default", "extended")]
    assert told == [False, True]


def test_agents_are_told_of_the_budget_where_there_is_one() -> None:
    off, on = (
        front_config(parse_settings({"cellblock": {"frontend": frontend}}))
        for frontend in ({}, {"inline_bytes": 12_345})
    )
    assert manual(off) == manual(DEFAULTS)
    assert "result and logs over 12345 bytes" in manual(on)


def test_a_usual_catalog_is_told_whole() -> None:
    functions = {"time": ["now", "convert"], "files": [f"file_{number}" for number in range(14)], "empty": []}
    text = opening(catalog_of(functions, "wiki"))
    assert text.startswith(PURPOSE) and all(rule in text for rule in RULES)
    assert 'import { now } from "@codemode/servers/time";' in text
    rows = ["- time: now, convert", f"- files: {', '.join(functions['files'])}", "- empty: none"]
    assert text.splitlines()[-4:] == [*rows, "Not connected: wiki."]
    assert len(text) <= OPENING_CHARS


def test_how_to_log_in_is_told_where_nothing_else_is_known() -> None:
    catalog = replace(
        catalog_of({"time": ["now"]}, "wiki", "gone"), logins={"wiki": "log in at https://c/wiki"}
    )
    text = opening(catalog)
    told = ["Need a login of your user's own: wiki (log in at https://c/wiki).", "Not connected: gone."]
    assert text.splitlines()[-2:] == told and left_out(catalog) == []
    # With many of them their ids are worth more.
    names = [f"s{number}" for number in range(9)]
    catalog = replace(
        catalog_of({}, *names), logins=dict.fromkeys(names, "log in at https://cellblock.example/")
    )
    assert opening(catalog).splitlines()[-1] == f"Need a login of your user's own: {', '.join(names)}."
    assert left_out(catalog) == []


@pytest.mark.parametrize("seed", mostly(range(8), range(24)))
def test_it_fits_for_any_catalog_and_names_every_server_that_it_can(seed: int) -> None:
    """However many servers and functions there are, and however long their names."""
    random = Random(seed)
    longest = random.choice([5, 30, 300, 1000])
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
    listed, where = rows_within({f"server-{number}": ["name"] * 10 for number in range(100)}, 400)
    assert listed.startswith("server-0, server-1") and listed.endswith(" more") and "listTools" in where
    assert listed_within(["x" * 50] * 3, 10) == "3 in all"
    assert listed_within(["a", "b", "c"], 10) == "a, b, c"


def test_the_example_calls_what_there_is() -> None:
    assert 'import { b } from "@codemode/servers/two";' in opening(
        catalog_of({"one": ["x" * 99], "two": ["b"]})
    )
    assert "No server is connected." in opening(catalog_of({}))


def test_reads_come_before_writes_and_one_of_each_noun_before_two_of_the_same() -> None:
    names = "create_issue get_issue list_issues listUsers drop look_at find_projects"
    tools = [
        *(ToolEntry(name, name) for name in names.split()),
        ToolEntry("audit", "audit", annotations={"readOnlyHint": True}),
        ToolEntry("get_rid", "get_rid", annotations={"readOnlyHint": False}),
    ]
    order = "get_issue listUsers find_projects audit list_issues create_issue drop look_at get_rid"
    assert [tool.export_name for tool in by_use(tools)] == order.split()
    many = catalog_of({"a": ["write_one"], "b": ["write_two", "get_two"]})
    assert 'import { get_two } from "@codemode/servers/b";' in opening(many)


@pytest.mark.parametrize("chars", [1_000, 1_500, OPENING_CHARS])
def test_a_short_one_names_every_server_and_ends_where_its_client_cuts(chars: int) -> None:
    text = opening(catalog_of({f"s{n}": [f"get_{m}" for m in range(20)] for n in range(6)}, "wiki"), chars)
    assert len(text) <= chars and RULES[0] in text and "describe(" in text
    assert all(f"- s{n} (20): get_0" in text for n in range(6)) and "Not connected: wiki." in text
