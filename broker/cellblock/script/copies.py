"""Writes copies of a script's own functions where it calls them, or hands them on, by their names.

Only there is it known what their parameters are: `const name = (one) => one.name; list.map(name)`. Types `any`, which
hide what is known, have blanks in their place. Nothing runs what is written here.
"""

from __future__ import annotations

import re
from bisect import bisect_right
from collections.abc import Iterable, Iterator
from itertools import accumulate, islice
from typing import Final

from tree_sitter import Node

from cellblock.script.meanings import Meanings
from cellblock.script.trees import arguments_of, field

MAX_PIECES: Final = 400
"""Bounds the pieces of a script with copies, four for each copy; with more there are none."""

MAX_COPIED_BYTES: Final = 2_000
"""Bounds the functions that are copied."""

_COPIED: Final = frozenset(["arrow_function", "function_expression", "function_declaration"])
_OWN: Final = re.compile(rb"\b(?:this|arguments)\b")
_ANY: Final = re.compile(
    r"(?::[ ]?| as )(?:any\b(?:\[\])*|Array<any>|Record<string, any>)(?=\s*(?:[=;,{\n]|\)\s*(?:[.\[:{=]|\?\.)))"
)
"""Fits types of names, and of what something is read of: what a tool is given may be so on purpose."""


def without_any(code: str) -> str:
    """Gives a TypeScript script with blanks for each `any` that may go, so that all stands where it stood."""
    return _ANY.sub(lambda kind: " " * len(kind[0]), code)


class Copies:
    """Holds a script with copies of functions in it.

    Args:
        source: The script.
        meanings: What its expressions stand for.
        calls: Its calls, in the order of the text.

    Attributes:
        text: The script with its copies; None where there are none.
    """

    def __init__(self, source: bytes, meanings: Meanings, calls: Iterable[Node]) -> None:
        uses = sorted(_uses(meanings, calls), key=lambda use: use[0].start_byte)
        pieces = list(islice(_pieces(source, uses, 0, len(source)), MAX_PIECES)) if uses else []
        self._pieces = pieces if len(pieces) < MAX_PIECES else []
        self._starts = list(accumulate((len(text) for _, text in self._pieces), initial=0))[:-1]
        self.text = b"".join(text for _, text in self._pieces) if self._pieces else None

    def origin(self, byte: int) -> tuple[int, int]:
        """Gives the byte of the script that one of the text with copies is, and how often it stands there."""
        number = bisect_right(self._starts, byte) - 1
        at = self._pieces[number][0] + byte - self._starts[number]
        return at, sum(start <= at < start + len(text) for start, text in self._pieces)


def _uses(meanings: Meanings, calls: Iterable[Node]) -> Iterator[tuple[Node, Node]]:
    """Gives the names in calls that stand for functions which can be copied there, and the functions."""
    for call in calls:
        for name in filter(None, (field(call, "function"), *arguments_of(call)[:1])):
            function = meanings.function(name) if name.type == "identifier" else None
            if function is not None and function.type in _COPIED and not _is_in(name, function):
                is_small = function.end_byte - function.start_byte <= MAX_COPIED_BYTES
                if is_small and _OWN.search(function.text or b"") is None:
                    yield name, function


def _is_in(name: Node, function: Node) -> bool:
    return function.start_byte <= name.start_byte < function.end_byte


def _pieces(
    source: bytes, uses: list[tuple[Node, Node]], start: int, end: int, within: tuple[Node, ...] = ()
) -> Iterator[tuple[int, bytes]]:
    """Gives a part of a script in pieces, with the place of each, and copies of the functions that it uses in it."""
    for name, function in uses:
        is_here = start <= name.start_byte and name.end_byte <= end and function not in within
        # A function that is copied itself stays as it is: what it is given is known in its copies alone.
        if is_here and (within or not any(_is_in(name, other) for _, other in uses)):
            yield start, source[start : name.start_byte]
            yield name.start_byte, b"("
            yield from _pieces(source, uses, function.start_byte, function.end_byte, (*within, function))
            yield name.start_byte, b")"
            start = name.end_byte
    yield start, source[start:end]
