"""What a query asks for: words, stems, phrases, compounds; and the groups of words that stand for each other."""

from itertools import pairwise
from pathlib import Path

import pytest

from cellblock.types import search_words
from cellblock.types.search_words import (
    FROM_SPEECH,
    GENERAL_FAR,
    GENERAL_FILE,
    GENERAL_NEAR,
    MAX_PHRASE_WORDS,
    MAX_QUERY_TERMS,
    PHRASE_SHARE,
    VERB_SHARE,
    Wanted,
    fold,
    stem,
    terms,
    wanted_by,
    word_groups,
)

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
    monkeypatch.setattr(search_words, "GENERAL_FILE", tmp_path / "general.txt")
    (tmp_path / "general.txt").write_text("# a licence: of the list\ninvoice: account bill | reckoning\n")
    related, phrases, verbs = word_groups.__wrapped__()
    assert related["open"]["read"] == related["open"]["launch"] < related["bill"]["invoic"]
    assert set(related["start"]) == {"launch", "open"}
    assert phrases == verbs == frozenset()
    # What the general list says comes behind the groups of our own.
    assert related["bill"]["invoic"] == FROM_SPEECH
    assert related["account"] == {"invoic": GENERAL_NEAR} and related["reckon"] == {"invoic": GENERAL_FAR}


def test_verbs_of_intent_weigh_less_than_what_they_are_about() -> None:
    verbs = word_groups().verbs
    assert {"creat", "delet", "list"} <= verbs and "invoic" not in verbs
    assert {one.stem: one.weight for one in wanted_by("delete the invoice", (), (), verbs)} == {
        "delet": VERB_SHARE,
        "invoic": 1.0,
    }
    assert [one.weight for one in wanted_by("delete", (), (), verbs)] == [1.0], "there is nothing else"


def test_the_general_word_list_has_its_licence_with_it() -> None:
    text = GENERAL_FILE.read_text("utf-8")
    assert "WordNet 3.1" in text and "Princeton University" in text and "royalty is hereby granted" in text


def test_the_words_of_one_name_do_not_stand_for_each_other() -> None:
    related = word_groups().related
    assert "writ" not in related["fil"] and "fil" not in related["writ"]
    assert {"writ", "fil"} <= set(related["sav"])


def test_phrases_are_stemmed_by_word() -> None:
    assert {"tim_off", "money_back", "money_front"} & word_groups().phrases == {"tim_off", "money_back"}
    assert word_groups().related["money_back"]["refund"] > 0.5


def test_words_are_stemmed_and_asked_once() -> None:
    assert wanted_by("Issues, issue; closing", set(), set()) == [
        Wanted("issues", "issu", 1.0),
        Wanted("closing", "clos", 1.0),
    ]


def test_a_phrase_is_asked_beside_its_words_which_count_less() -> None:
    assert wanted_by("give the money back now", {"money_back"}, set()) == [
        Wanted("", "money_back", 1.0),
        Wanted("give", "giv", 1.0),
        Wanted("money", "money", PHRASE_SHARE),
        Wanted("back", "back", PHRASE_SHARE),
        Wanted("now", "now", 1.0),
    ]


@pytest.mark.parametrize(
    ("query", "phrases", "known", "asked"),
    [
        ("what is the weather", set[str](), set[str](), ["weather"]),
        pytest.param("what is the", set(), set(), ["what", "is", "the"], id="stop words alone"),
        ("", set(), set(), []),
        (" ?! ", set(), set(), []),
        pytest.param(
            "how do i sign in", {"sign_in"}, set(), ["sign_in", "sign"], id="a phrase of stop words"
        ),
        ("to do", {"to_do"}, set(), ["to_do"]),
        pytest.param(
            "time zones", set(), {"timezon"}, ["tim", "zon", "timezon"], id="one word in the catalog"
        ),
        ("time zones", set(), set(), ["tim", "zon"]),
    ],
)
def test_what_is_asked(query: str, phrases: set[str], known: set[str], asked: list[str]) -> None:
    assert [one.stem for one in wanted_by(query, phrases, known)] == asked


def test_long_queries_are_bounded() -> None:
    words = [f"w{chr(97 + i // 26)}{chr(97 + i % 26)}" for i in range(200)]
    phrases = {"_".join(pair) for pair in pairwise(words)}
    assert len(wanted_by(" ".join(words), set(), set())) == MAX_QUERY_TERMS
    assert len(wanted_by(" ".join(words), phrases, set())) <= MAX_QUERY_TERMS


@pytest.mark.parametrize(
    "words",
    [
        "issue issues",
        "query queries",
        "delete deletes deleted deleting",
        "copy copies",
        "stop stopped stopping stops",
        "merge merging merged",
        "status",
        "access",
    ],
)
def test_forms_of_one_word_have_one_stem(words: str) -> None:
    assert len({stem(word) for word in words.split()}) == 1


@pytest.mark.parametrize(
    "word", ["bus", "ids", "red", "ring", "class", "file2", "файлы", "文件", "", "status"]
)
def test_short_and_other_words_are_kept(word: str) -> None:
    assert stem(word) == word


def test_different_tools_keep_different_stems() -> None:
    words = ["organization", "organ", "relation", "relative", "migrate", "migration", "notify", "note"]
    assert len({stem(word) for word in words}) == len(words)


@pytest.mark.parametrize(
    ("text", "plain"),
    [("fenêtre", "fenetre"), ("ﬁle", "file"), ("Ｆｉｌｅ", "File"), ("Müller", "Muller")],
)
def test_spellings_of_latin_are_folded(text: str, plain: str) -> None:
    assert fold(text) == plain


@pytest.mark.parametrize("text", ["страницей", "ガギグ", "한국어", "读取"])
def test_marks_of_other_scripts_are_kept(text: str) -> None:
    assert fold(text) == text
    assert "".join(terms(text))
