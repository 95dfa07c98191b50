"""Finds numbers of a result that JavaScript cannot have as they are: JSON has them, and nothing would tell. Pure."""

from __future__ import annotations

import math
from typing import Any, Final

from cellblock.base.json import is_array, is_object, pointer_of
from cellblock.tools.upstream.wire.messages import decoded, quoted

MOST_EXACT: Final = 2**53
"""Is the largest integer up to which JavaScript has each one."""

MOST_BITS: Final = 1_024
"""Bounds the integers that are numbers of JavaScript at all."""

SEARCHED_BYTES: Final = 64 * 1024
"""Bounds the value that is looked through on the loop."""

# As zeros, so that one search finds any digits: a regular expression takes a hundred times as long.
_ZEROS: Final = bytes.maketrans(b"123456789E", b"000000000e")
_LONG: Final = b"0" * 16
_FAR: Final = b"0e000"


def inexact(body: bytes) -> str | None:
    """Returns a sentence on the first number of a value that is rounded or infinite in a script; None for none. Of a
    large value nothing is said."""
    if len(body) > SEARCHED_BYTES:
        return None
    zeros = body.translate(_ZEROS, b"+")
    if _LONG not in zeros and _FAR not in zeros:
        return None
    waiting: list[tuple[list[str | int], Any]] = [([], decoded(body))]
    while waiting:
        path, value = waiting.pop()
        if is_object(value):
            waiting += [([*path, key], item) for key, item in value.items()]
        elif is_array(value):
            waiting += [([*path, index], item) for index, item in enumerate(value)]
        elif isinstance(value, float) and math.isinf(value):
            sign = "-" if value < 0 else ""
            return f"The number at {_place(path)} is past the range of numbers, and is {sign}Infinity."
        elif isinstance(value, int) and abs(value) > MOST_EXACT and not _is_exact(value):
            return (
                f"The integer at {_place(path)} is beyond 2^53 and rounded: it is {str(value)[:40]}. "
                "Ask for it as a text where each digit counts."
            )
    return None


def _is_exact(value: int) -> bool:
    return value.bit_length() < MOST_BITS and int(float(value)) == value


def _place(path: list[str | int]) -> str:
    return quoted(pointer_of(path).encode("utf-8", "replace")) or "the root"
