"""Tool search over one catalog snapshot (Code Mode specification, sections 4.2.5 and 4.2.7).

Ranking is BM25 with field weights and Porter stemming by SQLite's FTS5, from the standard library and
in memory. Every term of the query is scored by itself: over all fields, again over the tool names
alone (where a short name wins), and at a discount by its synonyms; a term that no tool has is taken
for the catalog's own words that it may stand for. The sums are scaled by how much of the query matched.
"""

from __future__ import annotations

import sqlite3
import weakref
from collections.abc import Sequence
from dataclasses import dataclass

from cellblock.catalog.model import Catalog, ServerEntry, ToolEntry
from cellblock.catalog.search_text import name_key, query_terms, tool_text
from cellblock.catalog.search_vocabulary import Vocabulary, joined_pairs, meant_by, synonyms

DEFAULT_LIMIT = 20
"""Results when the caller names no limit: more than an agent reads, few enough to print."""
MAX_LIMIT = 100
"""Results at most, whatever the caller asks for (section 4.2.7: host-defined maximum)."""

FIELD_WEIGHTS = {"name": 10.0, "server": 3.0, "summary": 4.0, "details": 1.0, "properties": 2.0, "notes": 0.5}
"""BM25 weight of each field. Figures within a factor of two of these rank the relevance set alike."""
NAME_SHARE = 0.6
"""Weight of the score over tool names alone, beside 1 for the score over all fields."""
SYNONYM_SHARE = 0.4
"""Weight of a synonym's score, beside 1 for the term that the query has."""
COVERAGE_SHARE = 0.5
"""Part of a score that is scaled by the portion of the query's terms that the tool matches."""
EXACT_NAME_BONUS = 100.0
"""Added where the query is the tool's name: more than any sum of scores comes to."""

_FIELDS = ", ".join(FIELD_WEIGHTS)
_TOKENIZE = "tokenize='porter unicode61'"
_CREATE = (
    f"CREATE VIRTUAL TABLE tool_text USING fts5({_FIELDS}, content='', {_TOKENIZE})",
    f"CREATE VIRTUAL TABLE tool_name USING fts5(name, content='', {_TOKENIZE})",
)
_INSERT_TEXT = f"INSERT INTO tool_text(rowid, {_FIELDS}) VALUES (?, ?, ?, ?, ?, ?, ?)"
_INSERT_NAME = "INSERT INTO tool_name(rowid, name) VALUES (?, ?)"
_MATCH_TEXT = (
    f"SELECT rowid, -bm25(tool_text, {', '.join(map(str, FIELD_WEIGHTS.values()))}) FROM tool_text"
    " WHERE tool_text MATCH ? AND rowid BETWEEN ? AND ?"
)
_MATCH_NAME = (
    "SELECT rowid, -bm25(tool_name) FROM tool_name WHERE tool_name MATCH ? AND rowid BETWEEN ? AND ?"
)
_OCCURS = "SELECT 1 FROM tool_text WHERE tool_text MATCH ? LIMIT 1"


class SearchUnavailableError(RuntimeError):
    """This Python's SQLite was built without FTS5."""


@dataclass(frozen=True, slots=True)
class SearchHit:
    """One result: higher `score` is better; scores of different queries cannot be compared."""

    server: ServerEntry
    tool: ToolEntry
    score: float


class SearchIndex:
    """An index of every tool of one `Catalog`; immutable, and released with its last reference.

    Raises SearchUnavailableError where SQLite has no FTS5.
    """

    def __init__(self, catalog: Catalog) -> None:
        # Catalogs may be built in a worker thread and searched from the loop; SQLite serialises the calls.
        self._db = sqlite3.connect(":memory:", check_same_thread=False, isolation_level=None)
        self._close = weakref.finalize(self, self._db.close)
        try:
            for statement in _CREATE:
                self._db.execute(statement)
        except sqlite3.OperationalError as error:
            self._close()
            raise SearchUnavailableError(f"tool search needs SQLite with FTS5: {error}") from error
        self._rows: list[tuple[ServerEntry, ToolEntry]] = []
        self._ranges: dict[str, tuple[int, int]] = {}
        self._exact: dict[str, list[int]] = {}
        self._vocabulary = Vocabulary()
        self._fill(catalog)

    def __len__(self) -> int:
        return len(self._rows)

    def _fill(self, catalog: Catalog) -> None:
        texts: list[tuple[int | str, ...]] = []
        names: list[tuple[int, str]] = []
        for server_id, server in catalog.servers.items():
            first = len(self._rows)
            for tool in sorted(server.tools, key=lambda entry: entry.tool_name):
                row = len(self._rows)
                text = tool_text(server, tool)
                texts.append((row, *text))
                names.append((row, text.name))
                self._vocabulary.add(text.name, text.server, text.properties, text.summary)
                for key in {name_key(name) for name in (tool.tool_name, tool.export_name)}:
                    self._exact.setdefault(key, []).append(row)
                self._rows.append((server, tool))
            self._ranges[server_id] = (first, len(self._rows) - 1)
        self._db.execute("BEGIN")
        self._db.executemany(_INSERT_TEXT, texts)
        self._db.executemany(_INSERT_NAME, names)
        self._db.execute("COMMIT")

    def search(
        self, query: str, *, server_id: str | None = None, limit: int = DEFAULT_LIMIT
    ) -> list[SearchHit]:
        """The best matches of `query` (any text), best first; equal scores by server order, then tool name.

        `limit` is capped at MAX_LIMIT; below 1 it gives no results. A query without a word, an unknown
        `server_id`, and a query that nothing matches give an empty list. Never raises on any query text.
        """
        span = (0, len(self._rows) - 1) if server_id is None else self._ranges.get(server_id, (0, -1))
        wanted = query_terms(query)
        if not wanted or limit < 1 or span[1] < span[0]:
            return []
        scores = self._scores(wanted, span)
        for row in self._exact.get(name_key(query), ()):
            if span[0] <= row <= span[1]:
                scores[row] = scores.get(row, 0.0) + EXACT_NAME_BONUS
        # Rounded, so that two equal tools of two servers tie whatever the order of the additions was.
        ranked = sorted((-round(score, 9), row) for row, score in scores.items())
        return [SearchHit(*self._rows[row], -negated) for negated, row in ranked[: min(limit, MAX_LIMIT)]]

    def _scores(self, wanted: Sequence[str], span: tuple[int, int]) -> dict[int, float]:
        """Score by row: the sum over the query's terms, scaled by the portion of them that matched."""
        totals: dict[int, float] = {}
        matched: dict[int, int] = {}
        for term in wanted:
            for row, score in self._term_scores(term, span).items():
                totals[row] = totals.get(row, 0.0) + score
                matched[row] = matched.get(row, 0) + 1
        for row, count in matched.items():
            totals[row] *= 1.0 - COVERAGE_SHARE * (1.0 - count / len(wanted))
        for term in joined_pairs(wanted, self._vocabulary):
            for row, score in self._bm25((term,), span).items():
                totals[row] = totals.get(row, 0.0) + score
        return totals

    def _term_scores(self, term: str, span: tuple[int, int]) -> dict[int, float]:
        scores = self._bm25((term,), span)
        # Asked of all servers, so that a filter by server cannot turn a known word into a misspelling.
        if not scores and self._db.execute(_OCCURS, (_any_of((term,)),)).fetchone() is None:
            scores = self._bm25(meant_by(term, self._vocabulary), span)
        for row, score in self._bm25(synonyms(term), span).items():
            scores[row] = max(scores.get(row, 0.0), SYNONYM_SHARE * score)
        return scores

    def _bm25(self, words: Sequence[str], span: tuple[int, int]) -> dict[int, float]:
        """The score of every row in `span` that has one of `words`."""
        if not words:
            return {}
        arguments = (_any_of(words), *span)
        scores: dict[int, float] = dict(self._db.execute(_MATCH_TEXT, arguments))
        for row, score in self._db.execute(_MATCH_NAME, arguments):
            scores[row] += NAME_SHARE * score
        return scores


def _any_of(words: Sequence[str]) -> str:
    """An FTS5 expression for any of `words`; terms hold no quote, so none can leave its string."""
    return " OR ".join(f'"{word}"' for word in words)
