"""What is heard of one worker: floods, and `maxLogBytes`."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock_worker.wire import protocol
from cellblock_worker.wire.frames import Frame, FrameError, encode_frame, pack_header
from cellblock_worker.worker import hearing
from cellblock_worker.worker.hearing import LONGEST_REST_SECONDS, Hearing, LogBudget
from support.worker_owner import make_run


class Heard:
    """A hearing with a run."""

    def __init__(self) -> None:
        self.messages: list[protocol.FromWorker] = []
        self.hearing = Hearing(1 << 20)
        self.hearing.begin(make_run(), 0.0)

    def hear(self, data: bytes) -> float:
        return self.hearing.hear(data, self._accept)

    def _accept(self, message: protocol.FromWorker, frame: Frame) -> None:
        self.messages.append(message)


async def test_output_that_costs_much_waits_for_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hearing, "thread_time", clock(0.001))
    monkeypatch.setattr(hearing, "monotonic", lambda: 0.0)
    heard = Heard()
    assert [heard.hear(b"") for _ in range(100)] == [0.0] * 100, "its logs are not dropped"
    heard.hearing.cost_seconds = 0.0
    heard.hearing.logs.take(b"x" * 2000)
    rests = [heard.hear(b"") for _ in range(60)]
    assert all(rest <= 0 for rest in rests[:49]), "each run has an allowance"
    assert 0 < rests[50] < rests[51] and rests[51] == pytest.approx(0.002 / hearing.HOST_SHARE)
    for _ in range(40):
        assert heard.hear(b"") <= LONGEST_REST_SECONDS
    monkeypatch.setattr(hearing, "monotonic", lambda: 10.0)
    assert heard.hear(b"") <= 0, "later it has its share again"
    assert heard.hearing.cost_seconds == pytest.approx(0.101)


def clock(step: float) -> Callable[[], float]:
    """A clock that goes on by so much each time it is read."""
    ticks = itertools.count(0.0, step)
    return lambda: next(ticks)


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


def test_entries_are_capped_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_LOG_ENTRIES", 3)
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


LOG = pack_header({"t": "log", "level": "warn", "ms": 70_000})
DONE = pack_header({"t": "done", "ms": 70_000})


def _over_its_logs() -> Heard:
    """One that drops all entries that come."""
    heard = Heard()
    heard.hearing.logs.take(b"x" * 2000)
    assert heard.hearing.logs.truncated and heard.hearing.logs.dropped_bytes == 1000
    return heard


def test_entries_over_the_cap_are_dropped_unread_and_counted() -> None:
    heard = _over_its_logs()
    for byte in encode_frame(LOG, b"12345"):
        heard.hear(bytes([byte]))
    heard.hear(encode_frame(LOG, b"123") + encode_frame(DONE, b"{}"))
    assert [message.t for message in heard.messages] == ["done"]
    assert heard.hearing.logs.dropped_bytes == 1008


@pytest.mark.parametrize(
    "header",
    [
        DONE[:1] + b"\xa1t\xa4dome" + DONE[8:],
        # The later of two keys counts for the decoder.
        b"\x84" + LOG[1:] + b"\xa1t\xa4done",
        pack_header({"t": "log", "level": "warn", "ms": 70_000, "x": 1}),
    ],
    ids=repr,
)
def test_what_does_not_begin_as_an_entry_is_not_dropped_as_one(header: bytes) -> None:
    with pytest.raises(FrameError):
        _over_its_logs().hear(encode_frame(header, b""))
