"""Turns a Python signature into JSON Schemas: what a tool takes and what it gives (Schema Inference specification).

Everything here happens once, when a tool is registered.
"""

from __future__ import annotations

import contextlib
import copy
import inspect
import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final, NotRequired

import jsonschema_rs
from pydantic import ConfigDict, TypeAdapter
from pydantic.fields import FieldInfo
from pydantic_core import to_jsonable_python
from typing_extensions import TypedDict  # pydantic refuses typing's own before Python 3.12

from cellblock.base.errors import ConfigError
from cellblock.tools.python.annotations import Hints, Unresolved, annotated_function, names_content
from cellblock.tools.python.pydantic_schema import input_json_schema, output_json_schema
from cellblock.tools.python.tool_results import ResultForm
from cellblock.tools.schemas.boxing import box_schema, describes_object

logger = logging.getLogger("cellblock.schemas")

PERMISSIVE_SCHEMA: Final[dict[str, Any]] = {"type": "object", "additionalProperties": True}
"""Holds the input schema of a function whose signature says nothing that JSON Schema can."""

_VARIADIC: Final = {
    inspect.Parameter.VAR_POSITIONAL: "*",
    inspect.Parameter.VAR_KEYWORD: "**",
    inspect.Parameter.POSITIONAL_ONLY: "positional-only ",
}


class NoSchema(Exception):
    """Tells that a signature, or a part of it, cannot be put into JSON Schema; the text says why."""


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
    except (NoSchema, Unresolved) as error:
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
            schema = box_schema(made) if _says_something(made) else None
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


def _says_something(schema: dict[str, Any]) -> bool:
    """Says whether a schema says more than a description."""
    return any(key not in ("description", "$defs") for key in schema)


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
