"""What a query asks for: words, phrases, compounds."""

from __future__ import annotations

from itertools import pairwise

from cellblock.catalog.search_query import PHRASE_SHARE, Wanted, wanted_by
from cellblock.catalog.search_text import MAX_QUERY_TERMS


def stems(query: str, phrases: set[str] | None = None, known: set[str] | None = None) -> list[str]:
    return [one.stem for one in wanted_by(query, phrases or set(), known or set())]


def test_words_are_stemmed_and_asked_once() -> None:
    assert wanted_by("Issues, issue; closing", set(), set()) == [
        Wanted("issues", "issu", 1.0),
        Wanted("closing", "clos", 1.0),
    ]


def test_stop_words_are_asked_only_alone() -> None:
    assert stems("what is the weather") == ["weather"]
    assert stems("what is the") == ["what", "is", "the"]
    assert stems("") == stems(" ?! ") == []


def test_a_phrase_is_asked_beside_its_words_which_count_less() -> None:
    asked = wanted_by("give the money back now", {"money_back"}, set())
    assert asked[0] == Wanted("", "money_back", 1.0)
    assert {one.stem: one.weight for one in asked[1:]} == {
        "giv": 1.0,
        "money": PHRASE_SHARE,
        "back": PHRASE_SHARE,
        "now": 1.0,
    }


def test_a_phrase_may_be_of_stop_words() -> None:
    assert stems("how do i sign in", {"sign_in"}) == ["sign_in", "sign"]
    assert stems("to do", {"to_do"}) == ["to_do"]


def test_neighbours_that_are_one_word_in_the_catalog() -> None:
    assert stems("time zones", known={"timezon"}) == ["tim", "zon", "timezon"]
    assert stems("time zones") == ["tim", "zon"]


def test_long_queries_are_bounded() -> None:
    words = [f"w{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(200)]
    phrases = {"_".join(pair) for pair in pairwise(words)}
    assert len(stems(" ".join(words))) == MAX_QUERY_TERMS
    assert len(stems(" ".join(words), phrases)) <= MAX_QUERY_TERMS
