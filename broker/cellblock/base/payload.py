"""Payload reads and writes JSON of workers and for workers: decoded under guards, always well-formed text."""

from __future__ import annotations

import json
import math
from collections.abc import Generator
from typing import Any, Final, NoReturn, cast

import msgspec
from pydantic_core import to_json

from cellblock.base.json import is_object
from cellblock.base.raw_json import is_deeper, weight_of

MAX_DEPTH: Final = 128
"""Bounds the nesting of a tool input, tool result or script result; MCP peers give up at 200."""

STEP_WEIGHT: Final = 10_000
"""Bounds the values that are encoded at a time: in some milliseconds."""


class TooLong(Exception):
    """Tells that a text has more bytes than it may; the error has how many at least."""

    def __init__(self, size: int) -> None:
        super().__init__(size)
        self.size = size


class PayloadError(ValueError):
    """Tells that bytes are no JSON, or are nested deeper than `MAX_DEPTH`."""


def decode(data: bytes) -> Any:
    """Decodes JSON from a worker.

    Lone surrogates have no UTF-8 form and become U+FFFD; a number past the range of doubles becomes null.

    Raises:
        PayloadError: No JSON, or too deep.
    """
    try:
        value = msgspec.json.decode(data)
    except (ValueError, RecursionError):
        # The fast parser refuses lone surrogates and numbers past the range of doubles, which JSON allows.
        return _decode_slowly(data)
    if is_deeper(data, MAX_DEPTH):
        raise PayloadError(f"nested deeper than {MAX_DEPTH} levels")
    return value


def encode(value: Any, most: int = MAX_DEPTH) -> bytes:
    """Encodes plain JSON data for a worker; NaN and infinities become null, lone surrogates U+FFFD.

    Args:
        value: The data, or a part of it.
        most: How many levels it may have.

    Raises:
        PayloadError: Not JSON data, or too deep.
    """
    try:
        data = to_json(value, inf_nan_mode="null")
    except (ValueError, TypeError, RecursionError):
        pass
    else:
        if is_deeper(data, most):
            raise PayloadError(f"nested deeper than {MAX_DEPTH} levels")
        return data
    try:
        return to_json(_well_formed(value, MAX_DEPTH - most), inf_nan_mode="null")
    except (ValueError, TypeError, RecursionError) as error:
        raise PayloadError(str(error)) from None


def kind_of(value: object) -> str:
    """Names the kind of a JSON value as JavaScript does, for messages."""
    kinds: dict[type, str] = {
        dict: "object",
        list: "array",
        type(None): "null",
        str: "string",
        bool: "boolean",
    }
    return kinds.get(type(value), "number")


def encode_in_steps(value: Any, most: int) -> bytes:
    """Encodes as `encode` does, for a thread beside the loop: native code holds the interpreter's lock for a
    piece at a time.

    Raises:
        PayloadError: As `encode`.
        TooLong: It has over `most` bytes; the rest was not encoded.
    """
    pieces: list[bytes] = []
    size = 0
    for piece in _pieces(value, 0):
        size += len(piece)
        if size > most:
            raise TooLong(size)
        pieces.append(piece)
    return b"".join(pieces)


def _pieces(value: Any, depth: int) -> Generator[bytes]:
    """Gives the JSON of data, in pieces of about `STEP_WEIGHT` values."""
    most = MAX_DEPTH - depth
    if most <= 0 and isinstance(value, dict | list | tuple):
        raise PayloadError(f"nested deeper than {MAX_DEPTH} levels")
    if weight_of(value, STEP_WEIGHT) <= STEP_WEIGHT:
        yield encode(value, most)
    elif isinstance(value, str):
        yield b'"'
        for start in range(0, len(value), STEP_WEIGHT):
            yield encode(value[start : start + STEP_WEIGHT])[1:-1]
        yield b'"'
    elif is_object(value):
        yield b"{"
        for number, (key, item) in enumerate(value.items()):
            # As a key of its own, whatever it is encoded to.
            yield (b"," if number else b"") + encode({key: None})[1:-5]
            yield from _pieces(item, depth + 1)
        yield b"}"
    elif isinstance(value, list | tuple):
        items = cast("list[Any]", value)
        yield b"["
        start = weight = 0
        for end, item in enumerate(items):
            more = weight_of(item, STEP_WEIGHT)
            if weight and weight + more > STEP_WEIGHT:
                yield encode(items[start:end], most)[1:-1] + b","
                start, weight = end, 0
            weight += more
            if weight > STEP_WEIGHT:
                yield from _pieces(item, depth + 1)
                yield b"," if end + 1 < len(items) else b""
                start, weight = end + 1, 0
        if start < len(items):
            yield encode(items[start:], most)[1:-1]
        yield b"]"
    else:
        yield encode(value)


def _decode_slowly(data: bytes) -> Any:
    def refuse(name: str) -> NoReturn:
        raise PayloadError(f"{name} is no JSON")

    try:
        return _well_formed(json.loads(data.decode("utf-8"), parse_constant=refuse), 0)
    except PayloadError:
        raise
    except RecursionError:
        raise PayloadError(f"nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as error:
        raise PayloadError(f"no JSON: {error}") from None


def _well_formed(value: Any, depth: int) -> Any:
    if depth > MAX_DEPTH:
        raise PayloadError(f"nested deeper than {MAX_DEPTH} levels")
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if is_object(value):
        return {_well_formed(str(key), depth): _well_formed(item, depth + 1) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_well_formed(item, depth + 1) for item in cast("list[Any]", value)]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value
