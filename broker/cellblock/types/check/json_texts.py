"""Finds where a script uses a text that holds JSON as if it were the value, beyond what the compiler can say.

To the compiler such a text is a string: its characters may be read by number, and `?.` or `?? []` guard any read of a
field.
A script that neither parses the text nor asks for its type cannot mean that.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from typing import Final

from tree_sitter import Node

from cellblock.script.meanings import Meaning, Meanings
from cellblock.script.trees import field, operator_of
from cellblock.tools.catalog.modules import SERVERS_PREFIX

MAX_LOOKED_AT: Final = 200
"""Bounds the brackets, loops and parses of one script that are looked at."""

_PARSE: Final = re.compile(rb"(?<![\w$])JSON\s*\??\.\s*parse(?![\w$])")
_TYPEOF: Final = re.compile(rb"(?<![\w$.])typeof(?![\w$])")
_BRACKET: Final = re.compile(rb"(?<=[\w$)])\s*(?:\?\.)?\[")
_LOOP: Final = re.compile(rb"(?<![\w$.])for(?=\s*\()")
_IS_ARRAY: Final = re.compile(rb"(?<![\w$.])Array\s*\.\s*isArray(?=\s*\()")
_MEMBERS: Final = ("member_expression", "subscript_expression")

Tool = tuple[str, str]
"""Names a tool by its server's id, and the name that it is exported by."""


class JsonTexts:
    """Knows the texts of one script.

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
        for around, read in self._reads():
            of = self._meanings.of(read)
            is_text = of is not None and of.kind == "answer" and not of.inner and _tool(of) in tools
            if is_text and not self.is_handled(read):
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
        for match in _matches(_BRACKET, self._source):
            node = self._root.descendant_for_byte_range(match.end() - 1, match.end())
            around = node.parent if node is not None and node.type == "[" else node
            index, read = field(around, "index"), field(around, "object")
            if around is not None and read is not None and index is not None and index.type != "string":
                yield around, read
        for match in _matches(_LOOP, self._source):
            node = self._root.descendant_for_byte_range(match.start(), match.end())
            around, read = (node.parent, field(node.parent, "right")) if node is not None else (None, None)
            if (
                around is not None
                and read is not None
                and any(child.type == "in" for child in around.children)
            ):
                yield read, read

        for match in _matches(_IS_ARRAY, self._source):
            node = self._root.descendant_for_byte_range(match.start(), match.end())
            around = node.parent if node is not None else None
            given = field(around, "arguments")
            if around is not None and given is not None and given.named_children:
                yield around, given.named_children[0]

    @cached_property
    def _parsed(self) -> list[Meaning | None]:
        """Holds the meaning of what each `JSON.parse` of the script parses; None where that may be anything."""
        found: list[Meaning | None] = []
        for match in _matches(_PARSE, self._source):
            node = self._root.descendant_for_byte_range(match.start(), match.end())
            call = node.parent if node is not None else None
            given = field(call, "arguments") if call is not None and call.type == "call_expression" else None
            first = given.named_children[0] if given is not None and given.named_children else None
            found.append(self._meanings.of(first))
        return found

    @cached_property
    def _asked(self) -> list[Meaning | None]:
        """Holds the meaning of what each `typeof` of the script asks about."""
        found: list[Meaning | None] = []
        for match in _matches(_TYPEOF, self._source):
            node = self._root.descendant_for_byte_range(match.start(), match.end())
            asking = node.parent if node is not None else None
            if asking is not None and operator_of(asking) == "typeof":
                found.append(self._meanings.of(field(asking, "argument")))
        return found


def _matches(pattern: re.Pattern[bytes], source: bytes) -> Iterator[re.Match[bytes]]:
    return islice(pattern.finditer(source), MAX_LOOKED_AT)


def _is_same(one: Meaning, other: Meaning) -> bool:
    """Says whether one meaning is the very answer that another one is, or is a part of."""
    return one.kind == "answer" and one.call == other.call and not one.inner


def _tool(of: Meaning) -> Tool:
    return of.module.removeprefix(SERVERS_PREFIX), of.export
