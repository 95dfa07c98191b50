"""Bounds how deeply a script may nest: the worker's parsers recurse, and crash at the end of their stack.

A worker that crashes is contained, but its answer helps nobody; so such a script is refused before it gets one.
Measured with the wheel's Deno, each form alone: parentheses crash from 780 levels of the syntax tree on, objects and
functions from 1300, types from 2100; chains of operators, of calls and of conditions from 4800.
"""

from __future__ import annotations

import re
from typing import Final

from tree_sitter import Node

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
