"""Lines finds lines and columns of a script: as the engine counts them, and from those who count otherwise.

Every position that an agent reads counts as V8 does: lines from 1, ended by LF, CR, CRLF, U+2028 or U+2029, and columns
from 1 in UTF-16 units. A byte order mark at the start is a character of the agent's text, and so has a column.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections.abc import Iterable
from itertools import islice
from typing import Final

SCRIPT_NAME: Final = "script.js"
"""Names a script that is no file, in the places that a response tells."""

BYTE_ORDER_MARK: Final = "\ufeff"

MAX_SEPARATORS: Final = 10_000
"""Bounds the U+2028 and U+2029 of one text that `CompilerPlaces` knows; these cost 10 ms, and no script has so
many."""

_PLAIN_NAME: Final = re.compile(r'[^\x00-\x1f\x7f"\\\ud800-\udfff]+')

_LINE_END: Final = re.compile("\r\n|[\n\r\u2028\u2029]")
_SEPARATOR: Final = re.compile(rb"\xe2\x80[\xa8\xa9]")

TAB_COLUMNS: Final = 2
"""Says how wide a tab is to Deno's parser, wherever in a line it stands."""


def is_plain_name(name: str) -> bool:
    """Says whether a script's name can stand in places as it is: nothing in it is written otherwise within JSON."""
    return _PLAIN_NAME.fullmatch(name) is not None


def with_plain_ends(source: bytes) -> bytes:
    """Returns UTF-8 in which only LF ends lines: every line begins at the byte at which it begins in `source`."""
    source = _with_plain_returns(source)
    return source.replace(b"\xe2\x80\xa8", b"  \n").replace(b"\xe2\x80\xa9", b"  \n")


def _with_plain_returns(source: bytes) -> bytes:
    if source.count(b"\r") > source.count(b"\r\n"):
        source = source.replace(b"\r\n", b" \n").replace(b"\r", b"\n")
    return source


def line_of(text: str, line: int) -> str:
    """Gives the text of a line, as the engine counts them from 1; "" where there is none."""
    lines = _LINE_END.split(text)
    return lines[line - 1] if 0 < line <= len(lines) else ""


def units(text: str) -> int:
    """Gives the length of a text without lone surrogates in UTF-16 units."""
    return len(text) if text.isascii() else len(text.encode("utf-16-le")) // 2


def places(lines: bytes, offsets: Iterable[int]) -> dict[int, tuple[int, int]]:
    """Gives line and column of each byte offset in UTF-8 in which only LF ends lines.

    Each is counted on from the one before: a line may be a whole megabyte long.
    """
    found: dict[int, tuple[int, int]] = {}
    at, line, column = 0, 1, 1
    for offset in sorted(offsets):
        ends = lines.count(b"\n", at, offset)
        if ends:
            at, line, column = lines.rfind(b"\n", at, offset) + 1, line + ends, 1
        column += units(lines[at:offset].decode("utf-8", "replace"))
        at = offset
        found[offset] = line, column
    return found


def place(text: str, index: int) -> tuple[int, int]:
    """Gives line and column of the character at `index` of `text`."""
    offset = len(text[:index].encode())
    # With that character, which may be the LF of a CRLF.
    return places(with_plain_ends(text[: index + 1].encode()), [offset])[offset]


def parsed_place(text: str, line: int, column: int) -> tuple[int, int]:
    """Turns a place in `text` as Deno's parser gives it in syntax errors into one of the engine's.

    To it only LF ends a line, and columns are characters, a tab being `TAB_COLUMNS` of them. It is given no byte
    order mark, so `text` must have none. A place outside of `text` is given back as it is.
    """
    lines = text.split("\n", line)
    if not 0 < line <= len(lines):
        return line, column
    here = lines[line - 1]
    within = bisect_left(
        range(len(here)), column - 1, key=lambda at: at + (TAB_COLUMNS - 1) * here.count("\t", 0, at)
    )
    return place(text, sum(len(before) + 1 for before in lines[: line - 1]) + within)


class CompilerPlaces:
    """Turns places in a text as compilers give them into the engine's: to compilers U+2028 and U+2029 end no line.

    So do Deno, where it has compiled TypeScript, and the language server protocol. (After a separator in a string,
    template or comment Deno's source maps are wrong by themselves.) Made once for a text: a place then costs one
    bisection, however long the text and its lines are.
    """

    def __init__(self, text: str) -> None:
        source = text.encode()
        separators = [found.start() for found in islice(_SEPARATOR.finditer(source), MAX_SEPARATORS)]
        self._separators = [*places(_with_plain_returns(source), separators).values()] if separators else []

    def place(self, line: int, column: int) -> tuple[int, int]:
        """Turns a line and a column from 1 into those that the engine counts."""
        before = bisect_left(self._separators, (line, column))
        if before:
            last_line, last_column = self._separators[before - 1]
            column -= last_column if last_line == line else 0
        return line + before, column
