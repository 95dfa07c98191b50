"""Reads what the compiler says of comparisons that can never be true: with a value that a declared enum does not have.

Only such counts. The compiler says the same of a script's own constants, and of what an `if` around has excluded.
"""

from __future__ import annotations

import re
from typing import Final, NamedTuple

from cellblock.catalog.suggest import nearest_names
from cellblock.typecheck.likely import MAX_NAMED, listed

COMPARISON: Final = frozenset({2367, 2678})

_NO_OVERLAP: Final = (
    "This comparison appears to be unintentional because the types '",
    "' and '",
    "' have no overlap.",
)
_NOT_COMPARABLE: Final = ("Type '", "' is not comparable to type '", "'.")
_TEXT: Final = re.compile(r'"(?:[^"\\]|\\.)*+"')


class Foreign(NamedTuple):
    """A text that is compared with, and the texts of the enum, all as the compiler prints them."""

    value: str
    choices: list[str]


def foreign_value(message: str, declarations: str) -> Foreign | None:
    """What a comparison is with, and what there is; None unless the enum, and not the value, is declared."""
    one, other = _types_in(message, *_NO_OVERLAP) or _types_in(message, *_NOT_COMPARABLE) or ("", "")
    for value, union in ((one, other), (other, one)):
        choices = _texts(union)
        if not choices or _TEXT.fullmatch(value) is None:
            continue
        if value not in declarations and all(choice in declarations for choice in choices):
            return Foreign(value, choices)
    return None


def _types_in(message: str, start: str, between: str, end: str) -> tuple[str, str] | None:
    if not (message.startswith(start) and message.endswith(end)):
        return None
    one, found, other = message[len(start) : -len(end)].partition(between)
    return (one, other) if found else None


def _texts(union: str) -> list[str]:
    """The texts of a union that has nothing else; of any other, none."""
    found: list[str] = []
    at = 0
    while (text := _TEXT.match(union, at)) is not None:
        found.append(text[0])
        at = text.end()
        if at == len(union):
            return found
        if not union.startswith(" | ", at):
            break
        at += 3
    return []


def comparison_message(foreign: Foreign) -> str:
    """What is wrong."""
    return f"The comparison with {foreign.value} is never true: the declared values have no such one."


def comparison_hint(foreign: Foreign) -> str:
    """One corrective action."""
    near = nearest_names(foreign.value, sorted(foreign.choices), limit=1)
    start = f"Did you mean {near[0]}? " if near else ""
    return f"{start}Declared: {listed(foreign.choices, cut=len(foreign.choices) > MAX_NAMED)}."
