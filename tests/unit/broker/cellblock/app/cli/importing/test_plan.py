"""What becomes of each server that was found, and what is taken for a secret."""

from pathlib import Path
from typing import Any

import pytest

from cellblock.app.cli.importing.entries import Found
from cellblock.app.cli.importing.plan import Secrets, looks_secret, make_plan, runs_cellblock
from cellblock.app.config.load import parse_settings
from cellblock.app.config.references import Resolver


def server_found(name: str, **entry: Any) -> Found:
    return Found(name, entry, "cursor", Path("/c.json"), ("mcpServers", name), {}, None)


RUN_CELLBLOCK: list[dict[str, Any]] = [
    {"command": "/opt/x/bin/cellblock", "args": ["connect"]},
    {"command": "uvx", "args": ["cellblock[search]>=0.1", "connect"]},
    {"command": "/usr/bin/uvx", "args": ["--from", "./cellblock.whl", "--offline", "cellblock"]},
    {"command": "uv", "args": ["tool", "run", "cellblock"]},
    {"command": "pipx", "args": ["run", "cellblock", "serve", "--stdio"]},
    {"command": "/venv/bin/python3.12", "args": ["-I", "-m", "cellblock.cli", "connect"]},
    {"command": "env", "args": ["A=b", "cellblock", "connect"]},
    {"args": ["cellblock", "connect"]},
    {"url": "http://127.0.0.1:7433/mcp"},
    {"url": "http://localhost:7433/mcp"},
    {"url": "http://LocalHost:7433/"},
    {"url": "https://[::1]:7433/mcp"},
    {"url": "http://127.1.2.3:7433/mcp"},
]
RUN_OTHERS: list[dict[str, Any]] = [
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
]
"""What only has the name in it."""


@pytest.mark.parametrize(
    ("entry", "known"), [*((one, True) for one in RUN_CELLBLOCK), *((one, False) for one in RUN_OTHERS)]
)
def test_cellblock_itself_is_known(entry: dict[str, Any], known: bool) -> None:
    assert runs_cellblock(entry) is known


def test_a_slip_is_not_imported_and_editors_keys_are_left_behind() -> None:
    servers = [
        server_found("slipped", command="x", argss=["y"]),
        server_found("well", command="x", alwaysAllow=[], learntIn2027=True, _args=[]),
    ]
    slipped, well = make_plan(servers, {}).steps
    assert (slipped.fate, slipped.why) == (
        "unusable",
        "argss: unknown key. Did you mean args? Rename it, or take it out.",
    )
    assert (well.fate, well.entry) == ("added", {"command": "x"})
    parse_settings({"mcpServers": {"well": well.entry}})


def test_a_server_without_a_name_keeps_none_of_the_others_back() -> None:
    nameless, well = make_plan([server_found(" ", command="x"), server_found("well", command="x")], {}).steps
    assert (nameless.fate, nameless.why, well.fate) == ("unusable", "it has no name", "added")


@pytest.mark.parametrize(
    ("name", "value", "expected"),
    [
        ("GITHUB_TOKEN", "x1", True),
        ("X", "ghp_0123456789abcdef", True),
        ("X", "eyJhbGciOiJI.eyJzdWIiOiIx.abc", True),
        ("X", "0123456789abcdef0123456789abcdef", True),
        ("DATABASE", "postgres://u:pw@h/x", True),
        ("API_KEY", "${env:KEY}", False),
        ("Authorization", "Bearer ${KEY}", False),
        ("Authorization", "Bearer ${KEY:-x} sk-0123456789abcdef", True),
        ("KEY_FILE", "/home/me/.ssh/id", False),
        ("USE_AUTH", "true", False),
        ("TOKEN_LIMIT", "4096", False),
        ("TOKEN", "", False),
        ("HOME", "/home/me", False),
        ("PACKAGE", "a-package-with-a-long-name-and-version-2024", False),
        ("X", "a" * 1_000_000, False),
        ("X", "eyJ" * 300_000, False),
        ("X", "eyJ-" * 300_000, False),
        ("LOG_LEVEL", "debug", False),
        ("PACKAGE", "@modelcontextprotocol/server-filesystem", False),
        ("URL", "https://example.com/a/long/path/without/any/secret", False),
    ],
    ids=lambda value: str(value)[:40],
)
def test_what_looks_like_a_secret(name: str, value: str, expected: bool) -> None:
    assert looks_secret(name, value) is expected


ENTRIES: dict[str, dict[str, Any]] = {
    "one": {"env": {"TOKEN": "first-1", "LEVEL": "debug"}, "args": ["--token=abc-def", "-v", "name"]},
    "two": {"env": {"TOKEN": "second-2"}},
    "three": {"env": {"TOKEN": "first-1"}},
    "four": {"url": "https://me:p%40ss-word@x.example/mcp?token=a%2Bb-c&token=other-1&q=1"},
    "five": {"headers": {"X-Api-Key": "k-1", "Accept": "x", "Authorization": "Basic dXNlcjpwYXNz"}},
    "six": {"args": ["--url", "https://u:pw-12@h/?key=secret-5", 7]},
}


def test_references_stand_for_what_was_there() -> None:
    secrets = Secrets()
    hidden = {name: secrets.taken_out(name, entry)[0] for name, entry in ENTRIES.items()}
    assert hidden["one"]["env"]["TOKEN"] == hidden["three"]["env"]["TOKEN"] == "${env:TOKEN}"
    assert hidden["two"]["env"]["TOKEN"] == "${env:TWO_TOKEN}"
    assert not any(secret in str(hidden) for secret in secrets.variables.values())
    resolver = Resolver(None, environment=secrets.variables)
    assert (resolver.resolve(hidden, ()), resolver.problems) == (ENTRIES, [])
