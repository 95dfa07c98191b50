"""What becomes of each server that was found."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from cellblock.app.cli.importing.clients import Found
from cellblock.app.cli.importing.plan import make_plan, runs_cellblock
from cellblock.app.config.load import parse_settings


def found(name: str, **entry: Any) -> Found:
    return Found(name, entry, "cursor", Path("/c.json"), ("mcpServers", name), {}, None)


@pytest.mark.parametrize(
    "entry",
    [
        {"command": "/opt/x/bin/cellblock", "args": ["connect"]},
        {"command": "uvx", "args": ["cellblock[search]>=0.1", "connect"]},
        {"command": "/usr/bin/uvx", "args": ["--from", "./cellblock.whl", "--offline", "cellblock"]},
        {"command": "uv", "args": ["tool", "run", "cellblock"]},
        {"command": "pipx", "args": ["run", "cellblock", "serve", "--stdio"]},
        {"command": "/venv/bin/python3.12", "args": ["-I", "-m", "cellblock.app.cli", "connect"]},
        {"command": "env", "args": ["A=b", "cellblock", "connect"]},
        {"args": ["cellblock", "connect"]},
        {"url": "http://127.0.0.1:7433/mcp"},
        {"url": "http://localhost:7433/mcp"},
        {"url": "http://LocalHost:7433/"},
        {"url": "https://[::1]:7433/mcp"},
        {"url": "http://127.1.2.3:7433/mcp"},
    ],
)
def test_cellblock_itself_is_known(entry: dict[str, Any]) -> None:
    assert runs_cellblock(entry)


@pytest.mark.parametrize(
    "entry",
    [
        {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", "/home/me/cellblock"]},
        {"command": "uvx", "args": ["mcp-server-git", "--repository", "cellblock"]},
        {"command": "uv", "args": ["run", "server.py", "cellblock"]},
        {"command": "python", "args": ["/srv/cellblock/server.py"]},
        {"command": "/home/me/cellblock/server"},
        {"command": "cellblock-mcp"},
        {"url": "http://127.0.0.1:7434/mcp"},
        {"url": "http://cellblock.example:7433/mcp"},
        {"url": "http://127.0.0.1:7433x/mcp"},
        {},
    ],
)
def test_what_only_has_the_name_in_it_is_no_cellblock(entry: dict[str, Any]) -> None:
    assert not runs_cellblock(entry)


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


def test_a_server_without_a_name_keeps_none_of_the_others_back() -> None:
    nameless, well = make_plan([found(" ", command="x"), found("well", command="x")], {}).steps
    assert (nameless.fate, nameless.why, well.fate) == ("unusable", "it has no name", "added")
