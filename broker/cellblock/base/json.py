"""Narrows parsed JSON: says of a value which JSON type it has (RFC 8259, section 3), and follows JSON Pointers.

A parsed object's keys are always texts, which `isinstance(value, dict)` alone does not tell a type checker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, cast
from urllib.parse import unquote

if TYPE_CHECKING:
    from typing_extensions import TypeIs


FLAT_MEMBERS: Final = 16
FLAT_KEY_CHARS: Final = 64
FLAT_TEXT_CHARS: Final = 256
_SCALARS: Final = frozenset({int, float, bool, type(None)})


def is_flat(value: object) -> bool:
    """Says whether data is an object of few plain values with short names and texts, as most inputs and results are:
    less than a microsecond tells that there is nothing to bound. An integer may have any length.
    """
    if type(value) is not dict:
        return False
    members = cast("dict[object, object]", value)
    if len(members) > FLAT_MEMBERS:
        return False
    for key, item in members.items():
        if type(key) is not str or len(key) > FLAT_KEY_CHARS:
            return False
        kind = type(item)
        if kind not in _SCALARS and (kind is not str or len(cast("str", item)) > FLAT_TEXT_CHARS):
            return False
    return True


def is_object(value: object) -> TypeIs[dict[str, Any]]:
    return isinstance(value, dict)


def is_array(value: object) -> TypeIs[list[Any]]:
    return isinstance(value, list)


def mapped(value: Any, change: Callable[[str], str], *, keys: bool = False) -> Any:
    """Returns parsed JSON with every text changed; the names of members, too, only with `keys`."""
    if isinstance(value, str):
        return change(value)
    if is_array(value):
        return [mapped(item, change, keys=keys) for item in value]
    if is_object(value):
        return {change(key) if keys else key: mapped(item, change, keys=keys) for key, item in value.items()}
    return value


def pointer_of(parts: list[str | int]) -> str:
    """Gives the JSON Pointer (RFC 6901) of a path; the root is the empty text."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)


def pointer_steps(pointer: str) -> list[str]:
    """Gives the names and indices in a JSON Pointer, which may be percent-encoded as in a reference."""
    return [step.replace("~1", "/").replace("~0", "~") for step in unquote(pointer).split("/")[1:]]


def inside(value: Any, step: str | int) -> Any:
    """Gives the member of a JSON object or array that one step of a path names.

    Raises:
        LookupError: There is none.
    """
    if is_object(value):
        return value[str(step)]
    if is_array(value) and str(step).isdecimal() and len(str(step)) < 9:
        return value[int(step)]
    raise LookupError(step)
