"""Reads what the compiler says of comparisons that can never be true: with a value that a declared enum does not have.

Only such counts. The compiler says the same of a script's own constants, and of what an `if` around has excluded.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from cellblock.catalog.suggest import nearest_names
from cellblock.typecheck.likely import MAX_NAMED, listed

COMPARISON: Final = frozenset({2367, 2678})

_NO_OVERLAP: Final = re.compile(
    r"because the types '(?P<one>.*)' and '(?P<other>.*)' have no overlap\.", re.DOTALL
)
_NOT_COMPARABLE: Final = re.compile(
    r"Type '(?P<one>.*)' is not comparable to type '(?P<other>.*)'\.", re.DOTALL
)
_TEXT: Final = re.compile(r'"(?:[^"\\]|\\.)*+"')
_UNION: Final = re.compile(rf"{_TEXT.pattern}(?: \| {_TEXT.pattern})*+")


class Foreign(NamedTuple):
    """A text that is compared with, and the texts of the enum, all as the compiler prints them."""

    value: str
    choices: list[str]


def foreign_value(message: str, declarations: str) -> Foreign | None:
    """What a comparison is with, and what there is; None unless the enum, and not the value, is declared."""
    match = _NO_OVERLAP.search(message) or _NOT_COMPARABLE.search(message)
    if match is None:
        return None
    for value, union in ((match["one"], match["other"]), (match["other"], match["one"])):
        if _TEXT.fullmatch(value) is None or _UNION.fullmatch(union) is None:
            continue
        choices = _TEXT.findall(union)
        if value not in declarations and all(choice in declarations for choice in choices):
            return Foreign(value, choices)
    return None


def comparison_message(foreign: Foreign) -> str:
    """What is wrong."""
    return f"The comparison with {foreign.value} is never true: the declared values have no such one."


def comparison_hint(foreign: Foreign) -> str:
    """One corrective action."""
    near = nearest_names(foreign.value, sorted(foreign.choices), limit=1)
    start = f"Did you mean {near[0]}? " if near else ""
    return f"{start}Declared: {listed(foreign.choices, cut=len(foreign.choices) > MAX_NAMED)}."
