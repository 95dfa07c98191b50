"""Events as text: what is some, and what is taken out of it."""

from __future__ import annotations

import pytest

from cellblock.record.events import has_order, is_events, pieces, without_place


@pytest.mark.parametrize("text", ["", "a1", "c1795524565651*3c0t2a4i0e1", "c5*2"])
def test_what_a_sandbox_writes_are_events(text: str) -> None:
    assert is_events(text)
    assert "".join(pieces(text)) == text


@pytest.mark.parametrize(
    "text", ["x1", "a", "1", "a1 ", "a1\n", "c1*", "a-1", "@1:2", "a12345678901", "\u0661", "a\u0661"]
)
def test_other_texts_are_none(text: str) -> None:
    assert not is_events(text)


def test_the_clock_is_no_order() -> None:
    assert not has_order("c1*2c3")
    assert has_order("c1*2t3")


def test_the_place_of_a_call_is_taken_from_the_end() -> None:
    assert without_place("a1@12:3") == ("a1", (12, 3))
    assert without_place("a1") == ("a1", None)
    assert without_place("@1:2a1") == ("@1:2a1", None)
