"""Finds numbers of a result that JavaScript cannot have as they are: JSON has them, and nothing would tell. Pure."""

from __future__ import annotations

import json
import math
from typing import Any, Final, NamedTuple

import msgspec

from cellblock.base.json import is_array, is_object, pointer_of
from cellblock.tools.upstream.wire.messages import decoded, quoted

MOST_EXACT: Final = 2**53 - 1
"""Is the largest integer up to which JavaScript tells each one from its neighbours."""

SEARCHED_BYTES: Final = 256 * 1024
"""Bounds the value that is looked through on the loop."""

# As zeros, so that one search finds any digits: a regular expression takes a hundred times as long.
_ZEROS: Final = bytes.maketrans(b"123456789E", b"000000000e")
_LONG: Final = b"0" * 16
_FAR: Final = b"0e000"


class _Place(NamedTuple):
    """Holds a value, its key, and where that is."""

    value: Any
    key: str | int = ""
    inside: _Place | None = None


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
    place = _shown(found)
    if isinstance(found.value, float):
        sign = "-" if found.value < 0 else ""
        return f"The number at {place} is past the range of numbers, and is {sign}Infinity."
    said = f"The integer at {place} is beyond 2^53, and rounded as a number: it is {str(found.value)[:40]}."
    if server is None:
        return said
    setting = json.dumps({server: "bigint"}, ensure_ascii=False)
    return f"{said} With `schemas.unwrap` at {setting} scripts get it as a BigInt."


def _first(value: Any, most: int | None) -> _Place | None:
    waiting = [_Place([value])]
    while waiting:
        outer = waiting.pop()
        inside = outer.value.items() if is_object(outer.value) else enumerate(outer.value)
        for key, item in inside:
            if is_object(item) or is_array(item):
                waiting.append(_Place(item, key, outer))
            elif isinstance(item, float):
                if math.isinf(item):
                    return _Place(item, key, outer)
            elif most is not None and isinstance(item, int) and not -most <= item <= most:
                return _Place(item, key, outer)
    return None


def _shown(place: _Place) -> str:
    steps: list[str | int] = []
    while place.inside is not None:
        steps.append(place.key)
        place = place.inside
    # The last is the place of the whole value.
    return quoted(pointer_of(steps[-2::-1]).encode("utf-8", "replace")) or "the root"
