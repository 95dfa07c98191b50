"""What a running daemon takes over of a changed configuration."""

from operator import attrgetter
from typing import Any

import pytest

from cellblock.app.config.load import LIVE, applicable, parse_settings
from cellblock.base.settings.problems import keys_at
from cellblock.base.settings.settings import CellblockSettings


def test_every_live_setting_is_one() -> None:
    for name in LIVE:
        *section, last = name.split(".")
        assert last in keys_at(CellblockSettings, section), name


@pytest.mark.parametrize(
    ("old", "new", "live", "waiting"),
    [
        ({}, {}, [], []),
        ({"typecheck_timeout_ms": 5}, {"typecheck_timeout_ms": 6}, ["typecheck_timeout_ms"], []),
        (
            {"limits": {"timeout_ms": [5, 9]}},
            {"limits": {"timeout_ms": [6, 9], "max_memory_bytes": [9, 9]}},
            ["limits.timeout_ms"],
            ["limits.max_memory_bytes"],
        ),
        ({"pins": {"a": "off"}}, {"pins": "off"}, ["pins", "pins.a"], []),
        ({}, {"pool": {"capacity": 3}, "state_dir": "/x"}, [], ["pool.capacity", "state_dir"]),
        (
            {},
            {"http": {"oauth": {"issuer": "https://a", "audience": "https://b", "jwks_url": "https://c"}}},
            [],
            4,
        ),
    ],
)
def test_what_changes_at_once_and_what_waits(
    old: dict[str, Any], new: dict[str, Any], live: list[str], waiting: Any
) -> None:
    servers = {"a": {"command": "x"}}
    before = parse_settings({"mcpServers": servers, "cellblock": old})
    after = parse_settings({"mcpServers": {**servers, "b": {"command": "y"}}, "cellblock": new})
    made, now, later = applicable(before, after)
    assert now == live
    assert later == waiting if isinstance(waiting, list) else len(later) == waiting
    at_once = attrgetter(
        "servers", "cellblock.typecheck_timeout_ms", "cellblock.limits.timeout_ms", "cellblock.pins"
    )
    waits = attrgetter("cellblock.limits.max_memory_bytes", "cellblock.pool", "state_dir")
    assert (at_once(made), waits(made)) == (at_once(after), waits(before))
