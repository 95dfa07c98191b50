"""Loads Python tools by module path, as the configuration names them: `my_team.tools`, `my_team.more:issues`."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final, cast

from cellblock.base.errors import ConfigError
from cellblock.base.redaction import describe_exception
from cellblock.base.suggest import did_you_mean, nearest_names
from cellblock.tools.python.tool_mark import mark_of

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
            raise ConfigError(
                f"{place}: {name} has no {inner!r}.", hint=_nearest(value, part, name)
            ) from None
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


def _nearest(owner: object, part: str, module: str) -> str:
    near = nearest_names(part, [name for name in dir(owner) if not name.startswith("__")], 1)
    return did_you_mean(near, f"Name something that {module} defines.")
