"""What is heard of one worker: silence within a frame is counted in looks, and floods leave the host its time."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Callable

import pytest

from cellblock_worker.wire import protocol
from cellblock_worker.wire.frames import Frame, encode_frame, pack_header
from cellblock_worker.worker import hearing
from cellblock_worker.worker.hearing import LONGEST_REST_SECONDS, SILENT_TICKS, Hearing
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
