"""What is heard of one worker: floods, and `maxLogBytes`."""

import itertools

import pytest
from hypothesis import given, strategies as st

from cellblock_worker.wire import protocol
from cellblock_worker.wire.frames import FrameError, encode_frame, pack_header
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
        return self.hearing.hear(data, lambda message, _header, _body: self.messages.append(message))


async def test_output_that_costs_much_waits_for_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    ticks = itertools.count(0.0, 0.001)
    monkeypatch.setattr(hearing, "thread_time", lambda: next(ticks))
    monkeypatch.setattr(hearing, "monotonic", lambda: 0.0)
    heard = Heard()
    assert [heard.hear(b"") for _ in range(100)] == [0.0] * 100, "its logs are not dropped"
    heard.hearing.cost_seconds = 0.0
    took(heard.hearing.logs, b"x" * 2000)
    rests = [heard.hear(b"") for _ in range(60)]
    assert all(rest <= 0 for rest in rests[:49]), "each run has an allowance"
    assert 0 < rests[50] < rests[51] and rests[51] == pytest.approx(0.002 / hearing.HOST_SHARE)
    for _ in range(40):
        assert heard.hear(b"") <= LONGEST_REST_SECONDS
    monkeypatch.setattr(hearing, "monotonic", lambda: 10.0)
    assert heard.hear(b"") <= 0, "later it has its share again"
    assert heard.hearing.cost_seconds == pytest.approx(0.101)


def took(budget: LogBudget, message: bytes, level: protocol.Level = "log") -> bytes | None:
    """What of an entry is passed on at once, as `Hearing` and its owner take it."""
    log = protocol.Log(level=level, ms=7)
    if not budget.holds:
        return budget.take(log, log.packed(), message)
    budget.hold(log.packed(), message)
    return None


@given(st.integers(0, 200), st.lists(st.tuples(st.text(max_size=40), st.booleans()), max_size=30))
def test_never_over_the_cap_and_nothing_lost_in_the_count(cap: int, given: list[tuple[str, bool]]) -> None:
    budget = LogBudget(cap)
    passed = [took(budget, text.encode(), "error" if is_error else "log") for text, is_error in given]
    kept = [part for part in passed if part is not None]
    held = [body for _, body in budget.rest()]
    order, at = [text.encode() for text, _ in given], 0
    total = sum(map(len, order))
    assert bool(budget.dropped_bytes) == budget.truncated == (total > cap)
    if budget.truncated:
        note = held.pop().decode()
        assert f"maxLogBytes = {cap} " in note and f"{budget.dropped_bytes} bytes" in note
    assert sum(map(len, kept + held)) + budget.dropped_bytes == total
    assert sum(map(len, kept + held)) <= cap
    for part in kept + held:
        part.decode()
        # The end of a message may follow its beginning.
        found = [
            one for one in range(at, len(order)) if order[one].startswith(part) or order[one].endswith(part)
        ]
        assert found, "in the order in which they came"
        at = found[0]


def test_the_first_and_the_last_entries_are_kept_and_errors_before_others() -> None:
    budget = LogBudget(80)
    passed = [took(budget, b"entry %02d" % number) for number in range(50)]
    took(budget, b"error 50", "error")
    passed += [took(budget, b"entry %02d" % number) for number in range(51, 99)]
    assert [part for part in passed if part] == [b"entry %02d" % number for number in range(7)]
    *held, note = [body for _, body in budget.rest()]
    assert held == [b"error 50", b"entry 97", b"entry 98"]
    assert (
        note
        == b"[logs truncated: over maxLogBytes = 80 bytes; at least 712 bytes before the last entries are left out]"
    )


def test_of_one_message_over_the_cap_the_beginning_and_the_end_are_kept() -> None:
    budget = LogBudget(80)
    message = b"begin" + "é".encode() * 500 + b"...end"
    assert took(budget, message) == message[:59]
    [end, note] = [body for _, body in budget.rest()]
    assert end == message[-20:] and b"%d bytes before the last" % (len(message) - 79) in note
    # What comes later counts for more.
    budget = LogBudget(80)
    assert [took(budget, said) for said in (message, b"the last entry it is")] == [message[:59], None]
    assert next(body for _, body in budget.rest()) == b"the last entry it is"


def test_entries_are_capped_too(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(protocol, "MAX_LOG_ENTRIES", 4)
    budget = LogBudget(1000)
    assert [took(budget, b"%d" % number) for number in range(6)] == [b"0", b"1", b"2", None, None, None]
    assert [body for _, body in budget.rest()] == [
        b"5",
        b"[logs truncated: over 4 entries; at least 2 bytes before the last entries are left out]",
    ]


def test_bytes_that_are_no_text_are_cut_without_an_error() -> None:
    budget = LogBudget(3)
    assert took(budget, b"\xff\xfe\xfd\xfc") == b"" and budget.dropped_bytes == 4


def test_a_held_entry_that_is_not_canonical_is_not_passed_on() -> None:
    budget = LogBudget(4)
    took(budget, b"1234")
    budget.hold(pack_header({"t": "log", "ms": 70_000, "level": "warn"}), b"5")
    assert [body for _, body in budget.rest()][:-1] == []


LOG = pack_header({"t": "log", "level": "warn", "ms": 70_000})
DONE = pack_header({"t": "done", "ms": 70_000})


def _over_its_logs() -> Heard:
    """One that drops entries that come."""
    heard = Heard()
    took(heard.hearing.logs, b"x" * 2000)
    assert heard.hearing.logs.truncated and heard.hearing.logs.dropped_bytes == 1000
    return heard


def test_entries_over_the_cap_are_held_unread_and_what_is_dropped_is_counted() -> None:
    heard = _over_its_logs()
    for byte in encode_frame(LOG, b"12345"):
        heard.hear(bytes([byte]))
    heard.hear(encode_frame(LOG, b"1" * 250) + encode_frame(DONE, b"{}"))
    assert [message.t for message in heard.messages] == ["done"]
    assert heard.hearing.logs.dropped_bytes == 1255
    assert [body for _, body in heard.hearing.logs.rest()][:-1] == [b"1" * 250]


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
