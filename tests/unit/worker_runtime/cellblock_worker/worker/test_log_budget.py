"""`maxLogBytes`: never over the cap, cut between characters, one closing entry that names the limit."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock_worker.wire import protocol
from cellblock_worker.wire.frames import FrameError, pack_header, unpack_header
from cellblock_worker.worker import log_budget
from cellblock_worker.worker.log_budget import LogBudget


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


def truncated() -> LogBudget:
    """One that drops all that comes."""
    budget = LogBudget(0)
    budget.take(b"xyz")
    assert budget.truncated and budget.dropped_bytes == 3
    return budget


@pytest.mark.parametrize("level", ["debug", "log", "warn", "error"])
@pytest.mark.parametrize("ms", [0, 127, 128, 255, 256, 65_535, 65_536, 2**32 - 1, 2**32, 2**53 - 1])
def test_entries_after_the_last_are_dropped_by_their_headers(level: str, ms: int) -> None:
    header = pack_header({"t": "log", "level": level, "ms": ms})
    fresh = LogBudget(0)
    assert not fresh.drops(header, 5) and fresh.dropped_bytes == 0
    budget = truncated()
    assert budget.drops(header, 5) and budget.drops(header, 0)
    assert budget.dropped_bytes == 8


LOG = pack_header({"t": "log", "level": "warn", "ms": 70_000})
OTHERS = [
    pack_header({"t": "done", "ms": 70_000}),
    pack_header({"t": "log", "level": "warm", "ms": 70_000}),
    pack_header({"t": "log", "level": "warn", "ms": -1}),
    pack_header({"t": "log", "level": "warn", "ms": 1.5}),
    pack_header({"t": "log", "level": "warn", "ms": 2**60}),
    pack_header({"t": "log", "level": "warn", "ms": 70_000, "x": 1}),
    pack_header({"t": "log", "level": "warn"}),
    # The later of two keys counts for the decoder: this is no entry, whatever it begins with.
    b"\x84" + LOG[1:] + b"\xa1t\xa4done",
    b"\x83\xa1t\xa3log\xa1t\xa4done\xa2ms\x01",
    LOG + b"\x00",
    LOG + b"\n",
    LOG[:-1],
]


@pytest.mark.parametrize("header", OTHERS, ids=repr)
def test_nothing_but_an_entry_is_dropped_by_its_header(header: bytes) -> None:
    budget = truncated()
    assert not budget.drops(header, 5) and budget.dropped_bytes == 3


@given(st.binary(max_size=3), st.integers(0, len(LOG)), st.integers(0, 3))
def test_what_is_dropped_would_have_been_an_entry(inserted: bytes, at: int, removed: int) -> None:
    header = LOG[:at] + inserted + LOG[at + removed :]
    try:
        message = protocol.parse_from_worker(unpack_header(header))
        protocol.check_canonical(message, header)
    except FrameError:
        message = None
    # Both ways: an entry that was not dropped by its header would be decoded each time, at the host's cost.
    assert truncated().drops(header, 1) == isinstance(message, protocol.Log)


@given(st.integers(0, 2**64 - 1), st.sampled_from(["debug", "log", "warn", "error", "info"]))
def test_every_entry_that_a_worker_can_send_is_dropped_by_its_header(ms: int, level: str) -> None:
    header = pack_header({"t": "log", "level": level, "ms": ms})
    assert truncated().drops(header, 1) == (ms < 2**53 and level != "info")
