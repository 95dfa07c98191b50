"""`@tool()`: marks a function as a tool. Nothing heavy is imported: the module that is marked pays nothing."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final, TypeVar, get_type_hints, overload

F = TypeVar("F", bound=Callable[..., Any])

MARK: Final = "__cellblock_tool__"


@dataclass(frozen=True, slots=True)
class ToolMark:
    """What `@tool()` was given; the fields are its arguments."""

    name: str | None = None
    description: str | None = None
    input_schema: Mapping[str, Any] | None = None
    output_schema: Mapping[str, Any] | None = None
    annotations: Mapping[str, Any] | None = None
    flatten: bool = False
    namespace: Mapping[str, Any] | None = None
    """Names of the function around it, where its annotations are text that needs them."""


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
    """What `@tool()` has put on the function, or None."""
    # Some objects have every attribute that is asked for, mocks and lazy modules among them.
    mark = getattr(function, MARK, None)
    return mark if isinstance(mark, ToolMark) else None


def _namespace(function: object, depth: int) -> Mapping[str, Any] | None:
    """The names that text annotations of a nested function need and that only its definition can see."""
    if "<locals>" not in getattr(function, "__qualname__", ""):
        return None
    texts: list[str] = []
    try:
        texts = [text for text in getattr(function, "__annotations__", {}).values() if isinstance(text, str)]
        if texts:
            get_type_hints(function)
    except NameError:
        names = sys._getframe(depth).f_locals  # pyright: ignore[reportPrivateUsage]
        words = set(re.findall(r"\w+", " ".join(texts)))
        return {name: value for name, value in names.items() if name in words}
    except Exception:  # noqa: BLE001 - evaluating text can raise anything; the registration says what
        return None
    return None
