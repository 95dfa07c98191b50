"""Holds a script's text with its tree, and finds places in it as the compiler gives them."""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from functools import cached_property
from typing import Final

from tree_sitter import Node

from cellblock.script.lines import CompilerPlaces, units
from cellblock.script.meanings import Meanings
from cellblock.script.trees import field, parse
from cellblock.types.check.guards import Guards
from cellblock.types.check.json_texts import JsonTexts

PARSE_BOUND_SECONDS: Final = 0.3
"""Bounds the thread's own time; a script at the checker's cap of 256 KiB takes 0.1 s."""

MAX_KEYS: Final = 20
"""Bounds the keys of a literal that are looked at beside one that is not declared."""

_LINE_END: Final = re.compile(r"\r\n|\n|\r")
_KEYS: Final = frozenset({"property_identifier", "shorthand_property_identifier", "string"})


class ParsedScript:
    """Holds the text and the tree of one script.

    Args:
        code: Must have no lone surrogate.
        typescript: Whether it is TypeScript and no JavaScript.

    Raises:
        ValueError: It cannot be parsed within `PARSE_BOUND_SECONDS`.
    """

    def __init__(self, code: str, typescript: bool) -> None:
        self.code = code
        self.raw = code.encode()
        self.places = CompilerPlaces(code)
        self._lines = [0, *(match.end() for match in _LINE_END.finditer(code))]
        deadline = time.thread_time() + PARSE_BOUND_SECONDS
        self.root = parse(self.raw, typescript=typescript, is_late=lambda: time.thread_time() > deadline)
        self.meanings = Meanings(self.root, self.raw, time.thread_time() + PARSE_BOUND_SECONDS)

    @cached_property
    def json_texts(self) -> JsonTexts:
        """Knows what the script does with texts that hold JSON."""
        return JsonTexts(self.root, self.raw, self.meanings)

    @cached_property
    def guards(self) -> Guards:
        """Gives what the script looks at before it relies on it."""
        return Guards(self.root)

    def offset(self, line: int, column: int) -> int:
        """Gives the index in `code` of a place that counts from 0, columns in UTF-16 units."""
        if line >= len(self._lines):
            return len(self.code)
        start = self._lines[line]
        end = self._lines[line + 1] if line + 1 < len(self._lines) else len(self.code)
        units = self.code[start:end].encode("utf-16-le")[: column * 2]
        return start + len(units.decode("utf-16-le", "ignore"))

    def text(self, node: Node) -> str:
        """Gives the source text of a node."""
        return self.raw[node.start_byte : node.end_byte].decode("utf-8", "replace")

    def keys_beside(self, key: Node) -> tuple[tuple[str, int, int], ...]:
        """Gives the other keys of the object literal that a key is in."""
        literal = literal_around(key)
        found: list[tuple[str, int, int]] = []
        for member in literal.named_children if literal is not None else []:
            other = field(member, "key") if member.type == "pair" else member
            if other is None or other.type not in _KEYS or other.start_byte == key.start_byte:
                continue
            found.append((self.text(other).strip("\"'"), *self.position(other)))
        return tuple(found[:MAX_KEYS])

    def position(self, node: Node) -> tuple[int, int]:
        """Gives the line and column of a node, from 0, as the compiler counts."""
        before = self.raw[: node.start_byte].decode("utf-8", "replace")
        line = bisect_right(self._lines, len(before)) - 1
        return line, units(before[self._lines[line] :])

    def node(self, start: int, end: int) -> Node | None:
        """Gives the smallest node around a part of `code`."""
        first = len(self.code[:start].encode())
        return self.root.named_descendant_for_byte_range(first, first + len(self.code[start:end].encode()))


def literal_around(key: Node) -> Node | None:
    """Gives the object literal that a key is in."""
    literal: Node | None = key
    while literal is not None and literal.type != "object":
        literal = literal.parent
    return literal
