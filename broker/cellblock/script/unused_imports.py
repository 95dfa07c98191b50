"""Finds the names that a TypeScript script imports or exports and that are only types.

Without the word `type` nothing tells that an imported name is one, so TypeScript and Deno drop every imported name that
no value position uses. Here it is blanked; the import itself stays, for what its module does.
"""

from __future__ import annotations

import re
import time
from dataclasses import dataclass, field
from typing import Final

from tree_sitter import Node

_VALUES: Final = frozenset({"identifier", "shorthand_property_identifier"})
_BINDING: Final = frozenset(
    {
        "array_pattern",
        "catch_clause",
        "optional_parameter",
        "pair_pattern",
        "required_parameter",
        "rest_pattern",
    }
)
_IN_NAME: Final = rb"[\w$\x80-\xff\\]"

Span = tuple[int, int]


class NotErasable(ValueError):
    """Tells that blanks would change what a program does, or that it is not known whether they would."""


@dataclass(slots=True)
class _Import:
    """Holds one statement: local names and what to blank for each, and what to blank when none is left."""

    start: int
    end: int
    bare: Span
    names: dict[bytes, Span] = field(default_factory=dict[bytes, Span])
    default: bytes | None = None


class ImportedNames:
    """Collects while the tree is walked, answers afterwards."""

    def __init__(self, source: bytes) -> None:
        self.types: set[bytes] = set()
        self._source = source
        self._imports: list[_Import] = []
        self._exported: set[bytes] = set()

    def add_types(self, statement: Node) -> None:
        """Takes the names of an `import type`."""
        clause = _child(statement, "import_clause")
        for child in clause.children if clause is not None else []:
            inner = child.named_children if child.type == "named_imports" else [child]
            self.types |= {self._text(_local(each)) for each in inner}

    def add(self, statement: Node) -> list[Span]:
        """Takes any other import, and returns what to blank of it in any case."""
        clause, word = _child(statement, "import_clause"), _child(statement, "from")
        if clause is None or word is None:
            return []
        found = _Import(statement.start_byte, statement.end_byte, (clause.start_byte, word.end_byte))
        spans: list[Span] = []
        children = [child for child in clause.children if child.type != "comment"]
        for at, child in enumerate(children):
            if child.type == "identifier":
                comma = children[at + 1] if at + 1 < len(children) else child
                found.default = self._text(child)
                found.names[found.default] = (child.start_byte, comma.end_byte)
            elif child.type == "namespace_import":
                start = children[at - 1].start_byte if at else child.start_byte
                found.names[self._text(_local(child))] = (start, child.end_byte)
            elif child.type == "named_imports":
                for name, span, is_type in self._specifiers(child):
                    if is_type:
                        self.types.add(name)
                        spans.append(span)
                    else:
                        found.names[name] = span
        if found.names:
            self._imports.append(found)
        return spans

    def add_exports(self, statement: Node) -> list[Span]:
        """Takes an export of values: the `type` names in it, to blank.

        Raises:
            NotErasable: See `unused`.
        """
        spans: list[Span] = []
        clause = _child(statement, "export_clause")
        for specifier, span, is_type in self._specifiers(clause, local=False) if clause is not None else []:
            if is_type:
                spans.append(span)
            elif _child(statement, "from") is None:
                self._exported.add(specifier)
        value = statement.child_by_field_name("value")
        if value is not None and value.type == "identifier":
            self._exported.add(self._text(value))
        return spans

    def unused(self, root: Node, blanked: bytes, deadline: float) -> list[Span]:
        """Gives what to blank of imports whose names nothing uses.

        Args:
            root: The tree.
            blanked: The script without its types.
            deadline: In this thread's CPU time.

        Raises:
            NotErasable: A type is exported like a value, or an imported name is declared again in some scope: Deno
                knows what is meant.
            TimeoutError: The deadline has passed.
        """
        if self._exported & self.types:
            raise NotErasable("export of a type")
        left = {name for each in self._imports for name in each.names}
        if not left:
            return []
        one_of = b"|".join(re.escape(name) for name in sorted(left))
        statements = {each.start: each.end for each in self._imports}
        pattern = re.compile(rb"(?<!%s)(?:%s)(?!%s)" % (_IN_NAME, one_of, _IN_NAME))
        ends = sorted(statements.items())
        at = 0
        for match in pattern.finditer(blanked):
            while at < len(ends) and ends[at][1] <= match.start():
                at += 1
            if match[0] not in left or (at < len(ends) and ends[at][0] <= match.start()):
                continue
            if time.thread_time() > deadline:
                raise TimeoutError
            node = root.descendant_for_byte_range(match.start(), match.end())
            if node is not None and _binds(node):
                raise NotErasable("a name of an import with another meaning in places")
            if node is not None and node.type in _VALUES:
                left.discard(match[0])
        spans: list[Span] = []
        for each in self._imports:
            unused = each.names.keys() & left
            if len(unused) == len(each.names):
                spans.append(each.bare)
            else:
                spans += [each.names[name] for name in unused]
        return spans

    def _specifiers(self, clause: Node, *, local: bool = True) -> list[tuple[bytes, Span, bool]]:
        """Reads `{ a, type b as c }`: the name, what to blank for it with its comma, and whether it is a type."""
        found: list[tuple[bytes, Span, bool]] = []
        children = [child for child in clause.children if child.type != "comment"]
        for at, child in enumerate(children):
            if child.type in ("import_specifier", "export_specifier"):
                comma = children[at + 1] if children[at + 1].type == "," else child
                named = _local(child) if local else (child.child_by_field_name("name") or child)
                is_type = child.children[0].type == "type"
                found.append((self._text(named), (child.start_byte, comma.end_byte), is_type))
        return found

    def _text(self, node: Node) -> bytes:
        return self._source[node.start_byte : node.end_byte]


def _binds(node: Node) -> bool:
    """Says whether a name is declared there, so that uses of it may not be of the import."""
    if node.type == "shorthand_property_identifier_pattern":
        return True
    parent = node.parent if node.type == "identifier" else None
    if parent is None:
        return False
    declared = parent.child_by_field_name("name") if parent.type == "variable_declarator" else None
    return parent.type in _BINDING or declared == node


def _child(node: Node, kind: str) -> Node | None:
    return next((child for child in node.children if child.type == kind), None)


def _local(specifier: Node) -> Node:
    """Gives the name that an import gives in the script: always the last in it."""
    return specifier.children[-1] if specifier.children else specifier
