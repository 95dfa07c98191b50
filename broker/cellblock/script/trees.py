"""Parses scripts into trees, follows the fields of their nodes, and bounds how deeply a script may nest.

The worker's parsers recurse, and crash at the end of their stack. A worker that crashes is contained, but its answer
helps nobody; so such a script is refused before it gets one. Measured with the wheel's Deno, each form alone:
parentheses crash from 780 levels of the syntax tree on, objects and functions from 1300, types from 2100; chains of
operators, of calls and of conditions from 4800.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from functools import lru_cache
from typing import Final

import tree_sitter_javascript
import tree_sitter_typescript
from tree_sitter import Language, Node, Parser, Query, QueryCursor

_EXACT: Final = 1024
"""Bounds what is read at once of the end of a source, and of the text of a node, in bytes: no character lies across a
border there."""

_SIZES: Final = (*range(_EXACT), *(_EXACT << power for power in range(7)))

LEVEL_COST: Final = 8
"""Weighs a level of the syntax tree, where a level of a chain costs 1."""

MAX_COST: Final = 3_200
"""Bounds the cost of a script: four hundred levels, or a chain of 3200 links, or a mixture: at most two
thirds of what crashes the worker."""

MAX_LEVELS: Final = MAX_COST // LEVEL_COST

MAX_TOKENS: Final = 2 * MAX_LEVELS
"""Bounds the tokens in a row without bracket, comma or semicolon, where no tree tells what they mean; an arrow
function has two."""

CHAINS: Final = frozenset(
    {
        "assignment_expression",
        "await_expression",
        "binary_expression",
        "call_expression",
        "else_clause",
        "if_statement",
        "member_expression",
        "sequence_expression",
        "subscript_expression",
        "ternary_expression",
        "unary_expression",
    }
)
"""Names nodes that ordinary, generated code makes long chains of, and that cost the parsers little stack."""

_NO_BRACKET: Final = bytes(byte for byte in range(256) if byte not in b"()[]{}")
_OPENING: Final = frozenset(b"([{")
_CHAIN_TEXT: Final = re.compile(rb"(?<![^;{}()\[\],])[^;{}()\[\],]{%d,}" % MAX_TOKENS)
_TOKEN: Final = re.compile(rb"\w+|=>|[^\w\s]")

TOO_DEEP: Final = "it is nested too deeply"


class _Buffer:
    """Lends one parse at a time the memory that its parser reads, in views of so many bytes.

    The parser's binding keeps one reference for each call of a reader for good (py-tree-sitter 0.25 to 0.26.1): of
    bytes, that would be each script. Views that are used again cost nothing but their count of references.
    """

    idle: Final[list[_Buffer]] = []

    def __init__(self) -> None:
        self._bytes = bytearray(_SIZES[-1])
        self._views = {size: memoryview(self._bytes)[:size] for size in _SIZES}

    def filled(self, source: bytes, offset: int) -> memoryview:
        """Returns a view of some bytes from the offset on, which holds until the next call; an empty one at the end."""
        left = min(len(source) - offset, _SIZES[-1])
        size = max(left, 0) if left < _EXACT else 1 << (left.bit_length() - 1)
        self._bytes[:size] = source[offset : offset + size]
        return self._views[size]


class _Reader:
    """Gives a parser its source from a buffer, and a tree the bytes of its nodes, as `Node.text` takes bytes alone, and
    lets go of them."""

    def __init__(self, source: bytes) -> None:
        self._source = source
        self._buffer: _Buffer | None = _Buffer.idle.pop() if _Buffer.idle else _Buffer()

    def __call__(self, offset: int, _point: object) -> bytes | memoryview:
        if self._buffer is None:
            return self._source[offset : offset + _EXACT]
        return self._buffer.filled(self._source, offset)

    def end(self) -> None:
        """Gives the buffer back: the parser has come to its end."""
        if self._buffer is not None:
            _Buffer.idle.append(self._buffer)
        self._buffer = None


def parse(source: bytes, *, typescript: bool, is_late: Callable[[], bool]) -> Node:
    """Gives the root of a script's tree. Raises ValueError when `is_late` has said so before the end."""
    reader = _Reader(source)
    try:
        # One for each call: scripts are parsed in threads, too. A parser that reads through a callback can be stopped.
        # The tree keeps the callback, unseen by the garbage collector: that must not know who holds the tree.
        tree = Parser(_language(typescript)).parse(
            reader, encoding="utf8", progress_callback=lambda _offset, _has_error: is_late()
        )
    finally:
        reader.end()
    return tree.root_node


Nodes = dict[str, list[Node]]
"""Holds nodes of a tree by their types, or by what they are used for."""


def nodes_of(root: Node, types: tuple[str, ...], *, typescript: bool) -> Nodes:
    """Gives the nodes of these types in a tree."""
    found = QueryCursor(_query(" ".join(f"({name}) @{name}" for name in types), typescript)).captures(root)
    return {name: sorted(found.get(name, ()), key=lambda node: node.start_byte) for name in types}


def captured(nodes: Iterable[Node], patterns: str, *, typescript: bool) -> Iterator[tuple[str, Node]]:
    """Gives what a query's patterns capture that begin at one of these nodes, with the names of the captures.

    Each node is looked at alone: in a search of the whole tree each link of a long chain waits for all others.
    """
    cursor = QueryCursor(_query(patterns, typescript))
    cursor.set_max_start_depth(0)
    for node in nodes:
        for name, some in cursor.captures(node).items():
            yield from ((name, one) for one in some)


def field(node: Node | None, *names: str) -> Node | None:
    """Gives the node that is reached through fields of these names; None where one of them is not there."""
    for name in names:
        node = node.child_by_field_name(name) if node is not None else None
    return node


def nearest(node: Node | None, *types: str) -> Node | None:
    """Gives the smallest node of one of these types that a node is, or is in."""
    while node is not None and node.type not in types:
        node = node.parent
    return node


def arguments_of(call: Node | None) -> list[Node]:
    """Gives the arguments of a call, without comments; none of what is no call."""
    arguments = field(call, "arguments")
    children = arguments.named_children if arguments is not None else []
    return [child for child in children if child.type != "comment"]


def operator_of(node: Node) -> str:
    """Gives the operator of an expression; empty where it has none."""
    operator = field(node, "operator")
    return operator.type if operator is not None else ""


@lru_cache(maxsize=2)
def _language(typescript: bool) -> Language:
    return Language(
        tree_sitter_typescript.language_typescript() if typescript else tree_sitter_javascript.language()
    )


@lru_cache(maxsize=256)
def _query(patterns: str, typescript: bool) -> Query:
    return Query(_language(typescript), patterns)


def too_deep(root: Node, source: bytes) -> bool:
    """Says whether a script's nesting might crash a worker.

    Where the text is no syntax that is known here, the tree says little, and the text alone is judged: by its open
    brackets, and by the longest run of tokens between brackets, commas and semicolons.
    """
    if _too_deep_tree(root):
        return True
    return root.has_error and (_too_deep_brackets(source) or _too_long_chain(source))


def _too_deep_tree(root: Node) -> bool:
    cursor = root.walk()
    costs = [0]
    while True:
        node = cursor.node
        assert node is not None
        cost = costs[-1] + (1 if node.type in CHAINS else LEVEL_COST)
        if cost > MAX_COST:
            return True
        # No deeper than it has nodes: most of an ordinary script is never entered.
        if cost + LEVEL_COST * node.descendant_count > MAX_COST and cursor.goto_first_child():
            costs.append(cost)
            continue
        while not cursor.goto_next_sibling():
            if not cursor.goto_parent():
                return False
            costs.pop()


def _too_deep_brackets(source: bytes) -> bool:
    depth = 0
    for bracket in source.translate(None, _NO_BRACKET):
        if bracket in _OPENING:
            depth += 1
            if depth > MAX_LEVELS:
                return True
        elif depth:
            depth -= 1
    return False


def _too_long_chain(source: bytes) -> bool:
    return any(
        sum(1 for _ in _TOKEN.finditer(chain[0])) > MAX_TOKENS for chain in _CHAIN_TEXT.finditer(source)
    )
