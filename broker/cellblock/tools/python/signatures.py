"""Turns a Python signature into JSON Schemas: what a tool takes and what it gives (Schema Inference specification).

Everything here happens once, when a tool is registered. Annotations may be text (`from __future__ import annotations`),
may name types of an enclosing function, and may be on something other than a plain function: a method, a
`functools.partial`, an object with `__call__`.
"""

from __future__ import annotations

import contextlib
import copy
import functools
import inspect
import json
import logging
import sys
import types
import typing
from collections.abc import Callable, Mapping
from dataclasses import dataclass
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

import jsonschema_rs
from pydantic import ConfigDict, TypeAdapter
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python
from typing_extensions import (
    Format,
    TypedDict,  # pydantic refuses typing's own before Python 3.12
    get_annotations,
    is_typeddict,
)

from cellblock.base.errors import ConfigError
from cellblock.tools.python.pydantic_schema import input_json_schema, output_json_schema
from cellblock.tools.python.tool_results import ResultForm
from cellblock.tools.schemas.boxing import box_schema, describes_object

PYDANTIC_TAKES_TYPED_DICT: Final = sys.version_info >= (3, 12)
"""Says whether pydantic takes `typing.TypedDict`: before 3.12 it refuses that, for the type does not keep the bases of
generic ones."""

_CONTENT_MODULES: Final = frozenset({"mcp", "mcp_types"})

CONTENT_TYPES: Final = frozenset(
    {"CallToolResult", "ServerResult"}
    | {"TextContent", "ImageContent", "AudioContent", "ResourceLink", "EmbeddedResource"}
)
"""Holds MCP's own types: a tool that returns one has no output schema (Schema Inference, "Blocklist")."""


class NoSchema(Exception):
    """Tells that a signature, or a part of it, cannot be put into JSON Schema; the text says why."""


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
            NoSchema: The annotation is text that cannot be evaluated.
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
            raise NoSchema(
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


logger = logging.getLogger("cellblock.schemas")

PERMISSIVE_SCHEMA: Final[dict[str, Any]] = {"type": "object", "additionalProperties": True}
"""Holds the input schema of a function whose signature says nothing that JSON Schema can."""

_VARIADIC: Final = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
    inspect.Parameter.POSITIONAL_ONLY: "positional-only ",
}


@dataclass(frozen=True, slots=True)
class InputForm:
    """Says how a tool's input is described and read.

    Attributes:
        schema: The JSON Schema that is declared.
        adapter: Makes Python values of the input; None passes them as they are.
        whole: Name of the one parameter that the whole input is, for a flattened tool.
    """

    schema: dict[str, Any]
    adapter: TypeAdapter[Any] | None = None
    whole: str | None = None


def read_input(
    function: Callable[..., Any],
    hints: Hints,
    *,
    label: str,
    explicit: Mapping[str, Any] | None = None,
    flatten: bool = False,
) -> InputForm:
    """Reads the input of a function.

    Args:
        function: Anything that can be called.
        hints: Its annotations.
        label: The tool's name, for messages.
        explicit: A schema to declare instead of the inferred one.
        flatten: Declare the properties of the only parameter's type as the input's own.

    Raises:
        ConfigError: `explicit` is no schema of an object, `flatten` does not fit the signature, or a type needs a
            package that is not installed.
    """
    if explicit is not None:
        explicit = _checked(explicit, label, "input_schema")
        if not describes_object(explicit):
            raise ConfigError(
                f"The input_schema of {label} describes no object.",
                hint="Describe the tool's parameters as properties of an object.",
            )
    try:
        form = _flat_input(function, hints) if flatten else _input(function, hints)
    except ImportError as error:
        raise _missing_package(label, error) from None
    except NoSchema as error:
        if flatten:
            raise ConfigError(
                f"{label} cannot be flattened: {_first_line(error)}.",
                hint="Leave `flatten` out, or change the parameter.",
            ) from None
        if explicit is None:
            logger.warning("%s takes any object, unchecked: %s", label, _first_line(error))
        form = InputForm(dict(PERMISSIVE_SCHEMA))
    if explicit is not None:
        return InputForm(dict(explicit), form.adapter, form.whole)
    return form


def read_output(hints: Hints, *, label: str, explicit: Mapping[str, Any] | None = None) -> ResultForm:
    """Reads the output of a function; the arguments are those of `read_input`.

    Raises:
        ConfigError: `explicit` is no JSON Schema, or a type needs a package that is not installed.
    """
    schema: dict[str, Any] | None = None
    adapter: TypeAdapter[Any] | None = None
    try:
        annotation = hints.get("return")
        if "return" in hints and not names_content(annotation):
            adapter = _adapter(annotation, hints)
            made = output_json_schema(adapter)
            # A description alone says nothing.
            schema = box_schema(made) if made.keys() - {"description", "$defs"} else None
    except ImportError as error:
        raise _missing_package(label, error) from None
    except Exception as error:  # noqa: BLE001 - a type's own hooks may raise anything
        adapter = None
        if explicit is None:
            logger.warning("%s has no output schema: %s", label, _first_line(error))
    if explicit is not None:
        schema = box_schema(_checked(explicit, label, "output_schema"))
    return ResultForm(schema, adapter, label)


def _input(function: Callable[..., Any], hints: Hints) -> InputForm:
    fields: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    for parameter in _parameters(function):
        annotation = hints.get(parameter.name)
        if isinstance(parameter.default, FieldInfo):
            # `limit: int = Field(10, ge=1)`: pydantic reads the rest, and fills the default in.
            annotation = Annotated[annotation, parameter.default]
        elif parameter.default is not parameter.empty:
            annotation = NotRequired[annotation]
            defaults[parameter.name] = parameter.default
        fields[parameter.name] = annotation
    named = f"{getattr(annotated_function(function), '__name__', 'tool')}_input"
    typed: Any = TypedDict(named, fields)  # pyright: ignore
    typed.__pydantic_config__ = ConfigDict(extra="forbid")
    adapter, schema = _adapted(typed, hints)
    return InputForm(_described(schema, defaults), adapter)


def _flat_input(function: Callable[..., Any], hints: Hints) -> InputForm:
    parameters = _parameters(function)
    if len(parameters) != 1:
        raise NoSchema(f"it has {len(parameters)} parameters, not one")
    [parameter] = parameters
    adapter, schema = _adapted(hints.get(parameter.name), hints)
    if schema.get("type") != "object" or "properties" not in schema:
        raise NoSchema(f"{parameter.name} is no class with fields")
    return InputForm(_described(schema, {}), adapter, whole=parameter.name)


def _described(schema: dict[str, Any], defaults: Mapping[str, Any]) -> dict[str, Any]:
    """Closes the schema of an input; every property gets a description, and its default where it has a JSON form."""
    for name, shown in schema.setdefault("properties", {}).items():
        shown.setdefault("description", f"Parameter {name}")
        if name in defaults:
            # A default without a JSON form is the function's own and stays in Python.
            with contextlib.suppress(Exception):
                default = to_jsonable_python(defaults[name])
                shown.setdefault("default", json.loads(json.dumps(default, allow_nan=False)))
    return {**schema, "additionalProperties": False}


def _parameters(function: Callable[..., Any]) -> list[inspect.Parameter]:
    try:
        signature = inspect.signature(function)
    except (ValueError, TypeError) as error:
        raise NoSchema(f"its signature cannot be read: {error}") from None
    for parameter in signature.parameters.values():
        if parameter.kind in _VARIADIC:
            raise NoSchema(f"{_VARIADIC[parameter.kind]}{parameter.name} has no place in a schema")
    return list(signature.parameters.values())


def _adapter(annotation: Any, hints: Hints) -> TypeAdapter[Any]:
    adapter: TypeAdapter[Any] = TypeAdapter(annotation)
    # Types of an enclosing function may name each other; pydantic looks for them in modules only.
    adapter.rebuild(_types_namespace=hints.names)
    return adapter


def _adapted(annotation: Any, hints: Hints) -> tuple[TypeAdapter[Any], dict[str, Any]]:
    try:
        adapter = _adapter(annotation, hints)
        return adapter, input_json_schema(adapter)
    except ImportError:
        raise
    except Exception as error:
        raise NoSchema(_first_line(error)) from error


def _missing_package(label: str, error: ImportError) -> ConfigError:
    return ConfigError(
        f"{label} has a type that needs a package that is not installed: {_first_line(error)}.",
        hint="Install it beside Cellblock, or name another type.",
    )


def _checked(schema: Mapping[str, Any], label: str, which: str) -> dict[str, Any]:
    try:
        made = copy.deepcopy(dict(schema))
        jsonschema_rs.meta.validate(made)
    except Exception as error:  # noqa: BLE001 - what cannot be copied is no schema either
        raise ConfigError(
            f"The {which} of {label} is no JSON Schema: {_first_line(error)}.", hint=f"Correct the {which}."
        ) from None
    return made


def _first_line(error: BaseException) -> str:
    """Gives the first sentence of pydantic's long explanations."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
