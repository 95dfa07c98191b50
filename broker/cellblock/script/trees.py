"""Parses scripts into trees, and follows the fields of their nodes."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable
from functools import lru_cache
from typing import Final

import tree_sitter_javascript
import tree_sitter_typescript
from tree_sitter import Language, Node, Parser

_CHUNK_BYTES: Final = 64 * 1024

_drop_reference = ctypes.pythonapi.Py_DecRef
_drop_reference.argtypes, _drop_reference.restype = [ctypes.py_object], None


class _Reader:
    """Gives a parser its source in views, which are released behind it, and a tree the bytes of its nodes.

    The parser's binding keeps one reference for each call of the reader for good (py-tree-sitter 0.25 to 0.26.1): of
    bytes, that would be each script, and of views a kilobyte of each. `Node.text` lets go, and takes bytes alone.
    """

    def __init__(self, source: bytes) -> None:
        self._source = source
        self._views: dict[int, memoryview] | None = {}

    def __call__(self, offset: int, _point: object) -> bytes | memoryview:
        piece = slice(offset, offset + _CHUNK_BYTES)
        if self._views is None:
            return self._source[piece]
        if offset not in self._views:
            self._views[offset] = memoryview(self._source)[piece]
        return self._views[offset]

    def end(self) -> None:
        """Releases the reader's views, and the references that the binding has kept: the parser has come to its end."""
        views, self._views = [*(self._views or {}).values()], None
        # One that nobody has kept has as many references in this list as the others would have.
        views.append(memoryview(b""))
        counts = [sys.getrefcount(view) for view in views]
        for view, count in zip(views, counts, strict=True):
            view.release()
            for _ in range(count - counts[-1]):
                _drop_reference(view)


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
