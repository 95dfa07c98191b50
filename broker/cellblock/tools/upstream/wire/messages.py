"""Reads the JSON-RPC envelope of what a server sends, and writes ours. A result stays the bytes that came, and its
objects and arrays are taken apart undecoded: each member and item is an object of Python's, and a server may send
millions. Of what is large, only those are made that somebody reads, and the rest costs a scan.

Pure: nothing here waits.
"""

from __future__ import annotations

import json
import math
import re
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from typing import Any, Final

import msgspec
from msgspec import Raw
from pydantic_core import from_json, to_json

from cellblock.base.json import is_object
from cellblock.base.raw_json import (
    LIGHT_CONTAINERS,
    MANY_CONTAINERS,
    MANY_CONTAINERS_BYTES,
    containers_in,
    has_many_containers,
    is_light,
)
from cellblock.base.visible import visible

FEW_BYTES: Final = 256 * 1024
"""Bounds what is taken apart whole: so many bytes have at most 131,072 items, which take some 8 ms."""

MOST_ITEMS: Final = 4_096
"""Bounds the items taken of one array, and the messages of a batch; the caps on whole lists are lower."""

MOST_MEMBERS: Final = 100_000
"""Bounds the members of an object that are taken all; they take some 25 ms."""

_READ: Final = (
    *("content", "structuredContent", "isError", "task", "resultType", "ttlMs", "cacheScope", "_meta"),
    *("tools", "resources", "resourceTemplates", "prompts", "nextCursor", "contents", "messages"),
    *("type", "text", "name"),
)
"""Names the members that somebody reads."""

_fields: Final = msgspec.json.Decoder(dict[str, Raw])
_items: Final = msgspec.json.Decoder(list[Raw])
_read: Final = msgspec.json.Decoder(msgspec.defstruct("Read", [(name, Raw, Raw()) for name in _READ]))


@cache
def _first() -> msgspec.json.Decoder[Any]:
    names = [(f"item_{number}", Raw, Raw()) for number in range(MOST_ITEMS)]
    return msgspec.json.Decoder(msgspec.defstruct("First", names, array_like=True))


@lru_cache(64)
def _alone(name: str) -> msgspec.json.Decoder[Any]:
    made = msgspec.defstruct("Alone", [("only", Raw)], rename={"only": name}, forbid_unknown_fields=True)
    return msgspec.json.Decoder(made)


def fields_of(body: bytes) -> dict[str, Raw]:
    """Returns the members of an object; where there may be over `MOST_MEMBERS`, those that somebody reads."""
    if len(body) <= FEW_BYTES or body.count(b":") <= MOST_MEMBERS:
        return _fields.decode(body)
    known = {name: raw for name, raw in msgspec.structs.asdict(_read.decode(body)).items() if memoryview(raw)}
    rest = len(body) - sum(len(memoryview(raw)) for raw in known.values())
    return _fields.decode(body) if rest <= FEW_BYTES else known


def items_of(body: bytes) -> list[bytes]:
    """Returns the first `MOST_ITEMS` of an array."""
    if len(body) <= FEW_BYTES:
        return [bytes(item) for item in _items.decode(body)[:MOST_ITEMS]]
    return [bytes(item) for item in msgspec.structs.astuple(_first().decode(body)) if memoryview(item)]


def repeated_name(body: bytes) -> str | None:
    """Returns a name that one object in JSON text has twice, of which readers take the last; None where there is none,
    or it cannot be said."""
    repeated: list[str] = []

    def note(members: list[tuple[str, Any]]) -> None:
        names = [name for name, _ in members]
        if len(frozenset(names)) < len(names):
            repeated.append(Counter(names).most_common(1)[0][0])

    with suppress(ValueError, RecursionError):
        json.loads(body, object_pairs_hook=note)
    return repeated[0] if repeated else None


def member_alone(value: bytes, name: str) -> bytes | None:
    """Returns the member of an object that has no other; None where that is not so."""
    try:
        return bytes(_alone(name).decode(value).only)
    except msgspec.ValidationError:
        return None


SMALL_BYTES: Final = FEW_BYTES
"""Bounds what is decoded whole: requests, notifications, errors, and results that are not a tool's."""

MENDED_BYTES: Final = 1024 * 1024
"""Bounds the messages that are mended where they are no JSON: those with NaN, and a quarter of it with half a surrogate
pair, which no native code reads."""

MOST_SAID: Final = 10_000
"""Bounds the arrays and objects of requests and notifications, which are gone through several times."""

ENDS_BYTES: Final = 512
"""Sets how much of either end of a message that is not read is searched for its id."""

QUOTED_CHARS: Final = 120
_LAST_WORD: Final = re.compile(r"[^\s\"]*$")

INTERNAL_ERROR: Final = -32603

Id = int | str

_ID_AT_START: Final = re.compile(rb'\A\s*\{\s*"jsonrpc"\s*:\s*"2\.0"\s*,\s*"id"\s*:\s*(\d{1,18})\s*,')
_ID_AT_END: Final = re.compile(rb'"id"\s*:\s*(\d{1,18})\s*(?:,\s*"jsonrpc"\s*:\s*"2\.0"\s*)?\}\s*\Z')
_BETWEEN: Final = re.compile(rb'(?<=\})\s*(?=\{"jsonrpc")')
"""Matches between two messages; JSON has no such place, neither in a text."""

_NO_NUMBERS: Final = re.compile(
    rb"-?Infinity|NaN|(?<![\w.+-])-?[1-9][\d.]*[eE]\+?(?:309|3[1-9]\d|[4-9]\d\d|[1-9]\d{3,})(?!\d)"
)
"""Matches what JavaScript has no finite number for."""

BYTE_ORDER_MARK: Final = b"\xef\xbb\xbf"


class _Envelope(msgspec.Struct):
    id: Raw = Raw()
    method: Raw = Raw()
    params: Raw = Raw()
    result: Raw = Raw()
    error: Raw = Raw()


_envelope: Final = msgspec.json.Decoder(_Envelope)


@dataclass(frozen=True, slots=True)
class Result:
    """Answers a request. `notes` say what was no JSON in it and is replaced."""

    id: Id | None
    body: bytes
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Failure:
    """Answers a request with an error."""

    id: Id | None
    code: int
    message: str
    data: Any = None


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Stands for a message that could not be read; `why` says so without a full stop. `id` is that of the request that
    it answers, where that is known: a server that lies there fails its own calls only."""

    id: Id | None
    why: str
    too_large: bool = False


@dataclass(frozen=True, slots=True)
class Request:
    id: Id
    method: str
    params: dict[str, Any] | None
    too_large: bool = False


@dataclass(frozen=True, slots=True)
class Notification:
    method: str
    params: dict[str, Any] | None


Message = Result | Failure | Unreadable | Request | Notification


def parts(data: bytes) -> list[bytes]:
    """Returns the messages that stand on one line, in one event or in one body: one, those of a batch, or none."""
    data = data.removeprefix(BYTE_ORDER_MARK).strip()
    if data[:1] == b"[" and not has_many_containers(data):
        with suppress(msgspec.DecodeError, RecursionError):
            batch = items_of(data)
            if len(batch) < MOST_ITEMS:
                return batch
    if data.find(b'{"jsonrpc"', 1) > 0 and len(data) <= FEW_BYTES:
        return _BETWEEN.split(data)
    return [data] if data else []


def read(data: bytes) -> Message:
    """Reads a message."""
    if not data.startswith(b"{"):
        return Unreadable(None, f"it is no JSON-RPC message: `{quoted(data)}`")
    if has_many_containers(data):
        why = f"it has over {MANY_CONTAINERS_BYTES} bytes and {MANY_CONTAINERS} arrays and objects"
        return Unreadable(answered_id(data, data), why, too_large=True)
    try:
        return _message(data, ())
    except RecursionError:
        return Unreadable(answered_id(data, data), "it is nested too deeply")
    except (msgspec.DecodeError, UnicodeDecodeError) as why:
        try:
            return _message(*_mended(data))
        except (msgspec.DecodeError, ValueError, RecursionError):
            return Unreadable(answered_id(data, data), f"it is no JSON ({why}): `{quoted(data)}`")


def answered_id(head: bytes, tail: bytes) -> int | None:
    """Returns the id of the request that a message answers, where its beginning or its end says so as most servers
    write it."""
    found = _ID_AT_START.search(head[:ENDS_BYTES]) or _ID_AT_END.search(tail[-ENDS_BYTES:])
    return int(found[1]) if found else None


def quoted(data: bytes) -> str:
    """Returns the beginning of what a server wrote, for a sentence. No word is cut: it may be a secret, of which a part
    would not be known again."""
    text = visible(data[: 4 * QUOTED_CHARS].decode("utf-8", "replace"), instead=" ")
    return (text if len(text) <= QUOTED_CHARS else _LAST_WORD.sub("", text[:QUOTED_CHARS])).strip()


def written(params: Mapping[str, Any] | None = None, **members: object) -> bytes:
    """Writes a request, a notification or an answer. Raises ValueError where it is no JSON, or no UTF-8."""
    message = {"jsonrpc": "2.0", **members}
    if params:
        message["params"] = {key: Raw(to_json(value)) for key, value in params.items()}
    return msgspec.json.encode(message)


def error(number: Id, code: int, message: str, data: Any = None) -> bytes:
    """Writes an error as the answer to a request of the server."""
    said = {"code": code, "message": message} | ({"data": data} if data is not None else {})
    return written(id=number, error=said)


def _message(data: bytes, notes: tuple[str, ...]) -> Message:
    """Reads a message that is an object. Raises what `read` catches."""
    envelope = _envelope.decode(data)
    number = _id(bytes(envelope.id))
    # Some write each member that there may be, as null or empty.
    if (method := bytes(envelope.method)) not in (b"", b"null"):
        name: object = msgspec.json.decode(method)
        if not isinstance(name, str):
            return Unreadable(None, "its method is no text")
        params = bytes(envelope.params)
        if len(params) > SMALL_BYTES or containers_in(params) > MOST_SAID:
            # What nobody has asked for is dropped undecoded.
            return Notification("", None) if number is None else Request(number, name, None, too_large=True)
        given: object = msgspec.json.decode(params) if params else None
        known = given if is_object(given) else None
        return Notification(name, known) if number is None else Request(number, name, known)
    failed = bytes(envelope.error)
    if failed not in (b"", b"null", b"false", b"[]", b"{}", b'""'):
        return _failure(number, failed)
    body = bytes(envelope.result)
    if not body:
        return Unreadable(number, f"it is no JSON-RPC message: `{quoted(data)}`")
    if not body.startswith(b"{"):
        return Unreadable(number, f"its result is no object: `{quoted(body)}`")
    if not body.isascii():
        body.decode()
    return Result(number, body, notes)


def _failure(number: Id | None, body: bytes) -> Failure:
    text = body.decode()
    if not is_light(body):
        return Failure(number, INTERNAL_ERROR, text[:SMALL_BYTES])
    said: object = msgspec.json.decode(body)
    if not is_object(said):
        return Failure(number, INTERNAL_ERROR, said if isinstance(said, str) else text)
    code, message = said.get("code"), said.get("message")
    if isinstance(code, str) and code.lstrip("-").isdecimal():
        code = int(code)
    number_of_error = int(code) if isinstance(code, int | float) and code is not True else INTERNAL_ERROR
    if not isinstance(message, str):
        message = text if message is None else json.dumps(message, ensure_ascii=False)
    if not isinstance(code, int | float | None):
        message = f"{message} ({code})"
    return Failure(number, number_of_error, message, said.get("data"))


def _id(raw: bytes) -> Id | None:
    try:
        number: object = msgspec.json.decode(raw) if raw else None
    except msgspec.DecodeError:
        return None
    return id_of(number)


def id_of(said: object) -> Id | None:
    """Returns an id; some write 7 as 7.0."""
    if isinstance(said, float) and said.is_integer():
        return int(said)
    return said if isinstance(said, int | str) and not isinstance(said, bool) else None


def _mended(data: bytes) -> tuple[bytes, tuple[str]]:
    """Returns JSON in the place of what most parsers take and JSON forbids, and a sentence: NaN and infinities (and
    beside something odd a number past the range of doubles) become null, half a surrogate pair and other bytes than
    UTF-8 become U+FFFD, bare control characters are escaped. Raises ValueError."""
    if len(data) > MENDED_BYTES or containers_in(data) > LIGHT_CONTAINERS:
        raise ValueError
    if (text := data.decode("utf-8", "replace")).encode() != data:
        return text.encode(), ("Bytes that are no UTF-8 became U+FFFD.",)
    said = sorted({name.decode() for name in _NO_NUMBERS.findall(data)})
    why = f"{' and '.join(said)} has no JSON form: null stands in its place."
    with suppress(ValueError):
        if said:
            return to_json(from_json(data), inf_nan_mode="null"), (why,)
    if len(data) > MENDED_BYTES // 4:
        raise ValueError
    value: object = json.loads(text, parse_constant=lambda _: None, parse_float=_finite, strict=False)
    text = json.dumps(value, ensure_ascii=False)
    spelled = text.encode("utf-16", "surrogatepass").decode("utf-16", "replace").encode()
    if not said:
        has_halves = spelled != text.encode("utf-8", "surrogatepass")
        why = "Half characters became U+FFFD." if has_halves else "Bare control characters were escaped."
    return spelled, (why,)


def _finite(said: str) -> float | None:
    number = float(said)
    return None if math.isinf(number) else number


def decoded(body: bytes) -> Any:
    """Returns the value of JSON that was read already; integers of any size stay what they are."""
    try:
        return msgspec.json.decode(body)
    except msgspec.ValidationError:
        # A number past the range of doubles.
        return json.loads(body)
