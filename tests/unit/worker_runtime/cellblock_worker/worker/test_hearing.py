"""What is heard of one worker: silence within a frame, floods, and `maxLogBytes`."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cellblock_worker.wire import protocol
from cellblock_worker.wire.frames import Frame, FrameError, encode_frame, pack_header, unpack_header
from cellblock_worker.worker import hearing, log_budget
from cellblock_worker.worker.hearing import LONGEST_REST_SECONDS, SILENT_TICKS, Hearing
from cellblock_worker.worker.log_budget import LogBudget
from support.worker_owner import make_run

DONE = encode_frame(pack_header({"t": "done", "ms": 0}), b"12345678")


class Heard:
    """A hearing whose looks a test makes by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.killed: list[str] = []
        self.messages: list[protocol.FromWorker] = []
        self.runnable = False
        monkeypatch.setattr(hearing, "SILENCE_TICK_SECONDS", 0)
        self.hearing = Hearing(1 << 20, kill=self.killed.append, is_runnable=lambda: self.runnable)
        self.hearing.begin(make_run(), 0.0)

    def hear(self, data: bytes) -> float:
        return self.hearing.hear(data, self._accept)

    def _accept(self, message: protocol.FromWorker, frame: Frame) -> None:
        self.messages.append(message)


async def looks(count: int) -> None:
    """Each look schedules the next, a turn of the loop later."""
    for _ in range(count):
        await asyncio.sleep(0)


async def test_silence_within_a_frame_ends_at_its_bound(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard(monkeypatch)
    heard.hear(DONE[:-1])
    await looks(3 * SILENT_TICKS)
    assert len(heard.killed) == 1 and "half a frame" in heard.killed[0]


@pytest.mark.parametrize("data", [DONE, b""], ids=["after a whole frame", "before any"])
async def test_silence_between_frames_is_none(monkeypatch: pytest.MonkeyPatch, data: bytes) -> None:
    heard = Heard(monkeypatch)
    heard.hear(data)
    await looks(3 * SILENT_TICKS)
    assert heard.killed == []


async def test_a_worker_that_waits_for_a_core_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard(monkeypatch)
    heard.runnable = True
    heard.hear(DONE[:-1])
    await looks(3 * SILENT_TICKS)
    assert heard.killed == []
    heard.hear(DONE[-1:])
    assert [message.t for message in heard.messages] == ["done"]


async def test_each_byte_begins_the_count_again(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard(monkeypatch)
    for byte in DONE:
        heard.hear(bytes([byte]))
        await looks(2)
    assert heard.killed == [] and len(heard.messages) == 1


async def test_what_is_cut_off_by_the_end_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard(monkeypatch)
    heard.hear(DONE[:-1])
    heard.hearing.close()
    heard.hear(b"")
    await looks(3 * SILENT_TICKS)
    assert heard.killed == []


async def test_a_body_that_is_dropped_must_go_on_too(monkeypatch: pytest.MonkeyPatch) -> None:
    heard = Heard(monkeypatch)
    heard.hearing.logs.take(b"x" * 2000)
    heard.hear(encode_frame(pack_header({"t": "log", "level": "log", "ms": 1}), b"x" * 100)[:-1])
    await looks(3 * SILENT_TICKS)
    assert len(heard.killed) == 1


async def test_output_that_costs_much_waits_for_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hearing, "thread_time", clock(0.001))
    monkeypatch.setattr(hearing, "monotonic", lambda: 0.0)
    heard = Heard(monkeypatch)
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
