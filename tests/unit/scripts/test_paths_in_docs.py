"""Every path of this project that README.md and the pages name is there, and every heading that they link to."""

from __future__ import annotations

import functools
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = [
    *(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "SECURITY.md")),
    *sorted((ROOT / "docs").glob("*.md")),
    *sorted((ROOT / "docs" / "decisions").glob("*.md")),
]
BELOW = (
    "",
    "broker/cellblock",
    "broker/cellblock/frontend",
    "worker_runtime",
    "worker_runtime/cellblock_worker",
)
PATH = re.compile(r"`((?:[\w.]+/)+[\w]+\.(?:py|ts))`")
TESTS = "tests/unit/.../"


def is_there(path: str) -> bool:
    if path.startswith(TESTS):
        return any((ROOT / "tests" / "unit").glob(f"*/*/{path[len(TESTS) :]}"))
    return any((ROOT / below / path).is_file() for below in BELOW)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_names_files_that_are_there(page: Path) -> None:
    named = PATH.findall(page.read_text(encoding="utf-8"))
    assert [path for path in named if not is_there(path)] == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_a_page_links_to_headings_that_are_there(page: Path) -> None:
    links = re.findall(r"\]\(((?![a-z]+:)[^)#\s]*)#([^)\s]+)\)", prose(page))
    targets = [(page.parent / path if path else page, anchor) for path, anchor in links]
    assert [f"{target.name}#{anchor}" for target, anchor in targets if anchor not in anchors(target)] == []


def prose(page: Path) -> str:
    return re.sub(r"^( *)```.*?^\1```$", "", page.read_text(encoding="utf-8"), flags=re.DOTALL | re.MULTILINE)


@functools.cache
def anchors(page: Path) -> set[str]:
    """What GitHub makes of the headings of a page, and so does the site."""
    titles = re.findall(r"^#+ (.*)$", prose(page), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_table_of_the_path_is_found() -> None:
    page = (ROOT / "docs" / "architecture.md").read_text(encoding="utf-8")
    _, _, table = page.partition("## Where each step of the path lives")
    assert len(PATH.findall(table.partition("\n## ")[0])) > 20


def test_every_decision_is_in_the_contents() -> None:
    page = (ROOT / "docs" / "decisions" / "README.md").read_text(encoding="utf-8")
    titles = re.findall(r"^## (\d+\. .*)$", page, re.MULTILINE)
    listed = re.findall(r"^- \[(\d+\. .*)\]\(#(\d+)-[^)]*\)$", page, re.MULTILINE)
    assert sorted(listed) == sorted((title, title.partition(".")[0]) for title in titles)
