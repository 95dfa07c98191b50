"""What people see of other people's text."""

from __future__ import annotations

import pytest

from cellblock.base.visible_text import is_visible, legible, spelled_out


@pytest.mark.parametrize("character", list("a ü✓日❤🎉\u0301\u093f\u1820\U0001f3fd"))
def test_letters_signs_and_marks_are_seen(character: str) -> None:
    assert is_visible(character)
    assert legible(f"a{character}b") == f"a{character}b"


@pytest.mark.parametrize(
    "character",
    list(
        "\n\t\x1b\x9b\u00a0\u00ad\u034f\u061c\u115f\u1160\u17b4\u17b5\u180b\u180e\u200b\u200f\u2028\u202e\u2065\u2800"
    )
    + list("\u3000\u3164\ufeff\uffa0\ufff0\U0001d173\U000e0001\U000e0041\U000e0100\U000e0fff\ue000"),
    ids=ascii,
)
def test_what_is_not_seen_is_told(character: str) -> None:
    assert not is_visible(character)
    assert legible(f"a{character}b") == "a\ufffdb"


def test_emoji_stay_as_they_are_and_nothing_hides_behind_one() -> None:
    assert not is_visible("\ufe0f")
    assert legible("❤\ufe0f 1\ufe0f\u20e3 ✂\ufe0e") == "❤\ufe0f 1\ufe0f\u20e3 ✂\ufe0e"
    assert legible("❤\ufe0f\ufe0f\ufe0f") == "❤\ufe0f\ufffd\ufffd"
    assert legible("\ufe0fa\x1b\ufe0f") == "\ufffda\ufffd\ufffd"


def test_what_is_to_be_judged_is_spelled_out() -> None:
    assert (
        spelled_out("rm \u202egnp\x1b[2J\n\u200b\U000e0041") == "rm \\u202egnp\\x1b[2J\\n\\u200b\\U000e0041"
    )
    assert spelled_out("a" + " " * 16 + "b") == "a" + " " * 16 + "b"
    assert spelled_out("a" + " " * 400 + "b") == "a\\x20{400}b"
    assert spelled_out("\ud800") == "\\ud800"
