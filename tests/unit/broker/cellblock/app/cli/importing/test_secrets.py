"""What is taken for a secret, and that a reference stands for exactly what was there."""

from __future__ import annotations

from typing import Any

import pytest

from cellblock.app.cli.importing.secrets import Secrets, looks_secret
from cellblock.app.config.references import Resolver


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
    shown = str(hidden)
    for secret in secrets.variables.values():
        assert secret not in shown
    resolver = Resolver(None, environment=secrets.variables)
    found = resolver.resolve(hidden, ())
    assert resolver.problems == []
    assert found == ENTRIES
