"""The manual stands in the instructions, names every limit, and is the same text for the same settings."""

from __future__ import annotations

from typing import Any

import pytest

from cellblock.catalog.model import Catalog, ServerEntry
from cellblock.config import LimitRange, LimitSettings, parse_settings
from cellblock.execution.limits import KEYS
from cellblock.frontend.manual import deviations, instructions, manual

MAX_CHARS = 5_000
"""About 1,250 tokens: what an agent is asked to read before its first script."""


def test_the_instructions_are_the_manual_and_the_servers() -> None:
    limits = LimitSettings()
    catalog = Catalog(1, {"files": ServerEntry("files", "Files", "files")}, {"wiki": "HTTP 401"})
    text = instructions(limits, catalog)
    assert manual(limits) in text
    assert "@codemode/servers/files: 0 tools" in text
    assert "@codemode/servers/wiki: not connected" in text
    assert text == instructions(limits, catalog)


def test_every_limit_is_told_with_the_settings_own_figures() -> None:
    text = manual(LimitSettings(timeout_ms=LimitRange(default=1234, maximum=5678)))
    assert "timeoutMs 1234 (at most 5678) ms" in text
    assert all(key in text for key in KEYS)


def test_it_is_short_enough_to_be_read() -> None:
    assert len(manual(LimitSettings())) < MAX_CHARS


SERVERS = {name: {"command": "x"} for name in ("My Files", "mail", "wiki")}


@pytest.mark.parametrize(
    ("schemas", "told"),
    [
        ({}, []),
        ({"unwrap": "json"}, ["parsed from all servers: no JSON.parse"]),
        ({"servers": {"My Files": {"unwrap": "json"}, "mail": {}}}, ["parsed from my-files: no JSON.parse"]),
        (
            {
                "unwrap": "json",
                "unbox": True,
                "servers": {
                    "mail": {"unwrap": "spec", "tools": {"list": {"unwrap": "json"}}},
                    "wiki": {"tools": {"read": {"unwrap": "spec"}}},
                },
            },
            ["parsed from all servers, mail.list (but not mail, wiki.read)", "comes bare from all servers"],
        ),
        ({"servers": {"local": {"tools": {"add": {"unbox": True}}}}}, ["comes bare from local.add"]),
    ],
)
def test_servers_that_give_results_otherwise_are_named(schemas: dict[str, Any], told: list[str]) -> None:
    settings = parse_settings({"mcpServers": SERVERS, "cellblock": {"schemas": schemas}})
    lines = deviations(settings)
    assert len(lines) == len(told)
    for line, part in zip(lines, told, strict=True):
        assert part in line
        assert line in manual(LimitSettings(), settings)


def test_the_extended_profile_is_told_of() -> None:
    settings = parse_settings({"cellblock": {"frontend": {"profile": "extended"}}})
    assert "search_tools" in instructions(LimitSettings(), Catalog(), settings)
    assert "search_tools gives" not in instructions(LimitSettings(), Catalog(), parse_settings({}))


def test_agents_are_told_of_the_budget_where_there_is_one() -> None:
    off, on = (
        parse_settings({"cellblock": {"outputs": outputs}}) for outputs in ({}, {"inline_bytes": 12_345})
    )
    assert manual(off.cellblock.limits, off) == manual(off.cellblock.limits)
    assert "result and logs over 12345 bytes" in manual(on.cellblock.limits, on)
