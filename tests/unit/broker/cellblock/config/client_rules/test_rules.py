"""Patterns of names in which a server's name and a tool's are one text, and rules that an entry takes."""

from __future__ import annotations

import re
from itertools import product
from pathlib import Path

import pytest

from cellblock.config.client_rules.rules import MAX_FILES, Files, Rule, fits, rest_of, restricted


def test_the_rest_of_a_pattern_fits_what_the_whole_fits() -> None:
    """Held against Python's own regular expressions, for all patterns and texts of a small alphabet."""
    texts = ["".join(one) for length in range(1, 4) for one in product("a_", repeat=length)]
    for length in range(1, 6):
        for pattern in map("".join, product("a_*", repeat=length)):
            whole = re.compile(pattern.replace("*", ".*"))
            rests = rest_of(pattern, "a_")
            for text in texts:
                assert any(fits(rest, text) for rest in rests) == bool(whole.fullmatch(f"a_{text}")), (
                    pattern,
                    text,
                )


def test_one_character_of_any_kind_becomes_any_characters() -> None:
    assert rest_of("gh_re?d", "gh_") == ["re*d"]
    assert rest_of("g?_read", "gh_") == ["read"]


def test_a_list_of_the_only_tools_is_not_made_of_two() -> None:
    entry = {"command": "x", "enabledTools": ["a", "b"]}
    made = restricted(entry, [Rule("on", "tools in x.json", "b")])
    assert made.trouble == "tools in x.json and enabledTools both say which tools may be used"
    assert restricted(entry, [Rule("off", "tools", "b"), Rule("off", "tools", "b")]).entry == {
        **entry,
        "disabledTools": ["b"],
    }


def test_a_list_that_is_none_is_left_for_the_validation() -> None:
    entry = {"command": "x", "disabledTools": "all"}
    assert restricted(entry, [Rule("off", "tools", "b")]).entry == entry


def test_what_cannot_be_read_is_noted(tmp_path: Path) -> None:
    files = Files()
    (tmp_path / "a.json").mkdir()
    (tmp_path / "b.json").write_text("[]")
    (tmp_path / "c.md").write_text("---\n: {\n---\n")
    assert (
        files.data(tmp_path / "a.json")
        == files.data(tmp_path / "b.json")
        == files.data(tmp_path / "none.json")
        == {}
    )
    assert files.frontmatter(tmp_path / "c.md") == {}
    assert [file.name for file in files.unreadable] == ["a.json", "b.json", "c.md"]
    assert files.unreadable[tmp_path / "a.json"] == "it is a directory"


def test_a_folder_with_very_many_files_is_not_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellblock.config.client_rules.rules.MAX_FILES", 2)
    for name in ("a", "b", "c"):
        (tmp_path / f"{name}.md").touch()
    files = Files()
    assert len(files.in_folder(tmp_path, "*.md")) == 2
    assert files.unreadable == {tmp_path: "it has more than 2 files"}
    assert MAX_FILES == 1000
