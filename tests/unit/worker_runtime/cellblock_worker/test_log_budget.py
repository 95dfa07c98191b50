"""`maxLogBytes`: never over the cap, cut between characters, one closing entry that names the limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock_worker import log_budget
from cellblock_worker.log_budget import LogBudget


@given(st.integers(0, 200), st.lists(st.text(max_size=40), max_size=30))
def test_never_over_the_cap_and_nothing_lost_in_the_count(cap: int, texts: list[str]) -> None:
    budget = LogBudget(cap)
    kept: list[bytes] = []
    notes: list[str] = []
    total = 0
    for text in texts:
        message = text.encode()
        total += len(message)
        part, note = budget.take(message)
        if part is not None:
            part.decode()
            assert message.startswith(part)
            kept.append(part)
        if note is not None:
            notes.append(note)
    taken = sum(map(len, kept))
    assert taken <= cap
    assert taken + budget.dropped_bytes == total
    assert bool(notes) == budget.truncated == (total > cap)
    assert len(notes) <= 1
    assert all(f"maxLogBytes = {cap} " in note for note in notes)


def test_exactly_at_the_cap_is_not_truncated() -> None:
    budget = LogBudget(4)
    assert budget.take(b"abcd") == (b"abcd", None)
    assert budget.take(b"") == (b"", None)
    kept, note = budget.take(b"e")
    assert kept is None and note is not None


def test_a_cut_falls_between_characters() -> None:
    kept, note = LogBudget(5).take("ää€x".encode())
    assert kept == "ää".encode()
    assert note is not None


@pytest.mark.parametrize("cap", [0, 1])
def test_a_cap_of_nothing(cap: int) -> None:
    budget = LogBudget(cap)
    kept, note = budget.take("€".encode())
    assert kept is None and note is not None
    assert budget.dropped_bytes == 3


def test_entries_are_capped_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_budget, "MAX_LOG_ENTRIES", 3)
    budget = LogBudget(1000)
    assert [budget.take(b"")[1] for _ in range(3)] == [None] * 3
    kept, note = budget.take(b"more")
    assert kept is None
    assert note is not None and "over 3 entries" in note
    assert budget.take(b"x") == (None, None)
    assert budget.dropped_bytes == 5


def test_bytes_that_are_no_text_are_cut_without_an_error() -> None:
    kept, note = LogBudget(3).take(b"\xff\xfe\xfd\xfc")
    assert kept is None and note is not None
