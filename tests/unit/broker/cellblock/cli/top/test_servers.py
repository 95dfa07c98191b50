"""Servers, and what is known of their tools."""

from __future__ import annotations

import io
from typing import Any

import pytest

from cellblock.base.terminal import Painter, columns
from cellblock.cli.top.overview import BAR, knowledge, servers
from support.top_data import HOSTILE, bare, server, state


def row(name: str, given: int, declared: int, observed: int, unknown: int) -> dict[str, Any]:
    kinds = {"given": given, "declared": declared, "observed": observed, "unknown": unknown}
    return {"id": name, "tools": sum(kinds.values()), **kinds, "samples": 321, "disagreeing": 0}


@pytest.mark.parametrize("width", [0, 1, 20, 40, 60, 80, 200])
@pytest.mark.parametrize("colours", [False, True])
def test_it_fits_any_window(width: int, colours: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_COLOR", raising=False)
    monkeypatch.setenv("FORCE_COLOR", "1" if colours else "")
    shown = state(knowledge=[row(HOSTILE, 1, 2, 3, 4), row("b", 0, 0, 0, 0)])
    paint = Painter(io.StringIO())
    for line in [*servers(shown, width, paint), *knowledge(shown, width, paint)]:
        assert columns(bare(line)) <= width
        assert bare(line).isprintable() or not line


def test_shares_and_counts() -> None:
    shown = state(knowledge=[row("a", 1, 2, 1, 4), row("empty", 0, 0, 0, 0)])
    _, line, empty, *_ = knowledge(shown, 120, Painter(None))
    assert [line.count(mark) * 8 // BAR for mark in "█▓▒░"] == [1, 2, 1, 4]
    assert "321" in line and "1 given, 2 declared, 1 observed, 4 unknown" in line
    assert "no tools" in empty


def test_results_that_differ_are_told() -> None:
    assert "results differ: 1" in "\n".join(knowledge(state(), 120, Painter(None)))


def test_nothing_is_known() -> None:
    assert "nothing is known yet" in "\n".join(knowledge(state(knowledge=[]), 80, Painter(None)))


def test_a_servers_line() -> None:
    well = server("a", name="wiki", state="ready", reason="", calls={"ok": 5, "failed": 2})
    _, line = servers(state(upstreams=[well]), 120, Painter(None))
    assert line.split() == ["wiki", "2", "7", "2", "4.2", "ms", "9.9", "ms", "1/2", "ready"]
