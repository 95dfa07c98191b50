"""Text for terminals."""

from __future__ import annotations

import unicodedata

from hypothesis import given
from hypothesis import strategies as st

from cellblock.terminal_text import cell, columns, milliseconds, plain


@given(st.text(max_size=60), st.integers(0, 40))
def test_any_text_takes_at_most_its_columns_and_controls_nothing(text: str, width: int) -> None:
    shown = plain(text, width)
    assert columns(shown) <= width
    assert all(unicodedata.category(char)[0] != "C" for char in shown)
    assert "\n" not in shown and "\x1b" not in shown
    assert columns(cell(text, width)) == width


def test_what_it_looks_like() -> None:
    assert plain("abcdef", 4) == "abc…"
    assert plain("abcd", 4) == "abcd"
    assert plain("\x1b[2Jx\u202ey\x9b", 20) == "·[2Jx·y·"
    assert plain("日本語", 5) == "日本…"
    assert cell(7, 3, right=True) == "  7"
    assert [milliseconds(value) for value in (None, 3.14, 250, 2500, 120_000)] == [
        "-",
        "3.1 ms",
        "250 ms",
        "2.5 s",
        "2 min",
    ]
