"""What becomes of each server that was found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from cellblock.cli.importing.clients import Found
from cellblock.cli.importing.plan import make_plan
from cellblock.config.settings import parse_settings


def found(name: str, **entry: Any) -> Found:
    return Found(name, entry, "cursor", Path("/c.json"), ("mcpServers", name), {}, None)


def test_a_slip_is_not_imported_and_editors_keys_are_left_behind() -> None:
    servers = [
        found("slipped", command="x", argss=["y"]),
        found("well", command="x", alwaysAllow=[], learntIn2027=True, _args=[]),
    ]
    slipped, well = make_plan(servers, {}).steps
    assert (slipped.fate, slipped.why) == (
        "unusable",
        "argss: unknown key. Did you mean args? Rename it, or take it out.",
    )
    assert (well.fate, well.entry) == ("added", {"command": "x"})
    parse_settings({"mcpServers": {"well": well.entry}})
    ignoring, _ = make_plan(servers, {}, ignored=["argss"]).steps
    assert (ignoring.fate, ignoring.entry) == ("added", {"command": "x"})
