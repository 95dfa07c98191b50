"""A short run of `scripts/fuzz_frames`, and proof that its oracle can fail."""

from typing import Any

import pytest

from cellblock_worker.wire.frames import FrameDecoder, encode_frame
from fuzz import oracle, typescript
from fuzz.campaign import fuzz
from fuzz.mutate import packed

FRAMES = 20_000
STREAM = encode_frame(packed({"t": "log", "level": "log", "ms": 1}), b"text")


@pytest.mark.slow
def test_20000_mutated_frames_give_messages_or_the_defined_error_in_both_decoders() -> None:
    found = fuzz(FRAMES, seed=1)
    assert found.frames >= FRAMES
    assert found.accepted_frames > FRAMES / 20 and found.messages > FRAMES / 50
    assert sum(found.errors.values()) > FRAMES / 20 and found.behaviours > 100
    assert found.compared > 100 and found.both_accept > 20


def test_a_stream_that_holds() -> None:
    outcome = oracle.examine(STREAM, [STREAM[:3], STREAM[3:]])
    assert (len(outcome.frames), outcome.error, outcome.pending) == (1, None, 0)
    assert outcome.messages == 2  # from a worker, and from a host


def test_an_undefined_error_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object) -> Any:
        raise KeyError("t")

    monkeypatch.setattr(FrameDecoder, "feed", broken)
    with pytest.raises(oracle.Violation, match="KeyError"):
        oracle.examine(STREAM, [STREAM])


def test_a_decoder_that_depends_on_chunks_is_a_violation(monkeypatch: pytest.MonkeyPatch) -> None:
    feed = FrameDecoder.feed
    monkeypatch.setattr(
        FrameDecoder, "feed", lambda self, data: feed(self, data) if len(data) > 3 else feed(self, b"")
    )
    with pytest.raises(oracle.Violation, match="error depends on chunks"):
        oracle.examine(STREAM, [STREAM[:3], STREAM[3:]])


@pytest.mark.parametrize(
    ("sandbox", "said"),
    [
        ({"frames": [], "error": "RangeError"}, "refuses"),
        ({"frames": [], "error": "InternalError"}, "throws InternalError"),
        ({"frames": [], "pending": 0}, "reads"),
        ({"frames": [[{"t": "log", "level": "log", "ms": 2}, "dGV4dA==", ""]], "pending": 0}, "reads"),
    ],
)
def test_a_disagreement_of_the_decoders_is_a_violation(sandbox: dict[str, Any], said: str) -> None:
    with pytest.raises(oracle.Violation, match=said):
        typescript.agree(STREAM, oracle.examine(STREAM, [STREAM]), sandbox)


def test_what_the_host_refuses_the_sandbox_must_refuse() -> None:
    broken = STREAM[:4] + b"\x00\x01" + STREAM[6:]
    outcome = oracle.examine(broken, [broken])
    with pytest.raises(oracle.Violation, match="accepts what the host refuses"):
        typescript.agree(broken, outcome, {"frames": [], "pending": len(broken)})
