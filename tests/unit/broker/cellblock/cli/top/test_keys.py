"""Keys out of what terminals send."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock.base.terminal import columns
from cellblock.cli.top.keys import BINDINGS, MAX_HELD_BYTES, Key, Keyboard, View, help_lines, hints


def all_of(*reads: bytes) -> list[Key]:
    """The keys of these reads, after which nothing comes."""
    keyboard = Keyboard()
    return [*(key for data in reads for key in keyboard.typed(data)), *keyboard.nothing_came()]


def test_every_binding_is_heard_whole_and_in_pieces_and_no_two_are_alike() -> None:
    sent = [one for binding in BINDINGS for one in binding.sent]
    assert len(sent) == len(set(sent))
    assert {binding.key for binding in BINDINGS} == set(Key)
    for binding in BINDINGS:
        for one in binding.sent:
            assert all_of(one) == [binding.key]
            assert all_of(*(one[at : at + 1] for at in range(len(one)))) == [binding.key]


def test_keys_that_arrive_together() -> None:
    assert all_of(b"jj\x1b[Bk\r") == [Key.DOWN, Key.DOWN, Key.DOWN, Key.UP, Key.OPEN]
    assert all_of(b"\x1b\x1b[A") == [Key.BACK, Key.UP]
    assert all_of(b"\x1bq") == [Key.BACK, Key.QUIT]
    assert all_of(b"\x1b\x1b") == [Key.BACK, Key.BACK]


def test_esc_is_certain_once_nothing_comes_after_it() -> None:
    keyboard = Keyboard()
    assert keyboard.typed(b"\x1b") == [] and keyboard.waiting
    assert keyboard.nothing_came() == [Key.BACK] and not keyboard.waiting
    assert keyboard.typed(b"\x1b[") == [] and keyboard.waiting
    assert keyboard.typed(b"Aj") == [Key.UP, Key.DOWN] and not keyboard.waiting


@pytest.mark.parametrize(
    "unknown",
    [b"\x1b[1;5C", b"\x1b[200~", b"\x1bOP", b"\x1b[<0;3;4M", "ä語".encode(), b"x", b"\x00"],
)
def test_unknown_keys_say_nothing(unknown: bytes) -> None:
    assert all_of(unknown) == []
    assert all_of(b"j" + unknown + b"k") == [Key.DOWN, Key.UP]


@given(st.lists(st.binary(max_size=80), max_size=6))
def test_any_bytes_are_taken_and_little_is_held(reads: list[bytes]) -> None:
    keyboard = Keyboard()
    for data in reads:
        assert all(isinstance(key, Key) for key in keyboard.typed(data))
        assert len(keyboard._held) <= MAX_HELD_BYTES
    keyboard.nothing_came()
    assert not keyboard.waiting


@pytest.mark.parametrize("width", [0, 1, 20, 80])
@pytest.mark.parametrize("view", list(View))
def test_the_last_line_names_the_keys_and_fits(view: View, width: int) -> None:
    assert columns(hints(view, width)) <= width
    assert all(columns(line) <= width for line in help_lines(width))
    whole = hints(view, 200)
    assert whole.startswith("q: quit")
    assert view is View.LIST or "Esc: back" in whole
    assert view is View.KEYS or "?: keys" in whole


def test_the_list_of_keys_has_all() -> None:
    assert len(help_lines(120)) == len(BINDINGS)
    assert any("Enter" in line and "open the selected run" in line for line in help_lines(120))
