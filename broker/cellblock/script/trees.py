"""Parses scripts into trees, and follows the fields of their nodes."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

import tree_sitter_javascript
import tree_sitter_typescript
from tree_sitter import Language, Node, Parser

_EXACT: Final = 1024
"""Bounds the end of a source that is given to the parser at once, in bytes: no character lies across a border there."""

_SIZES: Final = (*range(_EXACT), *(_EXACT << power for power in range(7)))


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
            return self._source[offset : offset + _SIZES[-1]]
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


def field(node: Node | None, *names: str) -> Node | None:
    """Gives the node that is reached through fields of these names; None where one of them is not there."""
    for name in names:
        node = node.child_by_field_name(name) if node is not None else None
    return node


def operator_of(node: Node) -> str:
    """Gives the operator of an expression; empty where it has none."""
    operator = field(node, "operator")
    return operator.type if operator is not None else ""


@lru_cache(maxsize=2)
def _language(typescript: bool) -> Language:
    return Language(
        tree_sitter_typescript.language_typescript() if typescript else tree_sitter_javascript.language()
    )
