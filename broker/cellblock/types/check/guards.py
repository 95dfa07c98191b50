"""Finds what a script looks at before it relies on it: such reads are never told, whatever is known of the
value."""

from __future__ import annotations

import re
from typing import Final

from tree_sitter import Node

from cellblock.script.trees import field, operator_of

_MAX_TEXT: Final = 2_000
"""Bounds the bytes of an expression that is compared with others; a longer one is like itself alone."""

_BLANKS: Final = re.compile(rb"\s+")
_PATHS: Final = frozenset({"identifier", "member_expression", "subscript_expression"})
_AROUND: Final = frozenset(
    {"parenthesized_expression", "non_null_expression", "await_expression", "expression_statement"}
)
_NOTHING: Final = frozenset({"undefined", "null"})
_CHOICES: Final = frozenset({"??", "||", "&&"})
_EQUALITIES: Final = frozenset({"==", "!=", "===", "!=="})
_ASKING_CALLS: Final = frozenset({b"Array.isArray", b"Boolean"})
_CONDITIONS: Final = frozenset(
    {"if_statement", "ternary_expression", "while_statement", "do_statement", "for_statement"}
)


class Guards:
    """Holds the guards of one script: `if (a.b)`, `a.b && …`, `a.b ?? …`, `a.b?.c`, `typeof a.b`, `"b" in a`
    and their like.

    One that is written anywhere holds everywhere in the script: a read is told only where nobody asked. Objects that
    the script makes itself count as guarded, too.

    Args:
        root: The script's tree.
    """

    def __init__(self, root: Node) -> None:
        self._asked: set[bytes] = set()
        self._names: set[bytes] = set()
        self._own: set[bytes] = set()
        stack = [root]
        while stack:
            node = stack.pop()
            self._look(node)
            stack.extend(node.named_children)

    def cover(self, name: str, node: Node) -> bool:
        """Says whether a read of a member is guarded. `node` is the member's name, in an expression or a
        pattern."""
        if name.encode() in self._names:
            return True
        parent = node.parent
        if parent is not None and parent.type == "pair_pattern":
            return self._binds_guarded(field(parent, "value"))
        if node.type == "shorthand_property_identifier_pattern":
            return self._binds_guarded(node)
        if parent is None or parent.type not in _PATHS:
            return False
        if _text(parent) in self._asked:
            return True
        read_of = field(parent, "object")
        return (read_of is not None and _text(read_of) in self._own) or self._is_kept_for_later(parent)

    def _binds_guarded(self, bound: Node | None) -> bool:
        """Says whether a pattern gives the member a default, or binds it to a name that is asked for."""
        if bound is None:
            return False
        parent = bound.parent
        if bound.type == "assignment_pattern" or (
            parent is not None and parent.type == "object_assignment_pattern"
        ):
            return True
        return _text(bound) in self._asked

    def _is_kept_for_later(self, read: Node) -> bool:
        """Says whether a value is kept under a name that the script asks for: `const next = page.next; if (next) …`."""
        value, around = read, read.parent
        while around is not None and (
            around.type in ("parenthesized_expression", "await_expression") or operator_of(around) in _CHOICES
        ):
            value, around = around, around.parent
        if around is None or around.type not in ("variable_declarator", "assignment_expression"):
            return False
        kept = field(around, "name") or field(around, "left")
        return kept is not None and kept.id != value.id and _text(kept) in self._asked

    # ---- inside: finding them --------------------------------------------------------------------------

    def _look(self, node: Node) -> None:
        kind = node.type
        if kind == "binary_expression":
            self._look_at_operator(node)
        elif kind == "unary_expression":
            # As the whole answer of a callback, `!a.b` says nothing of whether `b` may be missing.
            is_answer = node.parent is not None and node.parent.type in ("arrow_function", "return_statement")
            if operator_of(node) in ("!", "typeof", "delete") and not is_answer:
                self._ask(field(node, "argument"))
        elif kind == "variable_declarator":
            self._look_at_own(node)
        elif kind in ("assignment_expression", "augmented_assignment_expression"):
            left = field(node, "left")
            if left is not None and left.type == "subscript_expression":
                # Filled by computed names: what it has is not to be known.
                self._own.add(_text(field(left, "object") or left))
        elif kind in _CONDITIONS:
            self._ask(field(node, "condition"))
        elif kind in ("member_expression", "subscript_expression", "call_expression"):
            if any(child.type in ("optional_chain", "?.") for child in node.children):
                self._ask(field(node, "object") or field(node, "function"))
            if kind == "call_expression":
                self._look_at_call(node)

    def _look_at_own(self, declarator: Node) -> None:
        """Notes a variable that begins as an object of the script's own making, which may grow in many ways."""
        name, value = field(declarator, "name"), field(declarator, "value")
        if name is None or value is None or value.type != "object":
            return
        if not any(member.type == "spread_element" for member in value.named_children):
            self._own.add(_text(name))

    def _look_at_operator(self, node: Node) -> None:
        operator, left, right = operator_of(node), field(node, "left"), field(node, "right")
        if left is None or right is None:
            return
        if operator in _CHOICES:
            self._ask(left)
        elif operator in _EQUALITIES:
            for one, other in ((left, right), (right, left)):
                if other.type in _NOTHING:
                    self._ask(one)
        elif operator == "in" and left.type == "string":
            self._names.add(_text(left)[1:-1])

    def _look_at_call(self, node: Node) -> None:
        function, arguments = field(node, "function"), field(node, "arguments")
        if function is None or arguments is None:
            return
        called, given = _text(function), arguments.named_children
        if called in _ASKING_CALLS:
            for argument in given[:1]:
                self._ask(argument)
        elif called.endswith((b"Object.hasOwn", b".hasOwnProperty", b"hasOwnProperty.call")):
            self._names.update(_text(argument)[1:-1] for argument in given if argument.type == "string")
        elif called in (b"Object.assign", b"Object.defineProperty"):
            self._names.update(_keys_in(given))

    def _ask(self, node: Node | None) -> None:
        """Counts an expression that is tested, or the parts of it that are."""
        stack = [node] if node is not None else []
        while stack:
            here = stack.pop()
            if here.type in _PATHS:
                self._asked.add(_text(here))
            elif here.type in _AROUND or operator_of(here) in {"!", *_CHOICES}:
                stack.extend(here.named_children)


def _keys_in(nodes: list[Node]) -> set[bytes]:
    """Gives the keys of the object literals among some arguments, and the texts among them."""
    found: set[bytes] = set()
    for node in nodes:
        if node.type == "string":
            found.add(_text(node)[1:-1])
        for member in node.named_children if node.type == "object" else []:
            found.add(_text(field(member, "key") or member).strip(b"\"'"))
    return found


def _text(node: Node) -> bytes:
    """Gives an expression without blanks and without the question marks of optional chains."""
    if node.end_byte - node.start_byte > _MAX_TEXT:
        return b"@%d" % node.start_byte
    return _BLANKS.sub(b"", node.text or b"").replace(b"?.[", b"[").replace(b"?.", b".")
