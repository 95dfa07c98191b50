"""Finds which name was probably meant by one that there is not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import Final

from cellblock.base.suggest import rated_names

MAX_NAMED: Final = 12
"""Bounds the members that a hint names; they end up in a model's context."""

MAX_GUESSES: Final = 3

MIN_ALIKE: Final = 0.75
"""Sets the least similarity of a member of arrays and texts, and of a name to one that is misspelt so, on difflib's
scale: `count` is not `concat`."""

WRAPPERS: Final = frozenset(
    [
        "array",
        "data",
        "elements",
        "entries",
        "items",
        "list",
        "records",
        "result",
        "results",
        "rows",
        "values",
    ]
)
"""Names members that hold the elements, where something is not the array itself."""

_COUNTS: Final = frozenset(["count", "len", "size", "total"])
_OF_ARRAYS: Final = {
    "contains": "includes",
    "append": "push",
    "add": "push",
    "select": "map",
    "where": "filter",
    "first": "[0]",
    "last": "at(-1)",
    "each": "forEach",
}
MAX_SLIP_CHARS: Final = 64
"""Bounds the characters of names that are compared letter by letter."""

_ALIKE: Final = tuple(
    frozenset(line.split())
    for line in (
        "title name label subject summary heading headline caption",
        "body content text description message details note",
        "due deadline date when",
        "id key uid uuid identifier number ref",
        "created date time timestamp since opened",
        "updated modified changed edited",
        "status state phase stage",
        "done completed finished closed resolved",
        "url link href uri website address",
        "author user owner creator by login username",
        "assignee owner user responsible",
        "items results data list entries records rows values elements",
        "count total length size number amount",
        "price cost amount total",
        "email mail address",
        "path file filename filepath",
        "folder directory dir parent",
        "tags labels categories topics",
        "kind type category class",
        "first start begin from",
        "last end until to",
    )
)
"""Holds words for the same thing in the outputs of tools; a word may be in several lines."""

_WORDS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")


def is_slip(name: str, members: Sequence[str]) -> bool:
    """Says whether a name is one of some others, but for a slip of the pen: as long within a letter, with three of four
    letters in the same order."""
    alike = [one for one in members if one != name and abs(len(one) - len(name)) <= 1 and len(name) > 2]
    return len(name) <= MAX_SLIP_CHARS and any(
        SequenceMatcher(None, name, one, autojunk=False).ratio() >= MIN_ALIKE for one in alike
    )


def listed(names: Sequence[str]) -> str:
    """Gives the first of some names."""
    return ", ".join([*names[:MAX_NAMED], *["…"] * (len(names) > MAX_NAMED)])


def likely_members(wanted: str, members: Sequence[str], *, functions: bool = False) -> list[str]:
    """Gives the members of which one was probably meant, whatever their order: those spelt most alike, else, unless
    they are functions, those that mean the same. More than one are equally likely."""
    near = rated_names(wanted, sorted(members))
    if near or functions:
        return [name for similarity, name in near if similarity == near[0][0]][:MAX_GUESSES]
    words = _words(wanted)
    ranks: dict[str, int] = {}
    for member in sorted(members):
        others = _words(member)
        for line in _ALIKE:
            if words & line and others & line:
                # The closest in the list of likely words.
                ranks[member] = min(len(others - line), ranks.get(member, len(others)))
    closest = min(ranks.values(), default=0)
    return [member for member, rank in ranks.items() if rank == closest][:MAX_GUESSES]


def likely_of_language(wanted: str, members: Sequence[str], *, array: bool) -> str | None:
    """Says what to read of an array or a text in place of a member that it does not have: only what is certain.

    Synonyms are of no use here: `entries` of an array are not its `rows`.
    """
    if wanted in _COUNTS:
        return "length"
    if array and wanted in _OF_ARRAYS:
        return _OF_ARRAYS[wanted]
    near = [name for similarity, name in rated_names(wanted, sorted(members)) if similarity >= MIN_ALIKE]
    return near[0] if len(near) == 1 else None


def _words(name: str) -> frozenset[str]:
    return frozenset(word.lower() for word in _WORDS.findall(name[:64]))
