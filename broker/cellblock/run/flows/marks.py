"""Marks are texts of a run's results that stand in the input of a call: they explain a question, and decide nothing."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Sequence
from typing import Any, Final

MIN_CHARS: Final = 12
"""Takes shorter texts for chance."""

MAX_INPUT_CHARS: Final = 16 * 1024
"""Bounds what is looked at of an input."""

_JSON: Final = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"))

MAX_MARKS: Final = 5
MAX_MARK_CHARS: Final = 200


async def marks(arguments: Any, seen: Sequence[bytes]) -> tuple[str, ...]:
    """Returns texts of results, whose beginnings are given as JSON, that stand in an input, the longest first. Found in
    a thread: others have their turn."""
    return await asyncio.to_thread(_marks, arguments, seen) if seen else ()


def _marks(arguments: Any, seen: Sequence[bytes]) -> tuple[str, ...]:
    text = _beginning(arguments)
    starts = {text[at : at + MIN_CHARS]: at for at in range(len(text) - MIN_CHARS, -1, -1)}
    found = set[str]()
    for body in seen:
        result = body.decode("utf-8", "replace")
        at = 0
        while at <= len(result) - MIN_CHARS:
            start = starts.get(result[at : at + MIN_CHARS])
            size = 0 if start is None else _same(result, at, text, start)
            if size and result[at : at + size].strip('{}[]",: \\'):
                found.add(result[at : at + size].strip('{}[]",: \\')[:MAX_MARK_CHARS])
            at += max(1, size)
    ordered = sorted((one for one in found if len(one) >= MIN_CHARS), key=lambda one: (-len(one), one))
    kept: list[str] = []
    for one in ordered:
        if not any(one in longer for longer in kept):
            kept.append(one)
    return tuple(kept[:MAX_MARKS])


def _beginning(arguments: Any) -> str:
    """Returns the beginning of an input, as JSON without blanks: what is large is not encoded to its end."""
    parts, size = list[str](), 0
    for part in _JSON.iterencode(arguments):
        parts.append(part)
        size += len(part)
        if size > MAX_INPUT_CHARS:
            break
    return "".join(parts)[:MAX_INPUT_CHARS]


def _same(one: str, at: int, other: str, start: int) -> int:
    """Counts the characters that two texts share from two places on."""
    most = min(len(one) - at, len(other) - start)
    size = MIN_CHARS
    while size < most and one[at + size] == other[start + size]:
        size += 1
    return size
