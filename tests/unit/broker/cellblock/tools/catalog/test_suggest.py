"""Near-miss suggestions for unknown names (section 7.3)."""

from __future__ import annotations

import random
import time

import pytest

from cellblock.base.suggest import MAX_CANDIDATES, nearest_names
from support.recorded_catalogs import recorded_tools

TOOLS = [tool["name"] for tool in recorded_tools()]


@pytest.mark.parametrize(
    ("name", "best"),
    [
        ("create_pull_requst", "create_pull_request"),
        ("createPullRequest", "create_pull_request"),
        ("CREATE-ISSUE", "create_issue"),
        ("issue_create", "create_issue"),
        ("list_dir", "list_directory"),
        ("brwoser_click", "browser_click"),
        ("geocode", "maps_geocode"),
        ("tree", "directory_tree"),
        ("query_docs", "query-docs"),
        ("API_post_page", "API-post-page"),
    ],
)
def test_finds_the_tool_that_was_meant(name: str, best: str) -> None:
    assert nearest_names(name, TOOLS)[0] == best


def test_one_slip_in_any_real_name_is_recovered() -> None:
    dice = random.Random(3)
    names = sorted({name for name in TOOLS if len(name) >= 8})
    slips: list[tuple[str, str]] = []
    for name in names:
        at = dice.randrange(1, len(name) - 2)
        slips.append((name[:at] + name[at + 1 :], name))
        slips.append((name[:at] + name[at + 1] + name[at] + name[at + 2 :], name))
    missed = [pair for pair in slips if pair[0] not in TOOLS and pair[1] not in nearest_names(pair[0], TOOLS)]
    assert len(missed) <= len(names) // 50, missed


def test_nothing_similar_suggests_nothing() -> None:
    assert nearest_names("xyzzy", TOOLS) == []
    assert nearest_names("", TOOLS) == nearest_names("_-_", TOOLS) == nearest_names("\ud800", TOOLS) == []
    assert nearest_names("click", []) == []


def test_a_part_of_a_name_begins_with_a_word_or_is_half_of_it() -> None:
    assert nearest_names("subtract", ["act", "add"]) == []
    assert nearest_names("act", ["subtract"]) == []
    assert nearest_names("dir", ["list_directory"]) == ["list_directory"]
    assert nearest_names("code", ["geocode"]) == ["geocode"]
    assert nearest_names("issues", ["list_repository_issues"]) == ["list_repository_issues"]


def test_limit_order_and_duplicates() -> None:
    names = ["page_b", "page_a", "page_b", "page_c", "page_d"]
    assert nearest_names("page", names) == ["page_b", "page_a", "page_c"]
    assert nearest_names("page", names, limit=1) == ["page_b"]
    assert nearest_names("page", names, limit=0) == nearest_names("page", names, limit=-1) == []
    assert nearest_names("page", iter(names), limit=9) == ["page_b", "page_a", "page_c", "page_d"]


def test_other_scripts() -> None:
    assert nearest_names("страницы", ["страница", "браузер"]) == ["страница"]
    assert nearest_names("Café", ["cafe", "thé"]) == ["cafe"]


def test_hostile_names_are_bounded() -> None:
    alike = ["a" * 1000 + str(number) for number in range(MAX_CANDIDATES)]
    started = time.process_time()
    assert len(nearest_names("a" * 1_000_000, alike)) == 3
    nearest_names("\0\ud800" * 100_000, TOOLS)
    endless = iter(f"{number}abc" for number in range(10**6))
    nearest_names("abc" * 100_000, endless)
    assert next(endless) == f"{MAX_CANDIDATES}abc"
    assert time.process_time() - started < 4


def test_random_text_never_raises() -> None:
    dice = random.Random(11)
    for _ in range(2000):
        text = "".join(chr(dice.randrange(0x110000)) for _ in range(dice.randrange(20)))
        assert len(nearest_names(text, [text[1:], text[::-1], "plain"])) <= 3
