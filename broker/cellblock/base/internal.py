"""Marks what is public in Python, as our own front-ends need it, and is no part of the embedding API."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar

F = TypeVar("F", bound=Callable[..., Any])

_MARKED: Final[set[str]] = set()


def internal(function: F) -> F:
    """Marks a function or method, below `@property` where there is one, or a class with all its members: it may change
    in any version."""
    _MARKED.add(f"{function.__module__}.{function.__qualname__}")
    return function


def is_internal(member: object) -> bool:
    """Says whether a member of a class is marked as internal."""
    function = member.fget if isinstance(member, property) else member
    place = f"{getattr(function, '__module__', '')}.{getattr(function, '__qualname__', '')}"
    return place in _MARKED or place.rpartition(".")[0] in _MARKED
