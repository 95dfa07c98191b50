"""The manual names every limit, the instructions are short, and both are the same text for the same settings."""

import re
from dataclasses import replace
from typing import Any

import pytest

from cellblock.app.assembly import front_config
from cellblock.app.config.load import parse_settings
from cellblock.base.settings.sections import LimitRange
from cellblock.base.settings.settings import LimitSettings, Profile, Settings
from cellblock.run.request import KEYS
from cellblock.serve.mcp.manual import INSTRUCTIONS_CHARS, deviations, instructions, manual, opening
from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry

MAX_CHARS = 5_000
"""About 1,250 tokens: what an agent is asked to read before its first script."""

DEFAULTS = front_config(Settings())


def catalog_of(functions: int, servers: int, absent: int = 0) -> Catalog:
    tools = tuple(ToolEntry(f"tool_{number}", f"tool_{number}") for number in range(functions))
    entries = {
        name: ServerEntry(name, name, name, tools=tools)
        for name in (f"server-{number}" for number in range(servers))
    }
    return Catalog(1, entries, {f"absent-{number}": "HTTP 401" for number in range(absent)})


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
    catalog = catalog_of(5, servers, absent)
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
    assert words_of(instructions(catalog_of(5, 3, 2), "proxy"))[-4:] == [
        "Not",
        "connected",
        "absent-0",
        "absent-1",
    ]


def test_every_limit_is_told_with_the_settings_own_figures() -> None:
    text = manual(replace(DEFAULTS, limits=LimitSettings(timeout_ms=LimitRange(default=1234, maximum=5678))))
    assert "timeoutMs 1234 (at most 5678) ms" in text
    assert all(key in text for key in KEYS)


def test_it_is_short_enough_to_be_read() -> None:
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
    lines = deviations(config)
    assert len(lines) == len(told)
    for line, part in zip(lines, told, strict=True):
        assert part in line
        assert line in manual(config)


def test_the_extended_profile_is_told_of() -> None:
    assert "search_tools" in instructions(Catalog(), "extended")
    assert "search_tools" not in instructions(Catalog())


def test_agents_are_told_of_the_budget_where_there_is_one() -> None:
    off, on = (
        front_config(parse_settings({"cellblock": {"frontend": frontend}}))
        for frontend in ({}, {"inline_bytes": 12_345})
    )
    assert manual(off) == manual(DEFAULTS)
    assert "result and logs over 12345 bytes" in manual(on)
