"""Knows the words that a catalog uses, and which of them a query's word may have meant."""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from difflib import SequenceMatcher

from cellblock.catalog.suggest import letter_pairs

MIN_TYPO_CHARS = 4
"""Shorter words are not corrected: one slip in three letters leaves too little to go by."""
MAX_TYPO_CHARS = 32
"""Longer words are not corrected, so that the quadratic comparison stays bounded."""
MIN_SIMILARITY = 0.75
"""Sets the least `SequenceMatcher.ratio` of a correction: about one slip in four letters, two in eight."""
MAX_CORRECTIONS = 2
MAX_COMPLETIONS = 4
MIN_PREFIX_CHARS = 3
_COMPARED = 8
"""Bounds the words that share the most letter pairs with a misspelt one; only these are compared in full."""


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
