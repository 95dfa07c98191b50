"""Narrows parsed JSON: each function says of a value which JSON type it has (RFC 8259, section 3).

A parsed object's keys are always texts, which `isinstance(value, dict)` alone does not tell a type checker.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from typing_extensions import TypeIs


def is_object(value: object) -> TypeIs[dict[str, Any]]:
    """Says whether a parsed JSON value is an object."""
    return isinstance(value, dict)


def is_array(value: object) -> TypeIs[list[Any]]:
    """Says whether a parsed JSON value is an array."""
    return isinstance(value, list)
