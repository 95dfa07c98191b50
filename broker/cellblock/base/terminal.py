"""Colours text for people on a terminal, and for nothing else (https://no-color.org)."""

from __future__ import annotations

import os
from typing import IO, Final

CODES: Final = {
    "bold": "1",
    "dim": "2",
    "red": "31",
    "green": "32",
    "yellow": "33",
    "cyan": "36",
    "reverse": "7",
}
"""Holds the SGR parameters of the standard colours, which follow the terminal's own theme."""


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
