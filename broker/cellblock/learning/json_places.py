"""Where in a JSON text a part of its value stands, for messages that name line and column."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Final, cast

_SPACE: Final = re.compile(r"[ \t\r\n]*")
_DECODER: Final = json.JSONDecoder()


def offset_of(text: str, path: Sequence[str | int]) -> int:
    """Index of a part's first character; of the nearest part around it that is there.

    Args:
        text: Valid JSON.
        path: Names and indices from the root, as errors of a JSON Schema validator have them.
    """
    at = _skip(text, 0)
    for step in path:
        inside = _member(text, at, step) if text[at] == "{" else _element(text, at, step)
        if inside is None:
            break
        at = inside
    return at


def _member(text: str, at: int, name: str | int) -> int | None:
    found = None
    at = _skip(text, at + 1)
    while text[at] == '"':
        key, at = cast("tuple[str, int]", scanstring(text, at + 1, True))
        at = _skip(text, _skip(text, at) + 1)
        if key == name:
            found = at  # The last one of a name counts.
        at = _after(text, at)
    return found


def _element(text: str, at: int, index: str | int) -> int | None:
    if text[at] != "[":
        return None
    at, number = _skip(text, at + 1), 0
    while text[at] != "]":
        if number == index:
            return at
        at, number = _after(text, at), number + 1
    return None


def _after(text: str, at: int) -> int:
    """The start of what follows a value and its comma, or of the bracket that closes."""
    at = _skip(text, _DECODER.raw_decode(text, at)[1])
    return _skip(text, at + 1) if text[at] == "," else at


def _skip(text: str, at: int) -> int:
    match = _SPACE.match(text, at)
    return match.end() if match else at
