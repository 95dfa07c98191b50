"""Reads what a query asks for: its words and phrases, each with its weight."""

from __future__ import annotations

from collections.abc import Container
from itertools import pairwise
from typing import NamedTuple

from cellblock.catalog.search_text import MAX_QUERY_CHARS, MAX_QUERY_TERMS, STOP_WORDS, stem, terms
from cellblock.catalog.search_words import MAX_PHRASE_WORDS

PHRASE_SHARE = 0.5
"""Scales a word's weight where it is part of a phrase that counts by itself."""


class Wanted(NamedTuple):
    """A wanted thing is one that a query asks for: the `word` as it was written (none of a phrase), the `stem` it is
    searched by."""

    word: str
    stem: str
    weight: float


def wanted_by(query: str, phrases: Container[str], known: Container[str]) -> list[Wanted]:
    """Gives the distinct phrases and words of a query, without stop words unless there is nothing else.

    `phrases` are stems joined with `_`. Neighbouring words whose compound is a `known` stem ask for it too:
    `time zone` for `timezone`.
    """
    words = terms(query[:MAX_QUERY_CHARS])
    stems = [stem(word) for word in words]
    found: dict[str, Wanted] = {}
    within: set[str] = set()
    for size in range(MAX_PHRASE_WORDS, 1, -1):
        for start in range(len(stems) - size + 1):
            phrase = "_".join(stems[start : start + size])
            if phrase in phrases and len(found) < MAX_QUERY_TERMS:
                found[phrase] = Wanted("", phrase, 1.0)
                within.update(stems[start : start + size])
    telling = [pair for pair in zip(words, stems, strict=True) if pair[0] not in STOP_WORDS]
    if not telling and not found:
        telling = list(zip(words, stems, strict=True))
    for word, key in telling:
        if len(found) < MAX_QUERY_TERMS:
            found.setdefault(key, Wanted(word, key, PHRASE_SHARE if key in within else 1.0))
    for first, second in pairwise(words[: 2 * MAX_QUERY_TERMS]):
        compound = stem(first + second)
        if compound in known:
            found.setdefault(compound, Wanted(first + second, compound, 1.0))
    return list(found.values())
