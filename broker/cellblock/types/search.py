"""Searches the tools of one catalog snapshot (Code Mode specification, sections 4.2.5 and 4.2.7).

Ranking is BM25F: a word counts by the field that it is in and by how rare it is in the catalog. Each word or phrase of
the query counts with the best of what may stand for it: itself, at a discount the words of its groups, and where it is
unknown the catalog's own words that it may be short for or a misspelling of. The sum is scaled by how much of the query
matched. SQLite's FTS5 adds such words up instead: with the same groups it found less, and took longer.
"""

from __future__ import annotations

import re
from array import array
from collections import Counter, defaultdict
from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from math import log
from typing import Final

from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry
from cellblock.types.search_words import (
    MAX_TEXT_CHARS,
    Vocabulary,
    Wanted,
    meant_by,
    name_key,
    stem,
    tool_text,
    wanted_by,
    word_groups,
)

FIELD_WEIGHTS = {"name": 6.0, "server": 2.0, "summary": 3.0, "details": 1.0, "properties": 1.5, "notes": 0.4}
"""Sets the weight of a word in each field. Figures within a factor of two of these rank the relevance set alike."""
LENGTH_SHARE = 0.6
"""Sets the part of a field's weight that is scaled by how long the field is, beside the average (BM25's `b`)."""
SATURATION = 4.0
"""Sets the weight of a word in one tool at which it counts half of what it can count (BM25's `k1`)."""
NAMED_SHARE = 0.5
"""Scales a stand-in's share where a tool is named with the word itself, which then says what is meant."""
GUESS_SHARE = 0.5
"""Sets what a word counts that an unknown word of the query may be short for, or a misspelling of."""
COVERAGE_SHARE = 0.7
"""Sets the part of a score that is scaled by the portion of the query that the tool matches."""
SERVER_WEIGHT = 0.8
"""Sets the weight of how much a tool's server is about what is asked for: not every tool of it says so again."""
RELEVANT_SHARE = 0.5
"""Sets the part of the best score that makes a hit relevant: a tool that says that it is deprecated comes behind all
relevant ones that do not, and before what hardly fits."""
EXACT_NAME_BONUS = 1_000.0
"""Adds to the score where the query is the tool's name: more than any sum of scores comes to."""

_DEPRECATED = re.compile(r"^\W*(?i:deprecated)\b|\bDEPRECATED\b|\b(?:is|been) deprecated\b")


@dataclass(frozen=True, slots=True)
class SearchHit:
    """A hit is one result of a search: higher `score` is better; scores of different queries cannot be compared."""

    server: ServerEntry
    tool: ToolEntry
    score: float


STEP_TOOLS: Final = 32
"""Bounds the tools that are read at a time: a few milliseconds."""


@dataclass(frozen=True, slots=True)
class _Posting:
    """A posting lists the tools that have one stem, with what it counts in each (0 to 1), how rare it is, and what it
    says of servers.

    `servers` maps the place of a server to the portion of its tools that have the stem, times how rare it is in others.
    """

    rows: array[int]
    counts: array[float]
    rarity: float
    servers: Mapping[int, float]


class SearchIndex:
    """Indexes every tool of one `Catalog`; immutable."""

    def __init__(self, catalog: Catalog) -> None:
        self._rows: list[tuple[ServerEntry, ToolEntry]] = []
        self._exact: dict[str, list[int]] = {}
        self._deprecated: set[int] = set()
        self._server_places: list[int] = []
        self._named: set[str] = set()
        self._vocabulary = Vocabulary()
        self._groups = word_groups()
        self._postings: Mapping[str, _Posting] = {}
        for _ in self._fill(catalog):
            pass

    @classmethod
    def in_steps(cls, catalog: Catalog) -> Generator[None, None, SearchIndex]:
        """Makes an index in steps, between which others may have their turn."""
        index = cls(Catalog())
        yield from index._fill(catalog)
        return index

    def __len__(self) -> int:
        return len(self._rows)

    def _fill(self, catalog: Catalog) -> Generator[None]:
        texts: list[list[list[str]]] = []
        for place, server in enumerate(catalog.servers.values()):
            for tool in sorted(server.tools, key=lambda entry: entry.tool_name):
                row = len(self._rows)
                text = tool_text(server, tool)
                self._vocabulary.add(text.name, text.server, text.properties, text.summary)
                texts.append([[stem(word) for word in field.split()] for field in text])
                self._named.update(texts[-1][0])
                for key in {name_key(name) for name in (tool.tool_name, tool.export_name)}:
                    self._exact.setdefault(key, []).append(row)
                if _DEPRECATED.search((tool.description or "")[:MAX_TEXT_CHARS]):
                    self._deprecated.add(row)
                self._rows.append((server, tool))
                self._server_places.append(place)
                if row % STEP_TOOLS == STEP_TOOLS - 1:
                    yield
        self._postings = _postings(texts, self._server_places)

    def search(self, query: str, *, limit: int, server_id: str | None = None) -> list[SearchHit]:
        """Finds the best matches of `query` (any text), best first; equal scores by server order, then tool name.

        A query without a word, an unknown `server_id`, and a query that nothing matches give an empty list. Never
        raises on any query text.
        """
        wanted = wanted_by(query, self._groups.phrases, self._postings, self._groups.verbs)
        if not wanted:
            return []
        scores = self._scores(wanted)
        self._deprecated_last(scores)
        for row in self._exact.get(name_key(query), ()):
            if row not in self._deprecated or self._rows[row][1].tool_name == query:
                scores[row] = scores.get(row, 0.0) + EXACT_NAME_BONUS
        # Rounded, so that two equal tools of two servers tie whatever the order of the additions was.
        ranked = sorted(
            (-round(score, 9), row)
            for row, score in scores.items()
            if server_id in (None, self._rows[row][0].server_id)
        )
        return [SearchHit(*self._rows[row], -negated) for negated, row in ranked[:limit]]

    def _scores(self, wanted: Sequence[Wanted]) -> dict[int, float]:
        """Gives score by row: the sum over what is wanted, scaled by the portion of it that matched, and for the
        server."""
        totals: dict[int, float] = {}
        matched: dict[int, float] = {}
        servers: dict[int, float] = {}
        whole = 0.0
        for one in wanted:
            meanings = self._meanings(one)
            most, scores = self._best(meanings, one.stem)
            for place, score in self._about(meanings, one.stem).items():
                servers[place] = servers.get(place, 0.0) + one.weight * score
            whole += one.weight * bool(scores)
            for row, score in scores.items():
                totals[row] = totals.get(row, 0.0) + one.weight * score
                # Half of what a word can count is a match: the other half says in what place and how often.
                matched[row] = matched.get(row, 0.0) + one.weight * min(1.0, 2 * score / most)
        for row, part in matched.items():
            totals[row] *= 1.0 - COVERAGE_SHARE * (1.0 - part / whole)
            totals[row] += SERVER_WEIGHT * servers.get(self._server_places[row], 0.0)
        return totals

    def _deprecated_last(self, scores: dict[int, float]) -> None:
        """Puts the deprecated tools among relevant hits behind the others of these, in their own order."""
        old = self._deprecated.intersection(scores)
        least = RELEVANT_SHARE * max(scores.values(), default=0.0)
        relevant = [score for row, score in scores.items() if score >= least and row not in old]
        if not old or not relevant:
            return
        end, weak = min(relevant), max((score for score in scores.values() if score < least), default=0.0)
        best = max(scores[row] for row in old)
        for row in old:
            if scores[row] >= least:
                # Between the last relevant one and the first that is not.
                scores[row] = weak + (end - weak) * (0.1 + 0.8 * scores[row] / best)

    def _meanings(self, one: Wanted) -> Mapping[str, float]:
        """Gives the stems in the catalog that may stand for what is wanted, with what they count."""
        part = NAMED_SHARE if one.stem in self._named else 1.0
        related = self._groups.related.get(one.stem, {})
        found = {key: part * share for key, share in related.items() if key in self._postings}
        if one.stem in self._postings:
            found[one.stem] = 1.0
        return found or dict.fromkeys(map(stem, meant_by(one.word, self._vocabulary)), GUESS_SHARE)

    def _best(self, meanings: Mapping[str, float], literal: str) -> tuple[float, dict[int, float]]:
        """Gives the most that `meanings` can count, and what the best of them counts in each tool.

        A stand-in is taken to be no rarer than the word that it stands for, lest it count for more.
        """
        postings = {key: self._postings[key] for key in meanings}
        known = postings.get(literal)
        most = known.rarity if known else max((posting.rarity for posting in postings.values()), default=0.0)
        best: dict[int, float] = {}
        for key, posting in postings.items():
            factor = min(posting.rarity, most) * meanings[key]
            for row, count in zip(posting.rows, posting.counts, strict=True):
                if (score := factor * count) > best.get(row, 0.0):
                    best[row] = score
        return most, best

    def _about(self, meanings: Mapping[str, float], literal: str) -> dict[int, float]:
        """Says how much servers are about `literal`, or if the catalog does not have it about the best of its
        meanings."""
        found: dict[int, float] = {}
        for key in [literal] if literal in meanings else meanings:
            for place, score in self._postings[key].servers.items():
                found[place] = max(found.get(place, 0.0), meanings[key] * score)
        return found


def _postings(texts: Sequence[Sequence[Sequence[str]]], places: Sequence[int]) -> dict[str, _Posting]:
    """Gives the postings of tools, each given as the stems of its fields in the order of FIELD_WEIGHTS and its
    server."""
    sizes = Counter(places)
    weights = tuple(FIELD_WEIGHTS.values())
    totals = [sum(len(fields[place]) for fields in texts) for place in range(len(weights))]
    averages = [max(1.0, total / max(1, len(texts))) for total in totals]
    found: defaultdict[str, tuple[array[int], array[float]]] = defaultdict(lambda: (array("I"), array("f")))
    for row, fields in enumerate(texts):
        counts: dict[str, float] = {}
        for stems, weight, average in zip(fields, weights, averages, strict=True):
            per_word = weight / (1.0 - LENGTH_SHARE + LENGTH_SHARE * len(stems) / average)
            for key in stems:
                counts[key] = counts.get(key, 0.0) + per_word
        for key, count in counts.items():
            rows, values = found[key]
            rows.append(row)
            values.append(count / (count + SATURATION))
    postings: dict[str, _Posting] = {}
    for key, (rows, values) in found.items():
        having = Counter(map(places.__getitem__, rows))
        among = _rarity(len(having), len(sizes))
        servers = {place: among * count / (sizes[place] + 1) for place, count in having.items()}
        postings[key] = _Posting(rows, values, _rarity(len(rows), len(texts)), servers)
    return postings


def _rarity(having: int, of: int) -> float:
    """Says what something is worth that `having` have `of` all: BM25's inverse document frequency, never negative."""
    return log(1.0 + (of - having + 0.5) / (having + 0.5))
