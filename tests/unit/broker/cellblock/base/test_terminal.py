"""Colour where a person looks, and nowhere else."""

from __future__ import annotations

import io

import pytest

from cellblock.base.terminal import Painter, is_coloured


class Screen(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("environment", "screen", "expected"),
    [
        ({}, True, True),
        ({}, False, False),
        ({"NO_COLOR": "1"}, True, False),
        ({"NO_COLOR": ""}, True, True),
        ({"TERM": "dumb"}, True, False),
        ({"FORCE_COLOR": "1"}, False, True),
        ({"FORCE_COLOR": "1", "NO_COLOR": "1"}, True, False),
    ],
)
def test_when_there_is_colour(
    environment: dict[str, str], screen: bool, expected: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("NO_COLOR", "FORCE_COLOR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm")
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    stream = Screen() if screen else io.StringIO()
    assert is_coloured(stream) is expected
    assert Painter(stream)("x", "bold", "red") == ("\x1b[1;31mx\x1b[0m" if expected else "x")
    assert Painter(stream)("") == ""
