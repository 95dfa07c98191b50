"""Tells which words mean nearly the same to someone who looks for a tool: the groups of `search_words.txt`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

from cellblock.catalog.search_text import stem

AMONG_TOOLS = 0.5
"""Sets what a word that tools use counts for another such word of its group, beside 1 for itself."""
FROM_SPEECH = 0.8
"""Sets what a word that tools use counts for one that only people use: who says it can have meant nothing else."""
FROM_TOOLS = 0.4
"""Sets what a word that people use counts for one that tools use."""
AMONG_SPEECH = 0.3
"""Sets what a word that people use counts for another of its group: tools of another trade may be named with it."""
AMBIGUITY = 0.3
"""Sets the power of the number of groups that a word is in, by which what counts for it is divided: `open` can mean
much."""
MAX_PHRASE_WORDS = 3

_FILE = Path(__file__).with_name("search_words.txt")


class WordGroups(NamedTuple):
    """Relates words: `related` maps a stem, or the stems of a phrase joined with `_`, to what counts for it and how
    much."""

    related: Mapping[str, Mapping[str, float]]
    phrases: frozenset[str]


@cache
def word_groups() -> WordGroups:
    """Gives the groups of the file, read once."""
    related: dict[str, dict[str, float]] = {}
    groups: Counter[str] = Counter()
    for line in _FILE.read_text(encoding="utf-8").splitlines():
        of_tools, _, of_people = line.partition("#")[0].partition(":")
        tools, said = _stems(of_tools.lstrip("+")), _stems(of_people)
        groups.update({*tools, *said})
        for one in tools:
            _relate(related, one, [] if of_tools.startswith("+") else tools, AMONG_TOOLS)
            _relate(related, one, said, FROM_TOOLS)
        for one in said:
            _relate(related, one, tools, FROM_SPEECH)
            _relate(related, one, said, AMONG_SPEECH)
    for one, shares in related.items():
        for other in shares:
            shares[other] /= groups[one] ** AMBIGUITY
    return WordGroups(related, frozenset(key for key in groups if "_" in key))


def _stems(words: str) -> list[str]:
    return ["_".join(map(stem, word.split("_"))) for word in words.split()]


def _relate(related: dict[str, dict[str, float]], one: str, others: list[str], share: float) -> None:
    found = related.setdefault(one, {})
    for other in others:
        if other != one:
            found[other] = max(found.get(other, 0.0), share)
