"""The groups of words that stand for each other, as the file has them and as search reads them."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellblock.catalog import search_words
from cellblock.catalog.search_words import MAX_PHRASE_WORDS, word_groups

FILE = Path(search_words.__file__).with_name("search_words.txt")
LINES = [line for line in FILE.read_text("utf-8").splitlines() if line.strip() and not line.startswith("#")]


def test_every_line_is_a_group() -> None:
    for line in LINES:
        tools, colon, said = line.removeprefix("+ ").partition(":")
        words = [*tools.split(), *said.split()]
        assert tools.split() and not tools.startswith(" "), line
        assert bool(colon) == bool(said.strip()), line
        assert len(words) >= 2 and len(set(words)) == len(words), line
        assert "_" not in tools, line
        assert all(word.replace("_", "").isalnum() and word == word.lower() for word in words), line
        assert all(word.count("_") < MAX_PHRASE_WORDS for word in words), line
    assert len(set(LINES)) == len(LINES)


def test_words_stand_for_each_other_less_than_for_themselves() -> None:
    related = word_groups().related
    assert related["bill"]["invoic"] > related["invoic"]["bill"] > 0
    for word, shares in related.items():
        assert word not in shares
        assert all(0 < share < 1 for share in shares.values())


def test_a_word_of_many_groups_stands_for_less(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "words.txt"
    path.write_text("# a comment\nread: open\nnavigate: open  # another\nlaunch: open start\ninvoice: bill\n")
    monkeypatch.setattr(search_words, "_FILE", path)
    related, phrases = word_groups.__wrapped__()
    assert related["open"]["read"] == related["open"]["launch"] < related["bill"]["invoic"]
    assert set(related["start"]) == {"launch", "open"}
    assert phrases == frozenset()


def test_the_words_of_one_name_do_not_stand_for_each_other() -> None:
    related = word_groups().related
    assert "writ" not in related["fil"] and "fil" not in related["writ"]
    assert {"writ", "fil"} <= set(related["sav"])


def test_phrases_are_stemmed_by_word() -> None:
    assert {"tim_off", "money_back", "money_front"} & word_groups().phrases == {"tim_off", "money_back"}
    assert word_groups().related["money_back"]["refund"] > 0.5
