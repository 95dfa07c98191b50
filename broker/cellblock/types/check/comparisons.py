"""Reads what the compiler says of comparisons that can never be true: with a value that a declared enum does not have.

Only such counts. The compiler says the same of a script's own constants, and of what an `if` around has excluded; and a
script that compares with several names for the same thing, of which one is declared, is right.
"""

from __future__ import annotations

import json
import re
from functools import cached_property
from typing import Final

from tree_sitter import Node

from cellblock.base.suggest import nearest_names
from cellblock.script.trees import field
from cellblock.types.check.parsed import AROUND, text_of

COMPARISON: Final = frozenset({2367, 2678})
"""Lists the codes of comparisons with operators, and in a `switch`."""

_OF_ARGUMENT: Final = 2345

_SAID: Final = re.compile(
    r"(?:This comparison appears to be unintentional because the types|Type|Argument of type) '(.*?)' "
    r"(?:and|is not comparable to type|is not assignable to parameter of type) '(.*)'(?: have no overlap)?\.",
    re.DOTALL,
)
_SEEKING: Final = frozenset([b"includes", b"indexOf", b"lastIndexOf"])
_QUOTED: Final = r'"(?:[^"\\\n]|\\.)*+"'
_OTHERS: Final = r"-?\d[\d.]*+|true\b|false\b|null\b"
_TEXT: Final = re.compile(_QUOTED)
_LITERAL: Final = rf"(?:{_QUOTED}|{_OTHERS})"
# A text or a comment without an end is taken to the end, so that no other search begins within it.
_ENDED: Final = rf"(?:{_QUOTED}?|{_OTHERS})"
_UNION: Final = re.compile(
    rf"/\*[^*]*+(?:\*++[^*/][^*]*+)*+(?:\*++/?)?|{_ENDED}(?>(?:\s*+\|\s*+{_ENDED})*)", re.DOTALL
)
_PRINTED: Final = re.compile(rf"{_LITERAL}(?>(?: \| {_LITERAL})*)")

_COMPARED: Final = re.compile(rb"""(?:[!=]==?|\bcase)\s*+["'`]([^"'`]++)|["'`]([^"'`]++)["'`]\s*+[!=]==?""")
"""Matches a comparison with a text, on either side."""

_GIVEN: Final = rb"""(?<![\w$])%s\s*(?:\?\?=|:|=)(?![=>])[^;\n]{0,200}["'`]"""
_TEXT_IN: Final = re.compile(rb"""["'`]""")
_ENDS: Final = (b";", b"{", b"}")
_END: Final = re.compile(rb"[;{}]")


def may_compare(number: int, node: Node) -> bool:
    """Says whether a complaint is about a comparison: with an operator, in a `switch`, or with the elements of
    a list."""
    return number in COMPARISON or (number == _OF_ARGUMENT and _operands(node) is not None)


class Comparisons:
    """Looks at the comparisons of one script.

    Args:
        code: Its text.
        declarations: What it was checked against.
    """

    def __init__(self, code: bytes, declarations: str) -> None:
        self._code = code
        self._declarations = declarations

    def foreign(self, message: str, node: Node) -> tuple[str, tuple[str, ...], Node] | None:
        """Gives the text that a comparison is with, the texts of the enum, all as they are declared, and what has it;
        None unless the enum, and not the value, is declared.

        Args:
            message: The compiler's.
            node: What it is about.
        """
        said, operands = _SAID.fullmatch(message), _operands(node)
        if said is None or operands is None:
            return None
        one, other = said.groups()
        for value, union, of in ((one, other, operands[1]), (other, one, operands[0])):
            shown = self._declarations.partition(f"\ntype {union} = ")[2].partition(";")[0] or union
            # Of a union that has something else, none.
            printed = frozenset(re.findall(_LITERAL, shown) if _PRINTED.fullmatch(shown) else ())
            if printed and _TEXT.fullmatch(value) is not None:
                choices = self._choices(value, printed)
                if choices and not self._is_own(of) and not self._is_covered(node, value, choices):
                    return value, choices, of
        return None

    @cached_property
    def _unions(self) -> list[frozenset[str]]:
        found = {match[0] for match in _UNION.finditer(self._declarations)}
        return [frozenset(re.findall(_LITERAL, text)) for text in sorted(found) if text[0] != "/"]

    def _choices(self, value: str, printed: frozenset[str]) -> tuple[str, ...]:
        """Gives the texts of the declared enum that a type is, or is what an `if` has left of; none where it has the
        value."""
        homes = [union for union in self._unions if printed <= union]
        are_declared = all(any(one in union for union in self._unions) for one in printed)
        if len(printed) == 1 or (not homes and are_declared):
            # Tags of several objects, or what is left of them.
            homes = [*(homes or [printed]), *(union for union in self._unions if value in union)]
        if not homes or any(value in union for union in homes):
            return ()
        return tuple(sorted(one for one in min(homes, key=len) if one.startswith('"')))

    def _is_own(self, of: Node) -> bool:
        """Says whether what is compared may have a text, or a type, that the script itself has given."""
        if of.type not in ("member_expression", "identifier"):
            return _TEXT_IN.search(of.text or b"") is not None
        return re.search(_GIVEN % re.escape(text_of(field(of, "property") or of)), self._code) is not None

    def _is_covered(self, node: Node, value: str, choices: tuple[str, ...]) -> bool:
        """Says whether the declared text that was meant is compared with beside this, if it is known which."""
        start = max(self._code.rfind(end, 0, node.start_byte) for end in _ENDS)
        beside = _END.split(self._code[start + 1 :], maxsplit=1)[0]
        compared = {json.dumps((one or other).decode()) for one, other in _COMPARED.findall(beside)}
        near = nearest_names(value, choices, limit=1)
        return not compared.isdisjoint(near or choices)


# ---- in the tree -------------------------------------------------------------------------------------------


def _operands(node: Node) -> tuple[Node, Node] | None:
    """Gives what is compared, in the order of the compiler's message."""
    parent = node.parent
    one, other = node, None
    if node.type == "binary_expression":
        one, other = field(node, "left"), field(node, "right")
    elif parent is not None and parent.type == "switch_case":
        switch = parent.parent.parent if parent.parent is not None else None
        other = field(switch, "value")
    elif parent is not None and parent.type == "arguments":
        function = field(parent.parent, "function")
        if text_of(field(function, "property")) in _SEEKING:
            other = field(function, "object")
    return (_bare(one), _bare(other)) if one is not None and other is not None else None


def _bare(node: Node) -> Node:
    while node.type in AROUND and node.named_children:
        node = node.named_children[0]
    return node
