"""Measures how often tool search finds an acceptable tool, and how long it takes.

    bash scripts/bench search               the half that search is tuned with
    bash scripts/bench search --misses      with the queries that found nothing among the first three
    bash scripts/bench search --held-out    the other half
    bash scripts/bench search --fresh       the queries of servers that came later
    bash scripts/bench search --outside     those of someone who had read neither the search nor its words

The queries of tests/fixtures/search/relevance.json were written from the tool lists alone, and kept before anything was
tuned. A hash of its text puts each into one of two halves. The held-out half's misses are never shown, and nobody tunes
with what it says. It is not as strict a test as it looks: whoever wrote the word groups had written the queries too. So
fresh.json has queries for servers that no word was written for and nothing was tuned with, all others in the way.
Those of seen.json were that until their misses were looked at. outside.json has queries over the lists of thirteen
more servers, searched alone, by someone who had not read the search's code nor its word groups, committed before
anything was changed; their misses are never shown either.

The exit code is 1 where search does not find 0.15 more within three than plain FTS5, or one query in a hundred takes
3 ms of processor time.

The yardstick is plain FTS5: one table, every word of a query or-ed, ranked by its BM25, each text as the server sent
it; with the tokenizer as it is by default, and with Porter stems.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import sqlite3
import statistics
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, cast

from benchmarks.harness import CATALOGS, FIXTURES, best_of, parser
from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry
from cellblock.tools.catalog.naming import export_names
from cellblock.types.search import SearchIndex

FOLDERS = (CATALOGS, FIXTURES / "search" / "catalogs")
FRESH = FIXTURES / "search" / "fresh_catalogs"
OUTSIDE = FIXTURES / "search" / "outside_catalogs"
MARGIN = 0.15
"""What search has to find within three more than plain FTS5, as a share of the queries."""
MOST_MS = 3.0
"""Bounds the processor time of one query in a hundred."""
ROUNDS = 5
"""Times that every query is asked for the figures of time; the fastest of each query counts."""

Rank = Callable[[str], list[str]]


@dataclass(frozen=True, slots=True)
class Query:
    """One query of the relevance set, with the names of the tools that it may find."""

    text: str
    style: str
    tools: frozenset[str]

    @property
    def held_out(self) -> bool:
        """Whether the query is of the half that is not tuned with."""
        return hashlib.sha256(self.text.encode()).digest()[0] % 2 == 1


def read_queries(name: str = "relevance") -> list[Query]:
    """The queries of one file."""
    entries = json.loads((FIXTURES / "search" / f"{name}.json").read_text("utf-8"))
    return [Query(entry["query"], entry["style"], frozenset(entry["tools"])) for entry in entries]


def read_catalog(folders: Sequence[Path] = FOLDERS) -> Catalog:
    """The recorded tool lists as one catalog."""
    servers: dict[str, ServerEntry] = {}
    for path in sorted((path for folder in folders for path in folder.glob("*.json")), key=lambda p: p.stem):
        document = cast("dict[str, Any]", json.loads(path.read_text("utf-8")))
        exports = export_names([raw["name"] for raw in document["tools"]])
        tools = tuple(
            ToolEntry(
                raw["name"],
                exports[raw["name"]],
                raw.get("description"),
                {"title": raw["title"]} if "title" in raw else raw.get("annotations"),
                raw["inputSchema"],
            )
            for raw in document["tools"]
        )
        servers[path.stem] = ServerEntry(path.stem, document["server"]["name"], path.stem, tools=tools)
    return Catalog(servers=servers)


@contextlib.contextmanager
def plain_fts5(catalog: Catalog, tokenize: str) -> Generator[Rank]:
    """The yardstick with one of FTS5's tokenizers."""
    database = sqlite3.connect(":memory:")
    database.execute(
        "CREATE VIRTUAL TABLE tool USING fts5"
        f"(found UNINDEXED, server, name, description, parameters, tokenize='{tokenize}')"
    )
    for server_id, server in catalog.servers.items():
        for tool in server.tools:
            schema = cast("dict[str, Any]", tool.input_schema)
            parameters: dict[str, Any] = schema.get("properties", {})
            notes = (f"{name} {below.get('description', '')}" for name, below in parameters.items())
            row = (
                f"{server_id}.{tool.tool_name}",
                server_id,
                tool.tool_name,
                tool.description,
                " ".join(notes),
            )
            database.execute("INSERT INTO tool VALUES (?, ?, ?, ?, ?)", row)

    def rank(query: str) -> list[str]:
        words = " OR ".join(f'"{word}"' for word in re.findall(r"\w+", query))
        rows = database.execute("SELECT found FROM tool WHERE tool MATCH ? ORDER BY rank LIMIT 5", (words,))
        return [found for (found,) in rows]

    with contextlib.closing(database):
        yield rank


def search_rank(index: SearchIndex) -> Rank:
    """Cellblock's search."""

    def rank(query: str) -> list[str]:
        return [f"{hit.server.server_id}.{hit.tool.tool_name}" for hit in index.search(query, limit=5)]

    return rank


def within(rank: Rank, queries: Sequence[Query], depth: int) -> float:
    """The share of queries with an acceptable tool among the first few."""
    return statistics.fmean(bool(query.tools.intersection(rank(query.text)[:depth])) for query in queries)


def shares(rank: Rank, queries: Sequence[Query]) -> str:
    """The shares of queries with an acceptable tool first, and among the first three and five."""
    return " | ".join(f"{within(rank, queries, depth):.3f}" for depth in (1, 3, 5))


def print_times(index: SearchIndex, queries: Sequence[Query]) -> float:
    """Print the processor time of a search in this process, median and 99th percentile over all queries; the latter is
    returned, in milliseconds."""
    searches = [partial(index.search, query.text, limit=5) for query in queries]
    took = [best_of(search, ROUNDS, time.process_time) * 1e3 for search in searches]
    median, last = statistics.median(took), statistics.quantiles(took, n=100)[98]
    print(f"\nTime of a query over {len(index)} tools: median {median:.2f} ms, p99 {last:.2f} ms")
    return last


def print_shares(halves: Mapping[str, Sequence[Query]], ranks: Mapping[str, Rank]) -> None:
    """Print what each ranking finds of each half, and search of each style of query."""
    print("| half | queries | ranking | first | within 3 | within 5 |\n|---|---|---|---|---|---|")
    for name, half in halves.items():
        for ranking, rank in ranks.items():
            print(f"| {name} | {len(half)} | {ranking} | {shares(rank, half)} |")
        for style in sorted({query.style for query in half}):
            some = [query for query in half if query.style == style]
            print(f"| {name}: {style} | {len(some)} | search | {shares(ranks['search'], some)} |")


def main(arguments: Sequence[str]) -> int:
    """Prints the tables; returns whether the goals are met."""
    arguing = parser("bench search", __doc__)
    arguing.add_argument("--held-out", action="store_true", help="measure the half that is not tuned with")
    arguing.add_argument(
        "--fresh", action="store_true", help="measure the queries of the servers that came later"
    )
    arguing.add_argument(
        "--outside", action="store_true", help="measure the queries of someone who knew the tool lists alone"
    )
    arguing.add_argument("--misses", action="store_true", help="print what the tuned half does not find")
    options = arguing.parse_args(arguments)
    folders = (OUTSIDE,) if options.outside else (*FOLDERS, FRESH) if options.fresh else FOLDERS
    catalog = read_catalog(folders)
    queries = read_queries("outside" if options.outside else "fresh" if options.fresh else "relevance")
    started = time.process_time()
    index = SearchIndex(catalog)
    built = time.process_time() - started
    halves = {"tuned": [query for query in queries if not query.held_out]}
    if options.outside:
        halves = {"outside": queries}
    elif options.fresh:
        halves = {"seen": read_queries("seen"), "fresh": queries}
    elif options.held_out:
        halves["held out"] = [query for query in queries if query.held_out]
    print(f"{len(queries)} queries over {len(index)} tools of {len(catalog.servers)} servers\n")
    with (
        plain_fts5(catalog, "unicode61") as plain,
        plain_fts5(catalog, "porter unicode61") as stemmed,
    ):
        ranks = {"plain FTS5": plain, "plain FTS5, porter": stemmed, "search": search_rank(index)}
        print_shares(halves, ranks)
        found = ranks["search"]
        is_met = all(within(found, half, 3) >= within(plain, half, 3) + MARGIN for half in halves.values())
    is_met &= print_times(index, queries) < MOST_MS
    print(f"Building the index: {built * 1e3:.0f} ms")
    if options.misses and "tuned" in halves:
        for query in halves["tuned"]:
            names = search_rank(index)(query.text)
            if not query.tools.intersection(names[:3]):
                print(
                    f"\n{query.text}\n  wanted {', '.join(sorted(query.tools))}\n  found  {', '.join(names)}"
                )
    return 0 if is_met else 1
