"""Narrows parsed JSON: says of a value which JSON type it has (RFC 8259, section 3), and follows JSON Pointers.

A parsed object's keys are always texts, which `isinstance(value, dict)` alone does not tell a type checker.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

if TYPE_CHECKING:
    from typing_extensions import TypeIs


def is_object(value: object) -> TypeIs[dict[str, Any]]:
    return isinstance(value, dict)


def is_array(value: object) -> TypeIs[list[Any]]:
    return isinstance(value, list)


def mapped(value: Any, change: Callable[[str], str], *, keys: Callable[[str], str] | None = None) -> Any:
    """Returns parsed JSON with every text changed, and by `keys` the names of members."""
    if isinstance(value, str):
        return change(value)
    if is_array(value):
        return [mapped(item, change, keys=keys) for item in value]
    if is_object(value):
        return {keys(key) if keys else key: mapped(item, change, keys=keys) for key, item in value.items()}
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
