"""Other people's text for terminals: without control characters, and cut to columns."""

from __future__ import annotations

import unicodedata
from typing import Final

CLEAR_TO_END_OF_LINE: Final = "\x1b[K"


def columns(text: str) -> int:
    """How many columns plain text takes."""
    return sum(_width(char) for char in text)


def plain(text: str, width: int) -> str:
    """The text in one line of at most `width` columns, in which nothing can move a cursor or feign another line."""
    taken = 0
    kept: list[str] = []
    for char in text:
        # Also bidirectional controls and other format characters, which would reorder what stands beside.
        shown = char if char.isprintable() else "·"
        if taken + _width(shown) > width:
            while kept and taken > width - 1:
                taken -= _width(kept.pop())
            return "".join(kept) + "…" if width > 0 else ""
        taken += _width(shown)
        kept.append(shown)
        if len(kept) > 4 * width:
            break
    return "".join(kept)


def cell(text: object, width: int, *, right: bool = False) -> str:
    """The text in exactly `width` columns."""
    shown = plain(str(text), width)
    space = " " * (width - columns(shown))
    return space + shown if right else shown + space


def _width(char: str) -> int:
    if unicodedata.combining(char):
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def milliseconds(value: float | None) -> str:
    """A time for people: `3.1 ms`, `2.0 s`, `4 min`."""
    if value is None:
        return "-"
    if value < 10:
        return f"{value:.1f} ms"
    if value < 1000:
        return f"{value:.0f} ms"
    return f"{value / 1000:.1f} s" if value < 60_000 else f"{value / 60_000:.0f} min"
