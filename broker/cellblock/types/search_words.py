"""Turns catalog text and queries into search terms, and says what the words of a query may stand for.

An unknown word may be short for a word of the catalog, or a misspelling; others mean nearly the same to someone who
looks for a tool: the groups of `search_words.txt`, and what a general word list says, `search_general.txt`. Text is
untrusted: what an upstream may put in is capped, and time is linear in that.
"""

from __future__ import annotations

import re
import unicodedata
from bisect import bisect_left
from collections import Counter, deque
from collections.abc import Container, Iterable, Iterator, Mapping
from functools import cache, cached_property, lru_cache
from itertools import islice, pairwise
from pathlib import Path
from typing import NamedTuple

from cellblock.base.json import is_array, is_object
from cellblock.base.suggest import rated_names
from cellblock.tools.catalog.model import JsonSchema, ServerEntry, ToolEntry

MAX_QUERY_CHARS = 1_000
"""Bounds the characters of a query that are read; the rest is ignored (an agent's query is one sentence)."""
MAX_QUERY_TERMS = 16
"""Bounds the distinct words of a query that are searched for."""
MAX_TERM_CHARS = 48
"""Bounds the characters kept of one term; longer runs are keys or base64, not words."""
MAX_NAME_CHARS = 256
"""Bounds the characters of a tool, server or property name that are indexed."""
MAX_TEXT_CHARS = 4_000
"""Bounds the characters of one tool's description, and of all its property descriptions, that are indexed."""
MAX_PROPERTIES = 200
"""Bounds the properties of one tool's input schema that are indexed, nested ones included."""
MAX_SCHEMA_NODES = 1_000
"""Bounds the schemas within one tool's input schema that are looked at."""
MAX_SCHEMA_DEPTH = 8
"""Bounds the levels of nesting of an input schema that are indexed."""

_WORD = re.compile(r"[^\W_]+")
_HUMP = re.compile(
    r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])|(?<=[A-Za-z])(?=[0-9])|(?<=[0-9])(?=[A-Za-z])"
)
_UNSPACED = re.compile(r"([\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af\uf900-\ufaff\U00020000-\U0003ffff]+)")
_SENTENCE_END = re.compile(r"[.!?]\s|\n\s*\n|[。！？]")

_STOP_WORDS = """
a about all already also am an and another any anything are as at be been but by can could did do does each
ever every everything for from had has have here how i if in into is it its just lately like me more most
much my need never of on one only or other our own please really same should so some somebody something still
than that the their them then there these they this those to too us very want was we were what when where
which while who whom whose why will with would you your
"""
STOP_WORDS = frozenset(_STOP_WORDS.split())
"""Holds the English words that say nothing about which tool is meant; dropped from a query unless it has no others."""


class ToolText(NamedTuple):
    """Holds the searchable text of one tool: each field is a string of terms parted by single spaces."""

    name: str
    server: str
    summary: str
    details: str
    properties: str
    notes: str


def fold(text: str) -> str:
    """Gives compatibility-normalised text, so that a full-width, ligature or accented spelling of Latin is the plain
    one."""
    if text.isascii():
        return text
    whole = unicodedata.normalize("NFKC", text)
    bases = (unicodedata.normalize("NFD", character)[0] for character in whole)
    return "".join(
        base if base.isascii() else character for base, character in zip(bases, whole, strict=True)
    )


@lru_cache(maxsize=8_192)
def stem(word: str) -> str:
    """Gives an English word without the endings of plurals, `-ed` and `-ing`, and without a last `e`; others as they
    are.

    Porter's further steps find less here: they make one of words that name different tools.
    """
    if len(word) < 4 or not (word.isascii() and word.isalpha()) or word.endswith("ss"):
        return word
    if word.endswith("ies"):
        word = f"{word[:-3]}y"
    elif word.endswith("s") and not word.endswith("us"):
        word = word[:-1]
    for ending in ("ed", "ing"):
        if word.endswith(ending) and len(word) - len(ending) >= 3:
            word = word.removesuffix(ending)
            if word[-1] == word[-2] and word[-1] not in "lsz":
                word = word[:-1]
            break
    return word[:-1] if word.endswith("e") and len(word) > 3 else word


def terms(text: str) -> list[str]:
    """Gives the lower-case terms of `text` in order.

    Identifiers are split at `_`, `-`, case changes and digits, and a word that was split is there as a
    whole as well. Scripts written without spaces become overlapping pairs of characters. A term holds
    letters and digits only: no quote, NUL or lone surrogate.
    """
    found: list[str] = []
    for word in _WORD.findall(fold(text)):
        if word.isascii() and word.islower() and word.isalpha():
            found.append(word[:MAX_TERM_CHARS])  # nearly every word of a description
        elif not word.isascii() and _UNSPACED.search(word):
            for run in filter(None, _UNSPACED.split(word)):
                found.extend(_pairs(run) if _UNSPACED.match(run) else (run.lower()[:MAX_TERM_CHARS],))
        else:
            parts = _HUMP.split(word)
            if len(parts) > 1:
                found.extend(part.lower()[:MAX_TERM_CHARS] for part in parts)
            found.append(word.lower()[:MAX_TERM_CHARS])
    return found


def name_key(name: str) -> str:
    """Gives `name` without case and separators, to tell a query that is a name, in whatever spelling."""
    return "".join(_WORD.findall(fold(name[:MAX_NAME_CHARS]).lower()))


def tool_text(server: ServerEntry, tool: ToolEntry) -> ToolText:
    """Splits one tool into its weighted fields. `summary` is the description's first sentence."""
    title = tool.annotations.get("title") if tool.annotations else None
    description = (tool.description or "")[:MAX_TEXT_CHARS].strip()
    end = _SENTENCE_END.search(description)
    cut = end.end() if end else len(description)
    lead = f"{title[:MAX_NAME_CHARS]} {description[:cut]}" if isinstance(title, str) else description[:cut]
    names: list[str] = []
    notes: list[str] = []
    budget = MAX_TEXT_CHARS
    for name, note in _properties(tool.input_schema):
        names.append(name[:MAX_NAME_CHARS])
        notes.append(note[:budget])
        budget -= len(notes[-1])
    server_names = dict.fromkeys((server.server_id, server.server_name, server.config_name))
    return ToolText(
        name=_joined((tool.tool_name[:MAX_NAME_CHARS],)),
        server=_joined(name[:MAX_NAME_CHARS] for name in server_names),
        summary=_joined((lead,)),
        details=_joined((description[cut:],)),
        properties=_joined(names),
        notes=_joined(notes),
    )


def _joined(texts: Iterable[str]) -> str:
    return " ".join(term for text in texts for term in terms(text))


def _pairs(run: str) -> Iterator[str]:
    if len(run) == 1:
        yield run
    for index in range(len(run) - 1):
        yield run[index : index + 2]


def _properties(schema: JsonSchema | None) -> Iterator[tuple[str, str]]:
    """Yields (name, description and enumerated strings) of an untrusted schema's properties, breadth first."""
    queue: deque[tuple[int, object]] = deque([(0, schema)])
    left = MAX_PROPERTIES
    for _ in range(MAX_SCHEMA_NODES):
        if not queue:
            return
        depth, value = queue.popleft()
        if not is_object(value) or depth >= MAX_SCHEMA_DEPTH:
            continue
        queue.append((depth + 1, value.get("items")))
        for keyword in ("anyOf", "oneOf", "allOf"):
            if is_array(branches := value.get(keyword)):
                queue.extend((depth + 1, branch) for branch in branches[:left])
        if is_object(properties := value.get("properties")):
            for name, below in islice(properties.items(), left):
                left -= 1
                queue.append((depth + 1, below))
                yield str(name), _note(below)


def _note(schema: object) -> str:
    if not is_object(schema):
        return ""
    values = schema.get("enum")
    words = [schema.get("description"), *(values[:20] if is_array(values) else ())]
    return " ".join(word for word in words if isinstance(word, str))


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
"""Sets the least similarity of a correction: about one slip in four letters, two in eight."""
MAX_CORRECTIONS = 2
MAX_COMPLETIONS = 4
MIN_PREFIX_CHARS = 3


class Vocabulary:
    """Counts the distinct words of a catalog. Add first, then ask."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()

    def add(self, *texts: str) -> None:
        """Counts the words of `texts`, each a string of terms parted by single spaces."""
        for text in texts:
            self._counts.update(text.split())

    def completions(self, prefix: str) -> list[str]:
        """Gives words that `prefix` (3 characters or more) abbreviates, the most frequent first."""
        if len(prefix) < MIN_PREFIX_CHARS:
            return []
        words, found = self._sorted, list[str]()
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
        rated = rated_names(word, self._counts)
        return [other for similarity, other in rated if similarity >= MIN_SIMILARITY][:MAX_CORRECTIONS]

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

    @cached_property
    def _sorted(self) -> list[str]:
        return sorted(self._counts)


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
