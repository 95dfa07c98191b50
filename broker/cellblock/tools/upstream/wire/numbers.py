"""Finds numbers of a result that JavaScript cannot have as they are: JSON has them, and nothing would tell. Pure."""

from __future__ import annotations

import json
import math
from collections.abc import Iterable
from typing import Any, Final, cast

import msgspec

from cellblock.base.json import is_object, pointer_of
from cellblock.tools.upstream.wire.messages import decoded, quoted

MOST_EXACT: Final = 2**53 - 1
"""Is the largest integer up to which JavaScript tells each one from its neighbours."""

SEARCHED_BYTES: Final = 128 * 1024
"""Bounds the value that is looked through on the loop."""

# As zeros, so that one search finds any digits: a regular expression takes a hundred times as long.
_ZEROS: Final = bytes.maketrans(b"123456789E", b"000000000e")
_LONG: Final = b"0" * 16
_FAR: Final = b"0e000"


_Place = tuple[Any, "str | int", "_Place | None"]
"""Holds a value, its key, and what it is in."""


def inexact(body: bytes, server: str | None, *, exact: bool) -> str | None:
    """Returns a sentence on the first number of a value, or of a text that is JSON, that a script does not get with its
    digits; None for none. Of a large value nothing is said.

    Args:
        body: The value as JSON.
        server: Its server's name in the configuration; None where that cannot have it exact.
        exact: Whether the script gets such integers as bigints.
    """
    if len(body) > SEARCHED_BYTES:
        return None
    zeros = body.translate(_ZEROS, b"+")
    if _LONG not in zeros and _FAR not in zeros:
        return None
    try:
        value = decoded(body)
        if isinstance(value, str):
            value = decoded(value.encode()) if value.lstrip()[:1] in ("{", "[") else None
    except (ValueError, msgspec.DecodeError, RecursionError):
        return None
    found = _first(value, MOST_EXACT if not exact else None)
    if found is None:
        return None
    number, place = found[0], _shown(found)
    if isinstance(number, float):
        sign = "-" if number < 0 else ""
        return f"The number at {place} is past the range of numbers, and is {sign}Infinity."
    said = f"The integer at {place} is beyond 2^53, and rounded as a number: it is {str(number)[:40]}."
    if server is None:
        return said
    setting = json.dumps({server: "bigint"}, ensure_ascii=False)
    return f"{said} With `schemas.unwrap` at {setting} scripts get it as a BigInt."


def _first(value: Any, most: int | None) -> _Place | None:
    waiting: list[_Place] = [([value], "", None)]
    while waiting:
        outer = waiting.pop()
        for key, item in _members(outer[0]):
            # By its exact type, as JSON was decoded: there may be very many.
            kind = cast("type[object]", type(item))
            if kind is int:
                if most is not None and not -most <= item <= most:
                    return item, key, outer
            elif kind is float:
                if math.isinf(item):
                    return item, key, outer
            elif (kind is dict or kind is list) and item:
                waiting.append((item, key, outer))
    return None


def _members(value: Any) -> Iterable[tuple[str | int, Any]]:
    return value.items() if is_object(value) else enumerate(cast("list[Any]", value))


def _shown(found: _Place) -> str:
    steps: list[str | int] = []
    _, key, outer = found
    # The outermost holds the whole value alone.
    while outer is not None and outer[2] is not None:
        steps.append(key)
        _, key, outer = outer
    return quoted(pointer_of(steps[::-1]).encode("utf-8", "replace")) or "the root"
