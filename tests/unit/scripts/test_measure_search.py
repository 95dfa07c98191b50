"""Search finds more than plain FTS5 does, on queries that were written from tool lists before it was tuned."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cellblock.catalog.search import SearchIndex

SCRIPT = Path(__file__).parents[3] / "scripts" / "measure_search.py"
MARGIN = 0.15
"""Portion of the queries for which search finds an acceptable tool among the first three, and the yardstick none."""


def loaded() -> Any:
    spec = importlib.util.spec_from_file_location("measure_search", SCRIPT)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module  # where dataclasses look up their annotations
    spec.loader.exec_module(module)
    return module


MEASURE = loaded()


def within_three(rank: Callable[[str], list[str]], queries: list[Any]) -> float:
    return sum(bool(query.tools.intersection(rank(query.text)[:3])) for query in queries) / len(queries)


def half(held_out: bool) -> list[Any]:
    return [query for query in MEASURE.read_queries() if query.held_out is held_out]


SETS = {
    "tuned": (MEASURE.FOLDERS, half(False)),
    "held out": (MEASURE.FOLDERS, half(True)),
    "servers that came later": ((*MEASURE.FOLDERS, MEASURE.FRESH), MEASURE.read_queries("fresh")),
}


def test_queries_are_sound() -> None:
    folders = (*MEASURE.FOLDERS, MEASURE.FRESH)
    servers = MEASURE.read_catalog(folders).servers
    tools = {f"{name}.{tool.tool_name}" for name, server in servers.items() for tool in server.tools}
    main = MEASURE.read_queries()
    asked = {tool.partition(".")[0] for query in main for tool in query.tools}
    assert len(main) >= 200 and len(asked) >= 12
    assert min(len(half(held_out)) for held_out in (False, True)) >= 0.45 * len(main)
    everything = [query for name in ("relevance", "seen", "fresh") for query in MEASURE.read_queries(name)]
    assert len({query.text for query in everything}) == len(everything)
    assert all(query.tools and query.tools <= tools for query in everything)


@pytest.mark.parametrize("name", SETS)
def test_search_finds_more_than_plain_fts5(name: str) -> None:
    folders, queries = SETS[name]
    catalog = MEASURE.read_catalog(folders)
    search = within_three(MEASURE.search_rank(SearchIndex(catalog)), queries)
    for tokenize in ("unicode61", "porter unicode61"):
        assert search >= within_three(MEASURE.plain_fts5(catalog, tokenize), queries) + MARGIN
