"""Makes text fit for terminals: visible, cut to columns, and coloured where that is wanted."""

from __future__ import annotations

import json
import os
import re
import unicodedata
from typing import IO, Final

from cellblock.base.visible import TAKE_NO_COLUMN, escaped, is_visible, json_escape, visible

CLEAR_TO_END_OF_LINE: Final = "\x1b[K"

CODES: Final = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "cyan": "36",
    "reverse": "7",
}
"""Holds the SGR parameters of the standard colours, which follow the terminal's own theme (https://no-color.org)."""

# JSON escapes what is below U+0020 by itself. C1 holds one-character forms of escape sequences; the others reorder or
# hide what stands beside, end lines, or (lone surrogates) cannot be written at all.
_OBEYED: Final = re.compile(
    "[\x7f-\x9f\u061c\u200b\u200e\u200f\u2028-\u202e\u2060-\u206f\ufeff\ud800-\udfff\U000e0000-\U000e0fff]"
)

_GAP: Final = re.compile(" {17,}")
"""Finds more spaces than a text has in a row by itself: what follows would stand where nobody looks."""


MAX_INDENT: Final = 60
"""Bounds the spaces that begin a line of a difference: more would push it out of sight."""


def spelled_out(text: str) -> str:
    """Returns text for who has to judge it: invisible characters as escapes, wide gaps as their width."""
    shown = "".join(one if is_visible(one) else escaped(one) for one in text)
    return _GAP.sub(lambda found: f"\\x20{{{len(found[0])}}}", shown)


def spelled_line(line: str) -> str:
    """Returns a line of a difference as `spelled_out`; how far it is indented is seen."""
    sign, rest = line[:1], line[1:]
    at = min(len(rest) - len(rest.lstrip(" ")), MAX_INDENT)
    return spelled_out(sign) + rest[:at] + spelled_out(rest[at:])


def json_text(value: object) -> str:
    """Returns JSON for machines that does nothing to a terminal: what one would obey is escaped, and means the same."""
    text = json.dumps(value, ensure_ascii=False, indent=2)
    return _OBEYED.sub(lambda found: json_escape(found[0]), text)


def harmless(text: str) -> str:
    """Returns the text with its lines; nothing in it can move a cursor, or reorder or push away what stands beside."""
    return visible(text, keep="\n")


_COLOUR: Final = re.compile(rf"(\x1b\[(?:0|(?:{'|'.join(CODES.values())})(?:;\d+)*)m)")


def for_screen(text: str) -> str:
    """Returns text of a command for its terminal: lines and our colours stay, what else does something is escaped."""
    if "\x1b" not in text:
        return visible(text, instead=None, keep="\n\t")
    parts = _COLOUR.split(text)
    parts[::2] = [visible(part, instead=None, keep="\n\t") for part in parts[::2]]
    return "".join(parts)


def draw(stream: IO[str], text: str) -> None:
    """Writes text that moves the cursor, where all that others have written has been through `plain`."""
    getattr(stream, "draw", stream.write)(text)


def columns(text: str) -> int:
    """Returns how many columns plain text takes."""
    if text.isascii():
        return len(text)
    return sum(_width(char) for char in text)


def plain(text: str, width: int) -> str:
    """Returns the text in one line of at most `width` columns, in which nothing can move a cursor or feign another
    line.
    """
    if text.isascii() and text.isprintable():
        return text if len(text) <= width else f"{text[: width - 1]}…" if width > 0 else ""
    taken = 0
    kept: list[str] = []
    for shown in visible(text[: 4 * width + 1], instead="·"):
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
    """Returns the text in exactly `width` columns."""
    shown = plain(str(text), width)
    space = " " * (width - columns(shown))
    return space + shown if right else shown + space


def wrapped(text: str, width: int) -> list[str]:
    """Returns the whole text in lines of at most `width` (at least 1) columns; nothing in them can move a cursor."""
    width = max(1, width)
    lines: list[str] = []
    for line in text.expandtabs(4).splitlines() or [""]:
        taken = 0
        kept: list[str] = []
        for char in visible(line, instead="·"):
            shown = char if _width(char) <= width else "·"
            # Marks that take no column are no reason for a line without end.
            if taken + _width(shown) > width or len(kept) > 4 * width:
                lines.append("".join(kept))
                taken, kept = 0, []
            taken += _width(shown)
            kept.append(shown)
        lines.append("".join(kept))
    return lines


def _width(char: str) -> int:
    if unicodedata.combining(char) or char in TAKE_NO_COLUMN:
        return 0
    return 2 if unicodedata.east_asian_width(char) in "WF" else 1


def milliseconds(value: float | None) -> str:
    """Returns a time for people: `3.1 ms`, `2.0 s`, `4 min`."""
    if value is None:
        return "-"
    if value < 10:
        return f"{value:.1f} ms"
    if value < 1000:
        return f"{value:.0f} ms"
    return f"{value / 1000:.1f} s" if value < 60_000 else f"{value / 60_000:.0f} min"


def is_coloured(stream: IO[str]) -> bool:
    """Says whether colours are wanted in a stream: `NO_COLOR` says no, `FORCE_COLOR` says yes, else it must be a
    terminal.
    """
    if os.environ.get("NO_COLOR"):
        return False
    if os.environ.get("FORCE_COLOR"):
        return True
    return stream.isatty() and os.environ.get("TERM", "") != "dumb"


class Painter:
    """Puts colour around text where it is wanted; for no stream, nowhere."""

    def __init__(self, stream: IO[str] | None) -> None:
        self._on = stream is not None and is_coloured(stream)

    def __call__(self, text: str, *styles: str) -> str:
        """Returns the text in a style of `CODES`, or several."""
        if not self._on or not text:
            return text
        return f"\x1b[{';'.join(CODES[style] for style in styles)}m{text}\x1b[0m"
