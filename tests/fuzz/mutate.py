"""Makes streams of one to four frames from a corpus: whole messages at first, then whatever was seen to behave anew."""

import random
import struct
from typing import Any, Final, cast

import msgpack
import msgspec

from cellblock_worker.wire import protocol
from cellblock_worker.wire.frames import MAX_HEADER_BYTES, encode_frame

TAGS: Final = bytes(
    [0x00, 0x7F, 0x80, 0x81, 0x8F, 0x90, 0x9F, 0xA0, 0xA1, 0xBF, *range(0xC0, 0xE0), 0xE0, 0xFF]
)
"""The first byte of every msgpack type."""

NUMBERS: Final = (
    0,
    1,
    2,
    5,
    6,
    127,
    128,
    255,
    256,
    65535,
    65536,
    2**31 - 1,
    2**31,
    2**32 - 1,
    2**53,
    2**64 - 1,
)
WORDS: Final = (
    "t",
    "ready",
    "log",
    "call",
    "done",
    "ended",
    "level",
    "ms",
    "id",
    "__proto__",
    "\ufeffa",
    "ä€😀",
    "x" * 40,
)
CORPUS_MOST: Final = 2_000
CORPUS_STREAM_MOST: Final = 2_048
"""Streams of the corpus and bytes of each: mutation makes them longer, and the fuzzer's own memory must stay small
beside that of what it looks for."""

_PREFIX: Final = struct.Struct(">IH")


def packed(value: Any) -> bytes:
    """msgpack of anything."""
    return cast("bytes", msgpack.packb(value))  # pyright: ignore[reportUnknownMemberType]


def messages() -> list[protocol.Message]:
    """One of every message, with usual values."""
    return [
        protocol.Ready(protocol=protocol.PROTOCOL_VERSION),
        protocol.Log(level="warn", ms=12),
        protocol.Call(id=1, server="files", tool="read_file"),
        protocol.Query(id=2, op="searchTools", events="c1795524565651*3a1t2"),
        protocol.Took(bytes=2**21 + 1),
        protocol.Notice(),
        protocol.Done(ms=2**33),
        protocol.Failed(ms=3, kind="rejection"),
        protocol.Noted(),
        protocol.Live(),
        protocol.Start(log_bytes=65536, message_bytes=2**24),
        protocol.Reply(id=200, ok=False),
        protocol.Hello(protocol=protocol.PROTOCOL_VERSION, pid=1, capacity=4, deno="deno", layers=["a", "b"]),
        protocol.Status(warm=4, booting=0, running=1, wanted=1),
        protocol.Grant(places=2),
        protocol.Leased(wall_ms=0),
        protocol.Held(),
        protocol.Ended(reason="finished", outcome="done", wall_ms=1),
        protocol.Run(timeout_ms=1, cpu_ms=1, memory_bytes=1, log_bytes=1, message_bytes=1),
        protocol.Pause(),
        protocol.Resume(),
        protocol.Cancel(),
        protocol.Granted(places=2),
        protocol.Demand(waiting=1),
        protocol.Keys(prefix="a"),
        protocol.Shutdown(),
    ]


class Mutator:
    """A source of streams that a seed fixes, as long as the same streams are kept.

    Args:
        seed: Of all chance.
    """

    def __init__(self, seed: int) -> None:
        self._chance = random.Random(seed)
        self._headers = [msgspec.to_builtins(message) for message in messages()]
        self.corpus: list[bytes] = [encode_frame(packed(header), b"{}") for header in self._headers]

    def keep(self, stream: bytes) -> None:
        """Adds a stream that behaved as none before it, unless it is long; at the cap it takes the place of another."""
        if len(stream) > CORPUS_STREAM_MOST:
            return
        if len(self.corpus) < CORPUS_MOST:
            self.corpus.append(stream)
        else:
            self.corpus[self._chance.randrange(len(self.corpus))] = stream

    def stream(self) -> tuple[bytes, int]:
        """The next stream, and how many frames it was made of."""
        count = self._chance.choice((1, 1, 1, 2, 4))
        return b"".join(self._frame() for _ in range(count)), count

    def cuts(self, stream: bytes) -> list[bytes]:
        """The stream in chunks."""
        chance, left, chunks = self._chance, stream, list[bytes]()
        while left:
            size = chance.choice((1, 2, 5, 6, 7, 64, len(left)))
            chunks.append(left[:size])
            left = left[size:]
        return chunks

    # ---- inside --------------------------------------------------------------------------------------

    def _frame(self) -> bytes:
        way = self._chance.randrange(10)
        if way < 2:
            return self._mutated(self._chance.choice(self.corpus))
        if way < 6:
            return encode_frame(packed(self._bent_header()), self._body())
        if way < 8:
            return encode_frame(self._mutated(packed(self._bent_header()))[:MAX_HEADER_BYTES], self._body())
        if way < 9:
            first, second = self._chance.choice(self.corpus), self._chance.choice(self.corpus)
            return first[: self._place(first)] + second[self._place(second) :]
        return self._prefixed()

    def _prefixed(self) -> bytes:
        """A length and header length that do not fit what follows."""
        raw, body = packed(self._chance.choice(self._headers)), self._body()
        true_length = 2 + len(raw) + len(body)
        length = self._chance.choice((*NUMBERS[:14], true_length - 1, true_length + 1, true_length))
        header = self._chance.choice(
            (*NUMBERS[:10], MAX_HEADER_BYTES, MAX_HEADER_BYTES + 1, len(raw) - 1, len(raw) + 1)
        )
        return _PREFIX.pack(length, header) + raw + body

    def _bent_header(self) -> dict[Any, Any]:
        header = dict(self._chance.choice(self._headers))
        for _ in range(self._chance.choice((0, 0, 1, 1, 2, 3))):
            way = self._chance.randrange(4)
            if way == 0 and header:
                header.pop(self._chance.choice(list(header)))
            elif way == 1:
                header[self._word()] = self._value(2)
            elif header:
                header[self._chance.choice(list(header))] = self._value(2)
        return header

    def _value(self, depth: int) -> Any:
        chance = self._chance
        way = chance.randrange(12 if depth else 9)
        if way < 3:
            return chance.choice(NUMBERS)
        if way < 6:
            return self._word()
        if way < 9:
            return chance.choice((None, True, False, -1, 1.5, float("nan"), b"bin", msgpack.ExtType(5, b"")))
        if way < 10:
            return [self._value(depth - 1) for _ in range(chance.choice((0, 1, 3, 65)))]
        return {self._word(): self._value(depth - 1) for _ in range(chance.choice((0, 1, 3)))}

    def _word(self) -> str:
        word = self._chance.choice(WORDS)
        return word * self._chance.choice((1, 1, 1, 1, 1, 10, 400)) if self._chance.random() < 0.1 else word

    def _body(self) -> bytes:
        return self._chance.choice((b"", b"{}", b"\x80" * 100, b"\xff", self._chance.randbytes(20)))

    def _mutated(self, data: bytes) -> bytes:
        raw, chance = bytearray(data), self._chance
        for _ in range(chance.choice((1, 1, 1, 2, 4))):
            at = self._place(raw)
            match chance.randrange(7):
                case 0 if raw:
                    raw[at % len(raw)] ^= 1 << chance.randrange(8)
                case 1 if raw:
                    raw[at % len(raw)] = chance.choice(TAGS)
                case 2:
                    raw[at:at] = bytes([chance.choice(TAGS)])
                case 3:
                    del raw[at : at + chance.choice((1, 1, 4, 20))]
                case 4:
                    raw[at:at] = raw[at : at + chance.choice((1, 8, 40))]
                case 5:
                    width = chance.choice((1, 2, 4, 8))
                    raw[at : at + width] = (chance.choice(NUMBERS) % 256**width).to_bytes(width, "big")
                case _:
                    raw[at:at] = chance.randbytes(chance.choice((1, 2, 9)))
        return bytes(raw)

    def _place(self, data: bytes | bytearray) -> int:
        # The prefix and the first bytes of the header decide most.
        return self._chance.randint(0, min(len(data), self._chance.choice((8, 30, 10_000))))
