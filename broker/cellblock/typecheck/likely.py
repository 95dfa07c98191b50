"""Which of the names that there are was probably meant by one that there is not."""

from __future__ import annotations

import re
from collections.abc import Sequence
from functools import lru_cache
from typing import Final

from cellblock.catalog.suggest import nearest_names

MAX_NAMED: Final = 12
"""Members that a hint names; they end up in a model's context."""

_ALIKE: Final = (
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
"""Words for the same thing in the outputs of tools; a word may be in several lines."""

_WORDS: Final = re.compile(r"[A-Z]?[a-z]+|[A-Z]+|\d+")


def listed(names: Sequence[str], *, cut: bool = False) -> str:
    """The first of some names; `cut` says that there are more than these."""
    return ", ".join([*names[:MAX_NAMED], *(["…"] if cut or len(names) > MAX_NAMED else [])])


def likely_member(wanted: str, members: Sequence[str]) -> str | None:
    """The member that was probably meant: one spelt alike, else one that means the same."""
    near = nearest_names(wanted, members, limit=1)
    if near:
        return near[0]
    words = _words(wanted)
    best: tuple[int, int] | None = None
    for index, member in enumerate(members):
        others = _words(member)
        for line in _alike():
            if words & line and others & line:
                # The closest in the list of likely words, then the first as declared.
                rank = (len(others - line), index)
                best = rank if best is None or rank < best else best
    return members[best[1]] if best is not None else None


def _words(name: str) -> frozenset[str]:
    return frozenset(word.lower() for word in _WORDS.findall(name[:64]))


@lru_cache(maxsize=1)
def _alike() -> tuple[frozenset[str], ...]:
    return tuple(frozenset(line.split()) for line in _ALIKE)
