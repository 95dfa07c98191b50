"""Holds a script's text with its tree: finds places in it as the compiler gives them, and what it does with texts that
hold JSON."""

from __future__ import annotations

import re
import time
from bisect import bisect_right
from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from typing import Final

from tree_sitter import Node

from cellblock.script.lines import CompilerPlaces, units
from cellblock.script.meanings import Meaning, Meanings
from cellblock.script.trees import field, operator_of, parse
from cellblock.tools.catalog.modules import SERVERS_PREFIX
from cellblock.types.check.guards import Guards

PARSE_BOUND_SECONDS: Final = 0.3
"""Bounds the thread's own time; a script at the checker's cap of 256 KiB takes 0.1 s."""

MAX_KEYS: Final = 20
"""Bounds the keys of a literal that are looked at beside one that is not declared."""

MAX_LOOKED_AT: Final = 200
"""Bounds the brackets, loops and parses of one script that are looked at."""

_LINE_END: Final = re.compile(r"\r\n|\n|\r")
_KEYS: Final = frozenset({"property_identifier", "shorthand_property_identifier", "string"})
_PARSE: Final = re.compile(rb"(?<![\w$])(JSON\s*\??\.\s*parse)(?![\w$])")
_TYPEOF: Final = re.compile(rb"(?<![\w$.])(typeof)(?![\w$])")
_BRACKET: Final = re.compile(rb"(?<=[\w$)])\s*(?:\?\.)?(\[)")
_DEFAULT: Final = re.compile(rb"(\?\?|\|\|)(?=\s*\{)")
_SPREAD: Final = re.compile(rb"(\.\.\.)(?=\s*[\w$(])")
_LENGTH: Final = re.compile(rb"\.\s*(length)(?![\w$])")
_LISTING: Final = re.compile(r"(?:^|_)(?:list|search|find|tree)(?:_|$)")
"""Matches names of tools whose text is a list, of which nobody wants to know the characters."""

_LOOP: Final = re.compile(rb"(?<![\w$.])(for)(?=\s*\()")
_IS_ARRAY: Final = re.compile(rb"(?<![\w$.])(Array\s*\.\s*isArray)(?=\s*\()")
_MEMBERS: Final = ("member_expression", "subscript_expression")

Tool = tuple[str, str]
"""Names a tool by its server's id, and the name that it is exported by."""


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

    def other_keys(self, key: Node) -> tuple[tuple[str, int, int], ...]:
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


class JsonTexts:
    """Finds where a script uses a text that holds JSON as if it were the value, beyond what the compiler can say.

    To the compiler such a text is a string: its characters may be read by number, and `?.` or `?? []` guard any read of
    a field. A script that neither parses the text nor asks for its type cannot mean that.

    Args:
        root: The script's tree.
        source: Its text.
        meanings: What its expressions stand for.
    """

    def __init__(self, root: Node, source: bytes, meanings: Meanings) -> None:
        self._root = root
        self._source = source
        self._meanings = meanings

    def tool(self, read: Node | None) -> Tool | None:
        """Names the tool that an expression has its value, or a part of it, from."""
        of = self._meanings.of(read)
        return _tool(of) if of is not None and of.kind == "answer" else None

    def is_handled(self, read: Node | None) -> bool:
        """Says whether the script parses the text that something is read of, or asks for its type, or may do so."""
        of = self._meanings.of(read)
        if of is None:
            return bool(self._parsed)
        if any(parsed is None or _is_same(parsed, of) for parsed in self._parsed):
            return True
        return any(asked is not None and _is_same(asked, of) for asked in self._asked)

    def misread(self, tools: frozenset[Tool]) -> Iterator[tuple[Node, Node]]:
        """Gives each place where the characters of a text of these tools are read by number, or one after the other by
        `for … in`, and where it is asked whether the text is an array: the whole expression, and the text."""
        yield from self._whole(self._reads(), tools)

    def counted(self, tools: frozenset[Tool]) -> Iterator[tuple[Node, Node]]:
        """Gives each place where the characters of a plain text of these tools are taken one after the other, or where
        those of a list are counted: the whole expression, and the text."""
        yield from self._whole(self._one_by_one(), tools)

    def _whole(
        self, reads: Iterator[tuple[Node, Node]], tools: frozenset[Tool]
    ) -> Iterator[tuple[Node, Node]]:
        for around, read in reads:
            of = self._meanings.of(read)
            is_text = of is not None and of.kind == "answer" and not of.inner and _tool(of) in tools
            if is_text and not self.is_handled(read):
                yield around, read

    def _one_by_one(self) -> Iterator[tuple[Node, Node]]:
        for around in self._places(_LOOP):
            if (read := field(around, "right")) is not None:
                yield read, read
        for around in self._places(_SPREAD):
            if around.parent is not None and around.parent.type == "array" and around.named_children:
                yield around, around.named_children[0]
        for around in self._places(_LENGTH):
            read, used = field(around, "object"), around.parent
            tool = self.tool(read)
            asked = used is None or used.type in (
                "binary_expression",
                "unary_expression",
                "parenthesized_expression",
            )
            if read is not None and tool is not None and not asked and _LISTING.search(tool[1]):
                yield around, read

    def tool_read_by(self, node: Node | None) -> Tool | None:
        """Names the tool whose answer is read by the smallest expression around a node."""
        while node is not None:
            if (tool := self.tool(node)) is not None:
                return tool
            around = node.parent
            node = around if around is not None and around.type in _MEMBERS else None
        return None

    # ---- inside --------------------------------------------------------------------------------------

    def _reads(self) -> Iterator[tuple[Node, Node]]:
        for around in self._places(_BRACKET):
            index, read = field(around, "index"), field(around, "object")
            if read is not None and index is not None and index.type != "string":
                yield around, read
        for around in self._places(_LOOP):
            read = field(around, "right")
            if read is not None and any(child.type == "in" for child in around.children):
                yield read, read
        for around in self._places(_DEFAULT):
            if (read := field(around, "left")) is not None:
                yield around, read
        for around in self._places(_IS_ARRAY):
            given = field(around, "arguments")
            if given is not None and given.named_children:
                yield around, given.named_children[0]

    @cached_property
    def _parsed(self) -> list[Meaning | None]:
        """Holds the meaning of what each `JSON.parse` of the script parses; None where that may be anything."""
        given = [field(around, "arguments") for around in self._places(_PARSE)]
        return [self._meanings.of(next(iter(one.named_children), None) if one else None) for one in given]

    @cached_property
    def _asked(self) -> list[Meaning | None]:
        """Holds the meaning of what each `typeof` of the script asks about."""
        asking = [around for around in self._places(_TYPEOF) if operator_of(around) == "typeof"]
        return [self._meanings.of(field(one, "argument")) for one in asking]

    def _places(self, pattern: re.Pattern[bytes]) -> Iterator[Node]:
        """Gives what is around each place that a pattern finds, where that is one word, bracket or name."""
        for match in islice(pattern.finditer(self._source), MAX_LOOKED_AT):
            node = self._root.descendant_for_byte_range(*match.span(1))
            if node is not None and node.parent is not None and node.byte_range == match.span(1):
                yield node.parent


def _is_same(one: Meaning, other: Meaning) -> bool:
    """Says whether one meaning is the very answer that another one is, or is a part of."""
    return one.kind == "answer" and one.call == other.call and not one.inner


def _tool(of: Meaning) -> Tool:
    return of.module.removeprefix(SERVERS_PREFIX), of.export
