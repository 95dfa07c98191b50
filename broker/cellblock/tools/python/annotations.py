"""Resolves the types that a function's annotations name, whatever form they are written in.

Annotations may be text (`from __future__ import annotations`), may name types of an enclosing function, and may be
on something other than a plain function: a method, a `functools.partial`, an object with `__call__`.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import types
import typing
from collections.abc import Callable, Mapping
from typing import (
    Annotated,
    Any,
    Final,
    NotRequired,
    Required,
    Union,
    cast,
    get_args,
    get_origin,
    get_type_hints,
)

from typing_extensions import Format, TypedDict, get_annotations, is_typeddict

PYDANTIC_TAKES_TYPED_DICT: Final = sys.version_info >= (3, 12)
"""Says whether pydantic takes `typing.TypedDict`: before 3.12 it refuses that, for the type does not keep the bases of
generic ones."""

_CONTENT_MODULES: Final = frozenset({"mcp", "mcp_types"})

CONTENT_TYPES: Final = frozenset(
    {"CallToolResult", "ServerResult"}
    | {"TextContent", "ImageContent", "AudioContent", "ResourceLink", "EmbeddedResource"}
)
"""Holds MCP's own types: a tool that returns one has no output schema (Schema Inference, "Blocklist")."""


class Unresolved(Exception):
    """Tells that an annotation names something that cannot be found."""


class Hints:
    """Holds the annotations of a callable, resolved one by one when they cannot be all at once.

    Args:
        function: Anything that can be called.
        namespace: Names of the place where it was defined, beside its module's and its closure's.
    """

    def __init__(self, function: Callable[..., Any], namespace: Mapping[str, Any] | None = None) -> None:
        self._target = annotated_function(function)
        self.names = {**(namespace or {}), **_closure(self._target)}
        """Maps what text annotations may name, its own and those of the types that it names."""
        self._raw = _written(self._target)
        self._resolved: dict[str, Any] | None = None
        # Evaluating text can raise anything; each is tried by itself then.
        with contextlib.suppress(Exception):
            self._resolved = get_type_hints(self._target, localns=self.names, include_extras=True)

    def __contains__(self, name: str) -> bool:
        return name in self._raw

    def get(self, name: str) -> Any:
        """Gives the type of a parameter, or of `return`; Any where none is written.

        Raises:
            Unresolved: The annotation is text that cannot be evaluated.
        """
        if name not in self._raw:
            return Any
        if self._resolved is not None:
            return modern(self._resolved[name], self.names)
        holder = types.SimpleNamespace(__annotations__={name: self._raw[name]})
        module = getattr(inspect.unwrap(self._target), "__globals__", {})
        try:
            found = get_type_hints(holder, module, self.names, include_extras=True)[name]
            return modern(found, self.names)
        except Exception as error:  # noqa: BLE001 - as above
            raise Unresolved(
                f"the annotation of {name}, {self._raw[name]!r}, cannot be resolved: {error}"
            ) from None


def annotated_function(function: Callable[..., Any]) -> Callable[..., Any]:
    """Gives the function that carries annotations, name and docstring."""
    while isinstance(function, functools.partial):
        function = cast("Callable[..., Any]", function.func)
    if inspect.isroutine(function) or isinstance(function, type):
        return function
    return type(function).__call__


def names_content(annotation: Any) -> bool:
    """Says whether the annotation is one of MCP's content types, or has one among its arguments."""
    if any(names_content(part) for part in get_args(annotation)):
        return True
    if not isinstance(annotation, type):
        return False
    return any(
        base.__name__ in CONTENT_TYPES and base.__module__.partition(".")[0] in _CONTENT_MODULES
        for base in annotation.__mro__
    )


def modern(annotation: Any, names: dict[str, Any]) -> Any:
    """Gives the annotation with every `typing.TypedDict` in it made anew as one that pydantic takes.

    `names` are what texts in it may name beside the names of their module. Recursive and generic ones, and those inside
    a class, are left; pydantic's refusal says what to do.
    """
    if PYDANTIC_TAKES_TYPED_DICT:
        return annotation
    try:
        return _modern(annotation, (), names)
    except Exception:  # noqa: BLE001 - its own annotations cannot be resolved; pydantic says so in its way
        return annotation


def _modern(annotation: Any, within: tuple[Any, ...], names: dict[str, Any]) -> Any:
    if is_typeddict(annotation) and type(annotation).__module__ == "typing":
        if annotation in within:
            return annotation
        return _typed_dict(annotation, (*within, annotation), names)
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin is None or origin is typing.Literal or not arguments:
        return annotation
    made = tuple(
        _modern(part, within, names) if index == 0 or origin is not Annotated else part
        for index, part in enumerate(arguments)
    )
    if all(new is old for new, old in zip(made, arguments, strict=True)):
        return annotation
    if origin is types.UnionType:
        origin = Union
    elif isinstance(annotation, types.GenericAlias):
        return types.GenericAlias(origin, made)
    elif hasattr(annotation, "copy_with") and origin is not Annotated:
        return annotation.copy_with(made)
    return cast("Any", origin)[made]


def _typed_dict(old: Any, within: tuple[Any, ...], names: dict[str, Any]) -> Any:
    fields: dict[str, Any] = {}
    for name, hint in get_type_hints(old, localns=names, include_extras=True).items():
        # Text annotations hide `NotRequired` from typing itself when the class is made.
        marker, required = get_origin(hint), name in old.__required_keys__
        while marker in (NotRequired, Required):
            required = marker is Required
            hint = get_args(hint)[0]
            marker = get_origin(hint)
        made = _modern(hint, within, names)
        fields[name] = Required[made] if required else NotRequired[made]
    new: Any = TypedDict(old.__name__, fields)  # pyright: ignore
    new.__doc__ = old.__doc__
    new.__module__ = old.__module__
    config: object = getattr(old, "__pydantic_config__", None)
    if config is not None:
        new.__pydantic_config__ = config
    return new


def _written(function: Callable[..., Any]) -> dict[str, Any]:
    """Gives the annotations as they are written; what cannot be resolved is text, or a forward reference."""
    try:
        return dict(get_annotations(function, format=Format.FORWARDREF))
    except Exception:  # noqa: BLE001 - of an odd callable; then nothing is known of its types
        return {}


def _closure(function: Callable[..., Any]) -> dict[str, Any]:
    """Gives the enclosing function's names that the function uses."""
    plain = inspect.unwrap(function)
    code: object = getattr(plain, "__code__", None)
    cells: tuple[Any, ...] = getattr(plain, "__closure__", None) or ()
    names: tuple[str, ...] = getattr(code, "co_freevars", ())
    found: dict[str, Any] = {}
    for name, cell in zip(names, cells, strict=False):
        with contextlib.suppress(ValueError):  # not bound yet
            found[name] = cell.cell_contents
    return found
