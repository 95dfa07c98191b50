"""Finds near misses: the names that an unknown server, tool or property name was probably meant to be.

For the one corrective hint that every error carries (Code Mode specification, section 7.3).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from difflib import SequenceMatcher
from itertools import islice

MAX_COMPARED_CHARS = 64
"""Bounds the characters of a name that are compared; difflib is quadratic, and both names may be hostile."""
MAX_CANDIDATES = 5_000
"""Bounds the candidates that are looked at; the rest is ignored."""
MIN_SIMILARITY = 0.6
"""Sets the least similarity of a suggestion, on difflib's scale of 0 to 1."""
CONTAINED_SIMILARITY = 0.8
"""Sets the similarity where one name, of 3 characters or more, is a part of the other that begins where a word does, or
half of it."""
REORDERED_DISCOUNT = 0.95
"""Sets the factor for names that have the same words in another order: below the same order, above a slip or two."""

_READS = frozenset(["fetch", "find", "get", "list", "query", "read", "search"])
"""Holds verbs that many names begin with: what follows says which is meant."""

_COMPARED = 24
_WORDS = re.compile(r"[A-Z]?[^\W_A-Z]+|[A-Z]+")


def nearest_names(name: str, candidates: Iterable[str], limit: int = 3) -> list[str]:
    """Gives the candidates most like `name`, the likest first, as they were given; equals in given order.

    Case and separators are ignored, so `readFile` finds `read_file`. Nothing similar gives an empty
    list. Never raises on any text; time is bounded whatever the lengths.
    """
    return [candidate for _, candidate in rated_names(name, candidates)[: max(0, limit)]]


def did_you_mean(names: Iterable[str], otherwise: str = "") -> str:
    """Asks in a sentence whether one of some names was meant; gives `otherwise` where there are no names."""
    listed = " or ".join(names)
    return f"Did you mean {listed}?" if listed else otherwise


def rated_names(name: str, candidates: Iterable[str]) -> list[tuple[float, str]]:
    """Gives all candidates that are similar to `name`, the likest first, with their similarities on difflib's scale."""
    wanted = _words(name)
    key = "".join(wanted)
    if not key:
        return []
    pairs = letter_pairs(key)
    rough: list[tuple[float, int, str, list[str]]] = []
    for index, candidate in enumerate(dict.fromkeys(islice(candidates, MAX_CANDIDATES))):
        words = _words(candidate)
        other = letter_pairs("".join(words))
        shared = len(pairs & other)
        if shared:
            rough.append((-2 * shared / (len(pairs) + len(other)), index, candidate, words))
    rated: list[tuple[float, int, str]] = []
    for _, index, candidate, words in sorted(rough)[:_COMPARED]:
        similarity = _similarity(wanted, words)
        if similarity >= MIN_SIMILARITY:
            rated.append((-similarity, index, candidate))
    return [(-similarity, candidate) for similarity, _, candidate in sorted(rated)]


def by_shared_words(name: str, candidates: Iterable[str]) -> list[str]:
    """Gives the candidates, those first that have the most words of `name`; equals in given order."""
    wanted = frozenset(_words(name))
    return sorted(candidates, key=lambda candidate: -len(wanted.intersection(_words(candidate))))


def letter_pairs(word: str) -> set[str]:
    """Gives the pairs of neighbouring characters of `word`, its two ends marked: a cheap first comparison."""
    padded = f"^{word}$"
    return {padded[index : index + 2] for index in range(len(padded) - 1)}


def _similarity(wanted: list[str], words: list[str]) -> float:
    one, other = "".join(wanted), "".join(words)
    if len(wanted) > 1 and len(words) > 1 and _does_another_thing(wanted, words):
        return 0.0
    score = SequenceMatcher(None, one, other, autojunk=False).ratio()
    short, long = sorted((one, other), key=len)
    if len(short) >= 3 and _is_part(short, words if long is other else wanted):
        score = max(score, CONTAINED_SIMILARITY)
    if len(wanted) > 1 and len(words) > 1:
        ordered = SequenceMatcher(None, "".join(sorted(wanted)), "".join(sorted(words)), autojunk=False)
        score = max(score, REORDERED_DISCOUNT * ordered.ratio())
    return score


def _does_another_thing(wanted: list[str], words: list[str]) -> bool:
    """Says whether names begin with other verbs, for the same noun: `edit_file` is not what `list_files` was to be; nor
    is `list_agents` what `list_tickets` was to be."""
    one, other = wanted[0], words[0]
    if one == other and one in _READS:
        short, long = sorted(("".join(wanted[1:]), "".join(words[1:])), key=len)
        return (
            short not in long and SequenceMatcher(None, short, long, autojunk=False).ratio() < MIN_SIMILARITY
        )
    if one in words or other in wanted:
        return False
    return SequenceMatcher(None, one, other, autojunk=False).ratio() < MIN_SIMILARITY


def _is_part(short: str, words: list[str]) -> bool:
    """Says whether a name with these words contains `short`: from the beginning of a word, or at least half of the
    name."""
    long = "".join(words)
    if 2 * len(short) >= len(long):
        return short in long
    return any("".join(words[index:]).startswith(short) for index in range(len(words)))


def _words(name: str) -> list[str]:
    return [word.casefold() for word in _WORDS.findall(name[:MAX_COMPARED_CHARS])]
