"""Marks functions as tools by `@tool()`. Nothing heavy is imported: the module that is marked pays nothing."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar, cast, get_args, overload

F = TypeVar("F", bound=Callable[..., Any])

MARK: Final = "__cellblock_tool__"

_WORD: Final = re.compile(r"\w+")


@dataclass(frozen=True, slots=True)
class ToolMark:
    """Holds what `@tool()` was given; the fields are its arguments."""

    name: str | None = None
    description: str | None = None
    input_schema: Mapping[str, Any] | None = None
    output_schema: Mapping[str, Any] | None = None
    annotations: Mapping[str, Any] | None = None
    flatten: bool = False
    namespace: Mapping[str, Any] | None = None
    """Holds the names of the function around it, where its annotations are text that needs them."""


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(
    *,
    name: str | None = None,
    description: str | None = None,
    input_schema: Mapping[str, Any] | None = None,
    output_schema: Mapping[str, Any] | None = None,
    annotations: Mapping[str, Any] | None = None,
    flatten: bool = False,
) -> Callable[[F], F]: ...
def tool(
    function: F | None = None,
    /,
    *,
    name: str | None = None,
    description: str | None = None,
    input_schema: Mapping[str, Any] | None = None,
    output_schema: Mapping[str, Any] | None = None,
    annotations: Mapping[str, Any] | None = None,
    flatten: bool = False,
) -> F | Callable[[F], F]:
    """Marks a function as a tool that scripts can call.

    The input schema comes from the signature, the output schema from the return annotation. The function stays
    usable as it is. Functions that are not async run in a thread, so a slow one does not stall the broker.

    What is no object is boxed: of a tool `-> int` a script gets `{ result: 3 }` (`x-dedalus-box` in the schema).

    Args:
        name: Tool name; the function's own when absent.
        description: For agents; the docstring when absent.
        input_schema: JSON Schema of an object, declared and checked instead of the inferred one.
        output_schema: JSON Schema of the value, declared and checked instead of the inferred one.
        annotations: MCP's tool annotations, such as `{"readOnlyHint": True}`.
        flatten: For a function of one parameter that is a class with fields: the input has those fields itself,
            `f({ a: 1 })` and not `f({ param: { a: 1 } })`.

    Raises:
        TypeError: What is decorated cannot be marked, such as a built-in function; wrap it in a function.

    Example:
        >>> @tool()
        ... def add(a: int, b: int) -> int:
        ...     "Adds two numbers."
        ...     return a + b
    """

    def mark(target: F) -> F:
        # A classmethod or staticmethod that is not bound yet: its function is what a bound one shows.
        inner = getattr(target, "__func__", target)
        made = ToolMark(
            name, description, input_schema, output_schema, annotations, flatten, _namespace(inner, depth)
        )
        try:
            setattr(inner, MARK, made)
        except (AttributeError, TypeError):
            raise TypeError(f"{target!r} cannot be marked as a tool; wrap it in a function") from None
        return target

    depth = 2
    if function is None:
        return mark
    depth = 3
    return mark(function)


def mark_of(function: object) -> ToolMark | None:
    """Gives what `@tool()` has put on the function, or None."""
    # Some objects have every attribute that is asked for, mocks and lazy modules among them.
    mark = getattr(function, MARK, None)
    return mark if isinstance(mark, ToolMark) else None


def _namespace(function: object, depth: int) -> Mapping[str, Any] | None:
    """Gives the names around a nested function that its text annotations say, and those of the types that they name."""
    if "<locals>" not in getattr(function, "__qualname__", ""):
        return None
    names = sys._getframe(depth).f_locals  # pyright: ignore[reportPrivateUsage]
    found: dict[str, Any] = {}
    waiting, seen = [*_annotations(function)], set[int]()
    while waiting:
        one = waiting.pop()
        one = getattr(one, "__forward_arg__", one)
        if isinstance(one, str):
            new = {word: names[word] for word in _WORD.findall(one) if word in names and word not in found}
            found |= new
            waiting += new.values()
        elif id(one) not in seen:
            seen.add(id(one))
            waiting += get_args(one)
            for base in one.__mro__ if isinstance(one, type) else ():
                waiting += _annotations(base)
    return found or None


def _annotations(owner: object) -> list[object]:
    try:
        return [*cast("dict[str, object]", getattr(owner, "__annotations__", {})).values()]
    except Exception:  # noqa: BLE001 - of an odd object; the registration says what cannot be resolved
        return []
