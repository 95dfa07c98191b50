"""Parses scripts into trees, and follows the fields of their nodes."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Final

import tree_sitter_javascript
import tree_sitter_typescript
from tree_sitter import Language, Node, Parser

_CHUNK_BYTES: Final = 64 * 1024


def parse(source: bytes, *, typescript: bool, is_late: Callable[[], bool]) -> Node:
    """Gives the root of a script's tree. Raises ValueError when `is_late` has said so before the end."""
    # One for each call: scripts are parsed in threads, too. A parser that reads through a callback can be stopped. The
    # tree keeps the callback, unseen by the garbage collector: one that knew who holds the tree would keep it for ever.
    tree = Parser(_language(typescript)).parse(
        lambda offset, _point: source[offset : offset + _CHUNK_BYTES],
        encoding="utf8",
        progress_callback=lambda _offset, _has_error: is_late(),
    )
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
