"""Search finds more than plain FTS5 does, on queries that were written from tool lists before it was tuned."""

from __future__ import annotations

from typing import Any

import pytest

from benchmarks import search as measuring
from cellblock.types.search import SearchIndex


def half(held_out: bool) -> list[Any]:
    return [query for query in measuring.read_queries() if query.held_out is held_out]


SETS = {
    "tuned": (measuring.FOLDERS, half(False)),
    "held out": (measuring.FOLDERS, half(True)),
    "servers that came later": ((*measuring.FOLDERS, measuring.FRESH), measuring.read_queries("fresh")),
    "an outsider's": ((measuring.OUTSIDE,), measuring.read_queries("outside")),
}


def test_queries_are_sound() -> None:
    folders = (*measuring.FOLDERS, measuring.FRESH, measuring.OUTSIDE)
    servers = measuring.read_catalog(folders).servers
    tools = {f"{name}.{tool.tool_name}" for name, server in servers.items() for tool in server.tools}
    main = measuring.read_queries()
    asked = {tool.partition(".")[0] for query in main for tool in query.tools}
    assert len(main) >= 200 and len(asked) >= 12
    assert min(len(half(held_out)) for held_out in (False, True)) >= 0.45 * len(main)
    everything = [query for name in ("relevance", "seen", "fresh") for query in measuring.read_queries(name)]
    assert len({query.text for query in everything}) == len(everything)
    outside = measuring.read_queries("outside")
    asked = {tool.partition(".")[0] for query in outside for tool in query.tools}
    assert len({query.text for query in outside}) == len(outside) >= 100 and len(asked) >= 12
    assert all(query.tools and query.tools <= tools for query in [*everything, *outside])


@pytest.mark.parametrize("name", SETS)
def test_search_finds_more_than_plain_fts5(name: str) -> None:
    folders, queries = SETS[name]
    catalog = measuring.read_catalog(folders)
    search = measuring.within(measuring.search_rank(SearchIndex(catalog)), queries, 3)
    with measuring.plain_fts5(catalog, "unicode61") as plain:
        assert search >= measuring.within(plain, queries, 3) + measuring.MARGIN
