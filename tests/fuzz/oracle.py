"""What must hold for any stream of bytes: frames and messages, or the one defined error, and nothing else. And the
sandbox's decoder on the same streams, many in one Deno process, and where the two may differ."""

import base64
import json
import re
import subprocess
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, NamedTuple, cast

import deno
import msgpack

from cellblock_worker.wire import protocol
from cellblock_worker.wire.frames import FrameDecoder, FrameError, encode_frame, pack_header

CAP: Final = 64 * 1024
"""Of the decoder under test."""

ERROR_TEXT_MOST: Final = 1_000
"""Characters of an error: it goes on in headers, which have a cap of their own, in logs and in diagnostics."""

PARSERS: Final[tuple[Callable[[bytes], protocol.Message], ...]] = (
    protocol.parse_from_worker,
    protocol.parse_to_worker,
    protocol.parse_from_host,
    protocol.parse_to_host,
)

NO_MAP: Final = "header is no map of texts"

_VARYING: Final = re.compile(r"\d+|'[^']*'|\(.*:")


class Frame(NamedTuple):
    """One frame, with its header as another library reads it."""

    header: dict[str, Any]
    body: bytes
    raw_header: bytes


class Violation(AssertionError):
    """A stream for which something does not hold; `stream` is it."""

    def __init__(self, what: str, stream: bytes) -> None:
        super().__init__(what)
        self.stream = stream


@dataclass(frozen=True)
class Outcome:
    """What became of a stream. `behaviour` is equal for streams that took the same ways through the code."""

    frames: tuple[Frame, ...]
    error: str | None
    pending: int
    behaviour: tuple[object, ...]
    messages: int


def examine(stream: bytes, chunks: Sequence[bytes]) -> Outcome:
    """Feeds a stream whole and in chunks, parses every header in all four directions, packs again what was read.

    Raises:
        Violation: With the stream, when anything but frames, messages and FrameError comes of it.
    """
    try:
        return _examine(stream, chunks)
    except Violation:
        raise
    except Exception as error:
        raise Violation(f"{type(error).__name__}: {error}"[:500], stream) from error


def _examine(stream: bytes, chunks: Sequence[bytes]) -> Outcome:
    frames, error, pending = _fed(chunks, stream)
    whole, whole_error, whole_pending = _fed([stream], stream)
    _hold(error == whole_error, f"error depends on chunks: {error} and {whole_error}", stream)
    if error is None:
        _hold(_raw(frames) == _raw(whole) and pending == whole_pending, "frames depend on chunks", stream)
        used = b"".join(encode_frame(frame.raw_header, frame.body) for frame in frames)
        _hold(stream == used + stream[len(stream) - pending :], "frames are not the stream", stream)
    behaviour: list[object] = [_shape(error), min(len(frames), 3), min(pending, 8)]
    messages = 0
    for frame in frames:
        _round_trip(frame.header, stream)
        _one_form(frame, stream)
        for parse in PARSERS:
            told = _parsed(parse, frame.raw_header, stream)
            messages += isinstance(told, protocol.Message)
            behaviour.append(_shape(told) if isinstance(told, str) else type(told).__name__)
    return Outcome(tuple(frames), error, pending, tuple(behaviour), messages)


def _raw(frames: Sequence[Frame]) -> list[tuple[bytes, bytes]]:
    # Decoded headers cannot be compared: a NaN is not equal to itself.
    return [(frame.raw_header, frame.body) for frame in frames]


def _fed(chunks: Sequence[bytes], stream: bytes) -> tuple[list[Frame], str | None, int]:
    admitted: list[bytes] = []
    decoder = FrameDecoder(CAP, lambda raw_header, _: admitted.append(raw_header))
    frames: list[Frame] = []
    for chunk in chunks:
        try:
            for raw_header, body in decoder.feed(chunk):
                if (header := _read(raw_header)) is None:
                    return frames, NO_MAP, 0
                frames.append(Frame(header, body, raw_header))
        except FrameError as error:
            if None in map(_read, admitted[len(frames) :]):
                return frames, NO_MAP, 0
            _hold(len(decoder._buffer) == 0, "a failed decoder holds bytes", stream)
            _hold(len(str(error)) <= ERROR_TEXT_MOST, f"an error of {len(str(error))} characters", stream)
            try:
                decoder.feed(b"")
            except FrameError:
                return frames, str(error), 0
            raise Violation("a failed decoder goes on", stream) from None
        _hold(len(decoder._buffer) < CAP + 4, "more is held than a frame may have", stream)
    return frames, None, len(decoder._buffer)


def _round_trip(header: dict[str, Any], stream: bytes) -> None:
    try:
        raw = pack_header(header)
    except FrameError:
        # What was read in a long form always fits again; only nesting can be too deep to write, never too deep to read.
        raise Violation("what was read cannot be written", stream) from None
    # Compared packed: a NaN is not equal to itself.
    again = _read(raw)
    _hold(again is not None and pack_header(again) == raw, "a header changes when written and read", stream)


def _read(raw_header: bytes) -> dict[str, Any] | None:
    """A header by another library than the one under test; None: it is no map of texts."""
    try:
        header: object = msgpack.unpackb(raw_header, max_ext_len=0)
    except Exception:  # noqa: BLE001 - of many kinds
        return None
    named = isinstance(header, dict) and all(
        isinstance(key, str) for key in cast("dict[object, Any]", header)
    )
    return cast("dict[str, Any]", header) if named else None


def _one_form(frame: Frame, stream: bytes) -> None:
    """What a worker may say has one encoding, by which its cap is known, and a log entry that is dropped."""
    try:
        message = protocol.parse_from_worker(frame.raw_header)
    except FrameError:
        message = None
    _hold(
        message is None or pack_header(frame.header) == frame.raw_header, "a long form is canonical", stream
    )
    cap = protocol.worker_caps(CAP, CAP).get(protocol.opening_of(frame.raw_header))
    _hold(message is None or cap is not None, "a canonical header has no cap", stream)
    own = None if message is None else protocol.body_cap(message.max_body, CAP, CAP)
    _hold(own is None or cap == own, "a header has the cap of another", stream)


def _parsed(
    parse: Callable[[bytes], protocol.Message], raw_header: bytes, stream: bytes
) -> protocol.Message | str:
    try:
        message = parse(raw_header)
    except FrameError as error:
        _hold(len(str(error)) <= ERROR_TEXT_MOST, f"an error of {len(str(error))} characters", stream)
        return str(error)
    _hold(parse(message.packed()) == message, f"{message!r} changes on the wire", stream)
    return message


def _shape(error: str | None) -> str | None:
    """An error without what differs from stream to stream."""
    return None if error is None else _VARYING.sub("#", error)[:120]


def _hold(holds: bool, what: str, stream: bytes) -> None:
    if not holds:
        raise Violation(what[:500], stream)


SANDBOX: Final = Path(__file__).parents[2] / "worker_runtime" / "sandbox"
BOUND_SECONDS: Final = 120.0
MOST_ENTRIES: Final = 15
"""Of a header in the sandbox's subset of msgpack: one flat map of strings, booleans, null and integers."""

PROGRAM: Final = """
import { encodeFrame, takeFrames } from "SANDBOX/wire/frames.ts";
const bytesOf = (text) => Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
const textOf = (bytes) => btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
const answers = JSON.parse(await new Response(Deno.stdin.readable).text()).map((text) => {
  const stream = bytesOf(text);
  const frames = [];
  try {
    const { used } = takeFrames(stream, stream.length, (header, body) => {
      frames.push([header, textOf(body), textOf(encodeFrame(header, body))]);
    });
    return { frames, pending: stream.length - used };
  } catch (error) {
    return { frames, error: error.name };
  }
});
console.log(JSON.stringify(answers));
"""

ERRORS: Final = {"RangeError", "TypeError"}
"""What the sandbox's decoder throws: its own, and TextDecoder's for what is no UTF-8."""


def answered(text: str, given: Any) -> Any:
    """What a program in Deno says in JSON of what it is given in JSON; SANDBOX is the folder of the sandbox."""
    with tempfile.TemporaryDirectory(prefix="cellblock-fuzz-") as folder:
        program = Path(folder) / "program.ts"
        program.write_text(text.replace("SANDBOX", SANDBOX.as_uri()), encoding="utf-8")
        done = subprocess.run(
            [deno.find_deno_bin(), "run", "--quiet", "--no-config", "--no-remote", "--no-npm", str(program)],
            input=json.dumps(given),
            env={"NO_COLOR": "1", "DENO_DIR": str(Path(folder) / "deno")},
            capture_output=True,
            text=True,
            timeout=BOUND_SECONDS,
            check=False,
        )
    if done.returncode != 0:
        raise RuntimeError(done.stderr[:2000])
    return json.loads(done.stdout)


def decode(streams: Sequence[bytes]) -> list[dict[str, Any]]:
    """What the sandbox makes of each stream: `frames` as [header, body, frame again], `pending` bytes, or `error`."""
    return answered(PROGRAM, [base64.b64encode(stream).decode() for stream in streams])


def agree(stream: bytes, host: Outcome, sandbox: dict[str, Any]) -> bool:
    """Compares the two decoders on one stream. Returns whether both accepted all of it.

    What the sandbox accepts, the host accepts, with the same frames; what the host accepts and writes itself in the
    sandbox's subset, the sandbox accepts. The host's own msgpack knows more types, and the host alone has a cap.

    Raises:
        Violation: They differ.
    """
    error = sandbox.get("error")
    if error is not None:
        if error not in ERRORS:
            raise Violation(f"the sandbox throws {error}", stream)
        if host.error is None and all(_is_plain(frame.header, frame.raw_header) for frame in host.frames):
            raise Violation(f"the sandbox refuses with {error} what the host accepts", stream)
        return False
    if host.error is not None:
        if "over" in host.error:
            return False
        raise Violation(f"the sandbox accepts what the host refuses: {host.error}", stream)
    mine = [(frame.header, frame.body) for frame in host.frames]
    theirs = [(header, base64.b64decode(body)) for header, body, _ in sandbox["frames"]]
    if mine != theirs or host.pending != sandbox["pending"]:
        raise Violation(f"the host reads {mine}, the sandbox {theirs}", stream)
    for frame, (_, _, again) in zip(host.frames, sandbox["frames"], strict=False):
        # JavaScript puts keys that are integers in front of others; none of ours is.
        mine_again = encode_frame(pack_header(frame.header), frame.body)
        if base64.b64decode(again) != mine_again and not any(key.isdigit() for key in frame.header):
            raise Violation(f"the sandbox writes {frame.header} in another form", stream)
    return True


def _is_plain(header: dict[str, Any], raw: bytes) -> bool:
    """Whether a header is in the sandbox's subset, in the form in which the host writes it."""
    if len(header) > MOST_ENTRIES:
        return False
    for value in header.values():
        plain = value is None or isinstance(value, bool | str) or (type(value) is int and 0 <= value < 2**53)
        if not plain:
            return False
    try:
        return pack_header(header) == raw
    except FrameError:
        return False
