"""Reads what a query asks for: its words and phrases, and what they may stand for.

An unknown word may be short for a word of the catalog, or a misspelling; others mean nearly the same to someone who
looks for a tool: the groups of `search_words.txt`, and what a general word list says, `search_general.txt`.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Container, Mapping
from difflib import SequenceMatcher
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

from cellblock.base.suggest import letter_pairs
from cellblock.types.search_text import MAX_QUERY_CHARS, MAX_QUERY_TERMS, STOP_WORDS, stem, terms

AMONG_TOOLS = 0.5
"""Sets what a word that tools use counts for another word of its group that tools use, beside 1 for itself."""
FROM_SPEECH = 0.8
"""Sets what a word that tools use counts for one that only people use: who says it can have meant nothing else."""
FROM_TOOLS = 0.4
"""Sets what a word that people use counts for one that tools use."""
AMONG_SPEECH = 0.3
"""Sets what a word that people use counts for another of its group: tools of another trade may be named with it."""
AMBIGUITY = 0.3
"""Sets the power of the number of groups that a word is in, by which what counts for it is divided: `open` can mean
much."""
VERB_SHARE = 0.9
"""Scales the weight of a verb of intent where a query names something else, too: `create` says less than what."""
GENERAL_NEAR = 0.5
"""Sets what a word of a tool counts for one that the general word list has in one set with it."""
GENERAL_FAR = 0.3
"""Sets what a word of a tool counts for one whose set in the general word list stands above, or has a word derived
from it."""
MAX_PHRASE_WORDS = 3

_FILE = Path(__file__).with_name("search_words.txt")
GENERAL_FILE = Path(__file__).with_name("search_general.txt")

_VERBS = "# what is done"
"""Begins the groups of verbs of intent in the file; the next heading ends them."""


class WordGroups(NamedTuple):
    """Relates words: `related` maps a stem, or the stems of a phrase joined with `_`, to what counts for it and how
    much; `verbs` are the stems of what is done."""

    related: Mapping[str, Mapping[str, float]]
    phrases: frozenset[str]
    verbs: frozenset[str]


@cache
def word_groups() -> WordGroups:
    """Gives the groups of the files, read once."""
    related: dict[str, dict[str, float]] = {}
    groups: Counter[str] = Counter()
    verbs: set[str] = set()
    are_verbs = False
    for line in _FILE.read_text(encoding="utf-8").splitlines():
        are_verbs = line == _VERBS if line.startswith("#") else are_verbs
        of_tools, _, of_people = line.partition("#")[0].partition(":")
        tools, spoken = _stems(of_tools.lstrip("+")), _stems(of_people)
        groups.update({*tools, *spoken})
        verbs.update((*tools, *spoken) if are_verbs else ())
        for one in tools:
            _relate(related, one, [] if of_tools.startswith("+") else tools, AMONG_TOOLS)
            _relate(related, one, spoken, FROM_TOOLS)
        for one in spoken:
            _relate(related, one, tools, FROM_SPEECH)
            _relate(related, one, spoken, AMONG_SPEECH)
    for one, shares in related.items():
        for other in shares:
            shares[other] /= groups[one] ** AMBIGUITY
    for one, shares in _general().items():
        known = related.setdefault(one, {})
        for other, share in shares.items():
            known.setdefault(other, share)
    return WordGroups(related, frozenset(key for key in groups if "_" in key), frozenset(verbs))


def _general() -> dict[str, dict[str, float]]:
    """Relates words as the general list does: each to the words of tools that it may mean."""
    related: dict[str, dict[str, float]] = {}
    for line in GENERAL_FILE.read_text(encoding="utf-8").splitlines():
        word, _, others = line.partition("#")[0].partition(":")
        near, _, far = others.partition("|")
        for spoken, share in ((near, GENERAL_NEAR), (far, GENERAL_FAR)):
            for one in spoken.split():
                _relate(related, stem(one), [stem(word)], share)
    return related


def _stems(words: str) -> list[str]:
    return ["_".join(map(stem, word.split("_"))) for word in words.split()]


def _relate(related: dict[str, dict[str, float]], one: str, others: list[str], share: float) -> None:
    found = related.setdefault(one, {})
    for other in others:
        if other != one:
            found[other] = max(found.get(other, 0.0), share)


MIN_TYPO_CHARS = 4
"""Bounds from below the words that are corrected: one slip in three letters leaves too little to go by."""
MAX_TYPO_CHARS = 32
"""Bounds the words that are corrected, so that the quadratic comparison stays bounded."""
MIN_SIMILARITY = 0.75
"""Sets the least `SequenceMatcher.ratio` of a correction: about one slip in four letters, two in eight."""
MAX_CORRECTIONS = 2
MAX_COMPLETIONS = 4
MIN_PREFIX_CHARS = 3
_COMPARED = 8
"""Bounds the words that share the most letter pairs with a misspelt one; no others are compared in full."""


class Vocabulary:
    """Counts the distinct words of a catalog. Add first, then ask."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._sorted: list[str] | None = None
        self._by_pair: dict[str, list[str]] = {}

    def add(self, *texts: str) -> None:
        """Counts the words of `texts`, each a string of terms parted by single spaces."""
        for text in texts:
            self._counts.update(text.split())
        self._sorted = None

    def completions(self, prefix: str) -> list[str]:
        """Gives words that `prefix` (3 characters or more) abbreviates, the most frequent first."""
        if len(prefix) < MIN_PREFIX_CHARS:
            return []
        words = self._words()
        found: list[str] = []
        for index in range(bisect_left(words, prefix), len(words)):
            if not words[index].startswith(prefix):
                break
            if words[index] != prefix:
                found.append(words[index])
        return sorted(found, key=lambda word: (-self._counts[word], word))[:MAX_COMPLETIONS]

    def corrections(self, word: str) -> list[str]:
        """Gives words that `word` may be a misspelling of, the likeliest first."""
        if not MIN_TYPO_CHARS <= len(word) <= MAX_TYPO_CHARS:
            return []
        self._words()
        shared: Counter[str] = Counter()
        for pair in letter_pairs(word):
            shared.update(self._by_pair.get(pair, ()))
        # Dice's coefficient over letter pairs: cheap, and close enough to the ratio to pick whom to compare.
        close = sorted(shared, key=lambda other: (-2 * shared[other] / (len(word) + len(other) + 2), other))
        matcher = SequenceMatcher(autojunk=False)
        matcher.set_seq2(word)
        rated: list[tuple[float, str]] = []
        for other in close[:_COMPARED]:
            matcher.set_seq1(other)
            ratio = matcher.ratio()
            if ratio >= MIN_SIMILARITY:
                rated.append((-ratio, other))
        return [other for _, other in sorted(rated)[:MAX_CORRECTIONS]]

    def split(self, word: str) -> list[str]:
        """Gives the fewest words of three letters or more that `word` is run together from, or nothing."""
        best: list[list[str] | None] = [[], *([None] * len(word))]
        for end in range(1, len(word) + 1):
            for start in range(max(0, end - MAX_TYPO_CHARS), end - 2):
                before = best[start]
                if before is not None and word[start:end] in self._counts:
                    known = best[end]
                    if known is None or len(before) + 1 < len(known):
                        best[end] = [*before, word[start:end]]
        return best[-1] or []

    def _words(self) -> list[str]:
        if self._sorted is None:
            self._sorted = sorted(self._counts)
            self._by_pair = {}
            for word in self._sorted:
                if MIN_TYPO_CHARS <= len(word) <= MAX_TYPO_CHARS:
                    for pair in letter_pairs(word):
                        self._by_pair.setdefault(pair, []).append(word)
        return self._sorted


def meant_by(term: str, vocabulary: Vocabulary) -> list[str]:
    """Finds what an unknown `term` stands for: words run together, else an abbreviation, else a misspelling."""
    return vocabulary.split(term) or vocabulary.completions(term) or vocabulary.corrections(term)


PHRASE_SHARE = 0.5
"""Scales a word's weight where it is part of a phrase that counts by itself."""


class Wanted(NamedTuple):
    """A wanted thing is one that a query asks for: the `word` as it was written (none of a phrase), the `stem` it is
    searched by."""

    word: str
    stem: str
    weight: float


def wanted_by(
    query: str, phrases: Container[str], known: Container[str], verbs: Container[str] = ()
) -> list[Wanted]:
    """Gives the distinct phrases and words of a query, without stop words unless there is nothing else; verbs weigh
    less than what they are about.

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
    if all(one.stem in verbs for one in found.values()):
        return list(found.values())
    return [
        one._replace(weight=VERB_SHARE * one.weight) if one.stem in verbs else one for one in found.values()
    ]
