"""The sandbox's header codec against the host's full msgpack library, both ways, many cases in one Deno process."""

import base64
import random
import re
from collections.abc import Sequence
from typing import Any

import msgpack
import msgspec

from cellblock_worker.wire import protocol
from cellblock_worker.wire.frames import pack_header
from fuzz.mutate import packed
from fuzz.oracle import answered

# Reads {"encode": [header], "decode": [base64]}; answers each with the base64 or header, or the error's name.
PROGRAM = """
import { decodeHeader, encodeHeader } from "SANDBOX/wire/frames.ts";
const { encode, decode } = JSON.parse(await new Response(Deno.stdin.readable).text());
const bytesOf = (text) => Uint8Array.from(atob(text), (char) => char.charCodeAt(0));
const textOf = (bytes) => btoa(Array.from(bytes, (byte) => String.fromCharCode(byte)).join(""));
const attempt = (action) => {
  try {
    return { value: action() };
  } catch (error) {
    return { error: error.name };
  }
};
console.log(JSON.stringify({
  encode: encode.map((header) => attempt(() => textOf(encodeHeader(header)))),
  decode: decode.map((bytes) => attempt(() => decodeHeader(bytesOf(bytes)))),
}));
"""


def codec(encode: Sequence[Any] = (), decode: Sequence[bytes] = ()) -> dict[str, list[dict[str, Any]]]:
    """What the TypeScript codec makes of headers to encode and bytes to decode."""
    given = {"encode": encode, "decode": [base64.b64encode(raw).decode() for raw in decode]}
    return answered(PROGRAM, given)


INTEGERS = [0, 1, 127, 128, 255, 256, 65535, 65536, 2**31, 2**32 - 1, 2**32, 2**40 + 1, 2**53 - 1]
TEXTS = [
    "",
    "a",
    "x" * 31,
    "x" * 32,
    "x" * 255,
    "x" * 256,
    "x" * 4000,
    "ä€😀" * 90,
    "\0",
    "\u2028",
    "\ufeffa",
    "__proto__",
]


def headers() -> list[dict[str, Any]]:
    """Edges of every type, then random flat maps of up to 15 entries."""
    made: list[dict[str, Any]] = [{}, {str(index): index for index in range(15)}]
    made += [{"v": value} for value in (*INTEGERS, *TEXTS, None, True, False)] + [{text: 1} for text in TEXTS]
    chance = random.Random(1)
    for _ in range(500):
        values = [*INTEGERS, *TEXTS[:7], None, True, False, chance.randrange(2**53)]
        size = chance.randrange(16)
        made.append({chance.choice(TEXTS[:4]) + str(index): chance.choice(values) for index in range(size)})
    return made


def examples() -> list[dict[str, Any]]:
    """Headers that really cross the pipe."""
    name = "\U0001f600" * protocol.MAX_NAME_CHARS
    messages = [
        protocol.Ready(protocol=1),
        protocol.Log(level="warn", ms=2**53 - 1),
        protocol.Call(id=protocol.MAX_CALL_ID, server=name, tool=name),
        protocol.Query(id=1, op="searchTools"),
        protocol.Notice(),
        protocol.Failed(ms=70_000, kind="rejection"),
        protocol.Start(log_bytes=2**40, message_bytes=2**24),
        protocol.Reply(id=200, ok=False),
    ]
    return [msgspec.to_builtins(message) for message in messages]


def in_js_order(header: dict[str, Any]) -> dict[str, Any]:
    """The header with its keys in the order in which JavaScript lists them."""
    first = sorted((key for key in header if re.fullmatch("0|[1-9][0-9]*", key)), key=int)
    return {key: header[key] for key in [*first, *(key for key in header if key not in first)]}


def test_what_the_sandbox_encodes_the_host_reads() -> None:
    cases = headers() + examples()
    written = [base64.b64decode(answer["value"]) for answer in codec(encode=cases)["encode"]]
    assert [msgpack.unpackb(one) for one in written] == cases
    # In the host's own form, or it would not be heard; JavaScript puts keys that are integers in front.
    assert written == [pack_header(in_js_order(case)) for case in cases]


def test_what_the_host_encodes_the_sandbox_reads() -> None:
    cases = headers() + examples()
    answers = codec(decode=[pack_header(case) for case in cases])["decode"]
    # A key called __proto__ must be a key like any other, and JSON can carry it.
    assert [answer["value"] for answer in answers] == cases


def test_what_is_outside_the_subset_is_an_error_and_never_a_wrong_value() -> None:
    unwanted = [{"a": -1}, {"a": 1.5}, {"a": 2**53}, {"a": [1]}, {"a": {}}, {str(i): 0 for i in range(16)}]
    answers = codec(encode=[*unwanted, {"a": "x" * 65_536}])["encode"]
    assert [answer.get("error") for answer in answers] == ["RangeError"] * 7
    hostile = [
        packed([1]),
        packed("a"),
        packed({"a": -1}),
        packed({"a": 1.5}),
        packed({"a": [1]}),
        packed({"a": {}}),
        packed({1: 1}),
        packed({"a": b"x"}),
        packed({str(index): 0 for index in range(16)}),
        b"\x81\xa1\xff\x01",
        b"\x81\xa1a\xa2\xc3\x28",
        b"\xc1",
        b"",
        packed({"a": 1}) + b"\x00",
        packed({"a": 300})[:-1],
        packed({"a": "text"})[:-1],
        packed({"a": 1})[:1],
        packed({"a": 2**53}),
    ]
    assert [answer for answer in codec(decode=hostile)["decode"] if "error" not in answer] == []
