"""Search terms: stems and folding."""

from __future__ import annotations

import pytest

from cellblock.types.search_text import fold, stem, terms


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
