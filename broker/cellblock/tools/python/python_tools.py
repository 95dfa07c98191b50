"""A Python tool is a function with what is known about one from its registration on, and how its input is read; module
paths name them."""

from __future__ import annotations

import importlib
import inspect
import traceback
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, cast

from pydantic import TypeAdapter, ValidationError
from pydantic_core import to_json

from cellblock.base.errors import ConfigError, SchemaValidationError, shorten
from cellblock.base.json import inside, pointer_of
from cellblock.base.redaction import describe_exception
from cellblock.base.suggest import did_you_mean, nearest_names
from cellblock.tools.catalog.model import ToolEntry
from cellblock.tools.python.signatures import Hints, InputForm, annotated_function, read_input, read_output
from cellblock.tools.python.tool_mark import ToolMark, mark_of
from cellblock.tools.python.tool_results import ResultForm
from cellblock.tools.schemas.example import CheckedSchema
from cellblock.tools.schemas.violations import (
    MAX_CHARS,
    MAX_POINTER_CHARS,
    Violation,
    corrective_hint,
    received,
)

_OWN_CHECKS: Final = frozenset({"value_error", "assertion_error"})
_SHOULD_BE: Final = "Input should be "
_EXPECTED: Final = {"missing": "a value", "int_parsing_size": "integer of fewer digits"}
_KEY: Final = "[key]"


@dataclass(frozen=True, slots=True)
class PythonTool:
    """A Python tool is one registered function.

    Attributes:
        name: Its canonical name.
        description: For agents.
        annotations: MCP's tool annotations.
        function: What is called.
        is_async: Whether it is called on the event loop; a thread calls it otherwise.
        input: How its input is described and read.
        result: How its value is described, checked and made plain.
        checked: The schema of its input with an example, which is made when it is first wanted.
    """

    name: str
    description: str | None
    annotations: Mapping[str, Any] | None
    function: Callable[..., Any]
    is_async: bool
    input: InputForm
    result: ResultForm
    checked: CheckedSchema

    def as_entry(self, export: str) -> ToolEntry:
        """Returns the tool under a name in its server's module."""
        return ToolEntry(
            self.name, export, self.description, self.annotations, self.input.schema, self.result.schema
        )

    def called(self, arguments: dict[str, Any]) -> Any:
        """Makes the call that an input stands for, and gives what the function gives.

        Raises:
            SchemaValidationError: The input does not fit the signature.
        """
        adapter = self.input.adapter
        if adapter is None:
            return self._raw(arguments)
        try:
            value = _read(adapter, arguments)
        except ValidationError as error:
            raise self._refused(error, adapter, arguments) from None
        if self.input.whole is not None:
            value = {self.input.whole: value}
        return self.function(**value)

    def _refused(
        self, error: ValidationError, adapter: TypeAdapter[Any], arguments: object
    ) -> SchemaValidationError:
        violation = pydantic_violation(error, arguments)
        example = self.checked.example
        details = {} if example is None or not _fits(adapter, example) else {"example": example}
        return SchemaValidationError(
            f"The input does not fit at {violation.path or 'its root'}: {violation.message}.",
            hint=corrective_hint(violation),
            path=violation.path,
            expected=violation.expected,
            received=violation.received,
            **details,
        )

    def _raw(self, arguments: dict[str, Any]) -> Any:
        """Makes the call for a signature without a schema: positional-only parameters are given by name all the
        same."""
        function, keywords = self.function, dict(arguments)
        try:
            signature = inspect.signature(function)
        except (ValueError, TypeError):
            signature = None
        if signature is None:
            return function(**keywords)
        positional = [
            keywords.pop(parameter.name)
            for parameter in signature.parameters.values()
            if parameter.kind is parameter.POSITIONAL_ONLY and parameter.name in keywords
        ]
        try:
            signature.bind(*positional, **keywords)
        except TypeError as error:
            raise SchemaValidationError(
                f"The input does not fit {self.name}: {error}.",
                hint=f"Pass the parameters of {self.name}{signature}.",
                path="",
                expected=f"{self.name}{signature}",
                received="object",
            ) from None
        return function(*positional, **keywords)


def read_tool(function: Callable[..., Any]) -> PythonTool:
    """Makes the tool of a function; its schemas are made here, once.

    Raises:
        ConfigError: The function cannot be a tool, or what `@tool()` was given does not fit it.
    """
    if not callable(function):
        raise ConfigError(
            f"{function!r} cannot be a tool: it is no function.",
            hint="Register functions, not their results.",
        )
    own = annotated_function(function)
    mark = mark_of(function) or ToolMark()
    name = mark.name or (type(function) if own.__name__ == "__call__" else own).__name__
    if inspect.isasyncgenfunction(own) or inspect.isgeneratorfunction(own):
        raise ConfigError(
            f"{name} cannot be a tool: it is a generator, and a tool gives one value.",
            hint="Return a list of what it yields.",
        )
    hints = Hints(function, mark.namespace)
    result = read_output(hints, label=name, explicit=mark.output_schema)
    form = read_input(function, hints, label=name, explicit=mark.input_schema, flatten=mark.flatten)
    return PythonTool(
        name=name,
        # An object with `__call__` is described by its class, when the method itself says nothing.
        description=mark.description
        or inspect.getdoc(own if own.__name__ != "__call__" or own.__doc__ else function),
        annotations=mark.annotations,
        function=function,
        is_async=inspect.iscoroutinefunction(function) or inspect.iscoroutinefunction(own),
        input=form,
        result=result,
        checked=CheckedSchema(form.schema, name),
    )


def _read(adapter: TypeAdapter[Any], arguments: object) -> Any:
    # As JSON: in a strict model a text may then still be a date, and a list a tuple.
    return adapter.validate_json(to_json(arguments))


def _fits(adapter: TypeAdapter[Any], example: object) -> bool:
    """Says whether an example that fits the schema also fits the type, which may have checks of its own."""
    try:
        _read(adapter, example)
    except Exception:  # noqa: BLE001 - such a check may raise anything, and this is only about an example
        return False
    return True


def pydantic_violation(error: ValidationError, value: object) -> Violation:
    """Says what is wrong with a value, as pydantic's first error says: the schema has no more to say, for its own
    violations are told before.

    Args:
        error: Of reading the value.
        value: Plain JSON data, as it was given.
    """
    first = error.errors(include_url=False, include_context=False)[0]
    kind, said = first["type"], first["msg"]
    location = first["loc"]
    of_key = bool(location) and location[-1] == _KEY
    path, here = _placed(location[:-1] if of_key else location, value, missing=kind == "missing")
    if of_key:
        here = str(path[-1]) if path else ""
    expected = _EXPECTED.get(kind) or said.removeprefix(_SHOULD_BE).partition(", ")[0]
    if kind in _OWN_CHECKS:
        expected = f"what its own check takes ({said.partition(', ')[2] or said})"
    return Violation(
        shorten(pointer_of(path), MAX_POINTER_CHARS),
        said,
        shorten(expected, MAX_CHARS),
        "nothing" if kind == "missing" else received(here),
        "propertyNames" if of_key else "required" if kind == "missing" else kind,
    )


def _placed(location: tuple[int | str, ...], value: object, *, missing: bool) -> tuple[list[str | int], Any]:
    """Gives the path of a pydantic location, without the names of union members that pydantic puts into it, and what is
    there."""
    path: list[str | int] = []
    here: Any = value
    for index, part in enumerate(location):
        try:
            here = inside(here, part)
        except LookupError:
            if not missing or index < len(location) - 1:
                continue
        path.append(part)
    return path, here


Function = Callable[..., Any]

_SETTING: Final = "cellblock.tools"


def load_tools(paths: Sequence[str], given: Sequence[Function] = ()) -> list[Function]:
    """Gives the functions that the paths name, after those that were given; each once.

    A path is a module, which stands for its `@tool()` functions, or `module:name`, which stands for what has that
    name in it: a function, marked or not, a method of an object (`module:thing.method`), or a list of functions.

    Raises:
        ConfigError: A module cannot be imported, or there is no tool where a path points; the message names the
            place in the configuration.
    """
    found = list(given)
    for index, path in enumerate(paths):
        place = f"{_SETTING}[{index}]"
        for function in _at(path, place):
            if function not in found:
                found.append(function)
    return found


def _at(path: str, place: str) -> list[Function]:
    name, colon, inner = path.partition(":")
    module = _imported(name, place)
    if not colon:
        marked = [
            value
            for value in cast("dict[str, Any]", vars(module)).values()
            if callable(value) and mark_of(value) is not None
        ]
        if not marked:
            raise ConfigError(
                f"{place}: {name} has no @tool() function.",
                hint=f"Mark its functions with @tool(), or name one: {name}:function.",
            )
        return marked
    value: Any = module
    for part in inner.split("."):
        try:
            value = getattr(value, part)
        except AttributeError:
            near = nearest_names(part, [one for one in dir(value) if not one.startswith("__")], 1)
            hint = did_you_mean(near, f"Name something that {name} defines.")
            raise ConfigError(f"{place}: {name} has no {inner!r}.", hint=hint) from None
    if callable(value):
        return [value]
    if isinstance(value, Iterable) and not isinstance(value, str | bytes):
        functions = list(cast("Iterable[Any]", value))
        if functions and all(callable(function) for function in functions):
            return functions
    raise ConfigError(
        f"{place}: {path} is neither a function nor a list of functions.", hint="Name a function."
    )


def _imported(name: str, place: str) -> Any:
    if not name or name.startswith(".") or not all(part.isidentifier() for part in name.split(".")):
        raise ConfigError(
            f"{place}: {name!r} is no module path.", hint="Write it as in an import: package.module."
        )
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        missing = error.name or name
        if name == missing or name.startswith(f"{missing}."):
            raise ConfigError(
                f"{place}: there is no module {missing}.",
                hint="Install it into Cellblock's environment, put its folder on PYTHONPATH, or correct its name.",
            ) from None
        raise _broken(name, place, error) from None
    except (KeyboardInterrupt, GeneratorExit):
        raise
    except BaseException as error:  # noqa: BLE001 - a module may raise anything, sys.exit() too, when it is imported
        raise _broken(name, place, error) from None


def _broken(name: str, place: str, error: BaseException) -> ConfigError:
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "importlib" not in frame.filename and frame.filename != __file__]
    where = f" at {own[-1].filename}:{own[-1].lineno}" if own else ""
    if isinstance(error, SyntaxError) and error.filename:
        where = f" at {error.filename}:{error.lineno}"
    return ConfigError(
        f"{place}: importing {name} raised {describe_exception(error)}{where}.",
        hint=f"Make `python -c 'import {name}'` work in Cellblock's environment.",
    )
