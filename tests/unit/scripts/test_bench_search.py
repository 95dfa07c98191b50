"""Search finds more than plain FTS5 does, on queries that were written from tool lists before it was tuned."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from benchmarks import search as measuring
from cellblock.catalog.search import SearchIndex

MARGIN = 0.15
"""Portion of the queries for which search finds an acceptable tool among the first three, and the yardstick none."""


def within_three(rank: Callable[[str], list[str]], queries: list[Any]) -> float:
    return sum(bool(query.tools.intersection(rank(query.text)[:3])) for query in queries) / len(queries)


def half(held_out: bool) -> list[Any]:
    return [query for query in measuring.read_queries() if query.held_out is held_out]


SETS = {
    "tuned": (measuring.FOLDERS, half(False)),
    "held out": (measuring.FOLDERS, half(True)),
    "servers that came later": ((*measuring.FOLDERS, measuring.FRESH), measuring.read_queries("fresh")),
}


def test_queries_are_sound() -> None:
    folders = (*measuring.FOLDERS, measuring.FRESH)
    servers = measuring.read_catalog(folders).servers
    tools = {f"{name}.{tool.tool_name}" for name, server in servers.items() for tool in server.tools}
    main = measuring.read_queries()
    asked = {tool.partition(".")[0] for query in main for tool in query.tools}
    assert len(main) >= 200 and len(asked) >= 12
    assert min(len(half(held_out)) for held_out in (False, True)) >= 0.45 * len(main)
    everything = [query for name in ("relevance", "seen", "fresh") for query in measuring.read_queries(name)]
    assert len({query.text for query in everything}) == len(everything)
    assert all(query.tools and query.tools <= tools for query in everything)


@pytest.mark.parametrize("name", SETS)
def test_search_finds_more_than_plain_fts5(name: str) -> None:
    folders, queries = SETS[name]
    catalog = measuring.read_catalog(folders)
    search = within_three(measuring.search_rank(SearchIndex(catalog)), queries)
    for tokenize in ("unicode61", "porter unicode61"):
        with measuring.plain_fts5(catalog, tokenize) as plain:
            assert search >= within_three(plain, queries) + MARGIN
