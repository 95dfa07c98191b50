"""Python functions as tools: `@tool()` on plain functions, async or not, called in this process."""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import (
    Any,
    Final,
    NotRequired,  # pydantic refuses typing's own before Python 3.12
    TypeVar,
    cast,
    get_type_hints,
    overload,
)

from pydantic import (
    ConfigDict,
    PydanticSchemaGenerationError,
    PydanticUserError,
    TypeAdapter,
    ValidationError,
)
from typing_extensions import TypedDict

from cellblock.errors import Certainty, SchemaValidationError, ToolCallError

logger = logging.getLogger("cellblock.upstream")

F = TypeVar("F", bound=Callable[..., Any])

MARK: Final = "__cellblock_tool__"

PERMISSIVE_SCHEMA: Final[dict[str, Any]] = {"type": "object", "additionalProperties": True}
"""Input schema of a function whose signature says nothing that JSON Schema can."""


@dataclass(frozen=True, slots=True)
class PythonTool:
    """One registered function. `validate` turns the script's input into keyword arguments."""

    name: str
    description: str | None
    function: Callable[..., Any]
    input_schema: dict[str, Any]
    output_schema: dict[str, Any] | None
    validate: Callable[[dict[str, Any]], dict[str, Any]]
    returns: TypeAdapter[Any] | None


@overload
def tool(function: F, /) -> F: ...
@overload
def tool(*, name: str | None = None, description: str | None = None) -> Callable[[F], F]: ...
def tool(
    function: F | None = None, /, *, name: str | None = None, description: str | None = None
) -> F | Callable[[F], F]:
    """Marks a function as a tool that scripts can call.

    The input schema comes from the signature, the output schema from the return annotation. The function stays
    usable as it is. Functions that are not async run in a thread, so a slow one does not stall the broker.

    Args:
        name: Tool name; the function's own when absent.
        description: For agents; the docstring when absent.

    Example:
        >>> @tool()
        ... def add(a: int, b: int) -> int:
        ...     "Adds two numbers."
        ...     return a + b
    """

    def mark(target: F) -> F:
        setattr(target, MARK, (name, description))
        return target

    return mark if function is None else mark(function)


def read_tool(function: Callable[..., Any]) -> PythonTool:
    """Makes the tool of a function; schemas are made here, once."""
    name, description = cast("tuple[str | None, str | None]", getattr(function, MARK, (None, None)))
    hints = _hints(function)
    adapter = _input_adapter(function, hints)
    returns = _output_adapter(hints)
    return PythonTool(
        name=name or function.__name__,
        description=description or inspect.getdoc(function),
        function=function,
        input_schema=_pruned(adapter.json_schema()) if adapter else dict(PERMISSIVE_SCHEMA),
        output_schema=_output_schema(returns),
        validate=functools.partial(_validated, adapter) if adapter else dict,
        returns=returns,
    )


async def call_tool(python_tool: PythonTool, arguments: dict[str, Any]) -> Any:
    """Calls the function and gives its value as plain JSON data.

    Raises:
        SchemaValidationError: The input does not fit the signature; the function was not called.
        ToolCallError: The function raised, or its value is no JSON. The text of the exception is shown to the
            script: it comes from the embedder's own code.
    """
    keywords = python_tool.validate(arguments)
    function = python_tool.function
    try:
        if inspect.iscoroutinefunction(function):
            value = await function(**keywords)
        else:
            value, raised = await asyncio.to_thread(_outcome, function, keywords)
            if raised is not None:
                raise raised
    except (ToolCallError, SchemaValidationError):
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - whatever a user's function raises becomes the script's exception
        raise ToolCallError(
            f"{python_tool.name} raised {type(error).__name__}: {error}",
            hint="Correct the input as the message says, or report it to the tool's authors.",
            certainty=Certainty.MAY_HAVE_RUN,
        ) from None
    try:
        return (python_tool.returns or _ANY).dump_python(value, mode="json")
    except Exception as error:  # noqa: BLE001 - pydantic raises several kinds for a value it cannot dump
        raise ToolCallError(
            f"{python_tool.name} returned a {type(value).__name__}, which has no JSON form: {error}",
            hint="Report this to the tool's authors.",
            certainty=Certainty.COMPLETED,
        ) from None


def _outcome(function: Callable[..., Any], keywords: dict[str, Any]) -> tuple[Any, BaseException | None]:
    """Calls in a thread. A future can carry no StopIteration: what is raised comes back as a value."""
    try:
        return function(**keywords), None
    except BaseException as error:  # noqa: BLE001 - raised again where the result is awaited
        return None, error


_ANY: Final[TypeAdapter[Any]] = TypeAdapter(Any)


def _hints(function: Callable[..., Any]) -> dict[str, Any]:
    try:
        return get_type_hints(function, include_extras=True)
    except (NameError, TypeError):
        return dict(getattr(function, "__annotations__", {}))


def _input_adapter(function: Callable[..., Any], hints: dict[str, Any]) -> TypeAdapter[Any] | None:
    fields: dict[str, Any] = {}
    defaults: dict[str, Any] = {}
    for parameter in inspect.signature(function).parameters.values():
        if parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD, parameter.POSITIONAL_ONLY):
            logger.warning("%s: *args, **kwargs and positional-only have no schema", function.__name__)
            return None
        annotation = hints.get(parameter.name, Any)
        if parameter.default is not parameter.empty:
            defaults[parameter.name] = parameter.default
            annotation = NotRequired[annotation]
        fields[parameter.name] = annotation
    typed = TypedDict(f"{function.__name__}_input", fields)  # pyright: ignore[reportArgumentType, reportGeneralTypeIssues, reportUnknownVariableType]
    typed.__pydantic_config__ = ConfigDict(extra="forbid")  # pyright: ignore[reportAttributeAccessIssue]
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(typed)
        adapter.json_schema()
    except (PydanticSchemaGenerationError, PydanticUserError) as error:
        logger.warning("%s: its parameters have no schema: %s", function.__name__, error)
        return None
    return adapter


def _output_adapter(hints: dict[str, Any]) -> TypeAdapter[Any] | None:
    if "return" not in hints:
        return None
    try:
        adapter: TypeAdapter[Any] = TypeAdapter(hints["return"])
        adapter.json_schema(mode="serialization")
    except (PydanticSchemaGenerationError, PydanticUserError):
        return None
    return adapter


def _output_schema(returns: TypeAdapter[Any] | None) -> dict[str, Any] | None:
    return None if returns is None else _pruned(returns.json_schema(mode="serialization"))


def _pruned(schema: Any) -> Any:
    """Without the `title`s that pydantic adds to every node; a property called `title` stays."""
    if isinstance(schema, list):
        return [_pruned(item) for item in cast("list[Any]", schema)]
    if not isinstance(schema, dict):
        return schema
    pruned: dict[str, Any] = {}
    for key, value in cast("dict[str, Any]", schema).items():
        if key == "title" and isinstance(value, str):
            continue
        if key in ("properties", "$defs") and isinstance(value, dict):
            pruned[key] = {name: _pruned(sub) for name, sub in cast("dict[str, Any]", value).items()}
        elif key in ("default", "const", "enum", "examples"):
            pruned[key] = value
        else:
            pruned[key] = _pruned(value)
    return pruned


def _validated(adapter: TypeAdapter[Any], arguments: dict[str, Any]) -> dict[str, Any]:
    try:
        return adapter.validate_python(arguments)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        pointer = _pointer(first["loc"], arguments, missing=first["type"] == "missing")
        raise SchemaValidationError(
            f"The input does not fit at {pointer or 'its root'}: {first['msg']}.",
            hint="Correct that property.",
            path=pointer,
            expected=first["type"],
            received=type(first["input"]).__name__,
        ) from None


def _pointer(location: tuple[int | str, ...], arguments: object, *, missing: bool) -> str:
    """The JSON Pointer of a pydantic location, without the names of union members that pydantic puts into it."""
    pointer = ""
    value: Any = arguments
    for index, part in enumerate(location):
        try:
            value, known = value[part], isinstance(value, dict | list)
        except (LookupError, TypeError):
            known = False
        if known or (missing and index == len(location) - 1):
            pointer += "/" + str(part).replace("~", "~0").replace("/", "~1")
    return pointer
