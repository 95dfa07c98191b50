"""Collects what is wrong with a configuration: every problem with its place, and what was probably meant."""

from __future__ import annotations

import json
import types
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

from pydantic import BaseModel, ValidationError
from typing_extensions import TypeIs

from cellblock.base.errors import ConfigError
from cellblock.base.settings.syntax import Path, Position, Positions, find_positions

SECTION_KEY: Final = "cellblock"
"""Names Cellblock's own part of a configuration."""

Severity = Literal["error", "warning"]

NEAR: Final = 0.6
"""Sets the least similarity of what is suggested, on difflib's scale of 0 to 1."""

_VALUE_ERROR: Final = "Value error, "


_NEEDED: Final = {
    "string_type": ("a text is needed", "Put the value of {} in quotes."),
    "list_type": ("a list is needed", "Put {} in brackets: [...]."),
    **dict.fromkeys(["dict_type", "mapping_type"], ("an object is needed", "Put {} in braces.")),
    **dict.fromkeys(
        ["model_type", "model_attributes_type"],
        ("an object is needed", "Put {} in braces."),
    ),
}
"""Words what pydantic says of the kind of a value for people who do not write Python."""


@dataclass(frozen=True, slots=True)
class Problem:
    """A problem is one thing that is wrong.

    `path` is where, as keys and indexes; `at_key` says that it is the key itself. `message` has no full stop, and no
    value of the file, which may be a secret.
    """

    path: Path
    message: str
    hint: str
    severity: Severity = "error"
    at_key: bool = False
    position: Position | None = None

    @property
    def place(self) -> str:
        return dotted(self.path)

    def text(self, source: str) -> str:
        """Returns one line: `file:line:column: place: message.`"""
        where = f"{source}:{self.position.line}:{self.position.column}" if self.position else source
        place = f"{self.place}: " if self.path else ""
        return f"{where}: {place}{self.message}."

    def as_json(self) -> dict[str, Any]:
        line, column = self.position or (None, None)
        return {
            "severity": self.severity,
            "line": line,
            "column": column,
            "path": self.place,
            "message": self.message,
            "hint": self.hint,
        }


class ConfigProblems(ConfigError):
    """Tells that a configuration has at least one error; `problems` has all of them, in the order of the text."""

    def __init__(self, source: str, problems: Sequence[Problem]) -> None:
        self.source = source
        self.problems = tuple(problems)
        if len(problems) == 1:
            super().__init__(problems[0].text(source), hint=problems[0].hint)
        else:
            lines = [f"{source} has {len(problems)} problems."]
            lines += [f"  {problem.text(source)} {problem.hint}" for problem in problems]
            super().__init__(
                "\n".join(lines) + "\n", hint="Correct them; `cellblock config check` shows what is left."
            )


class Faults(ValueError):
    """Tells several faults that a validator of a whole model has found; `problems` has each with its place."""

    def __init__(self, problems: Sequence[Problem]) -> None:
        super().__init__("; ".join(f"{problem.place}: {problem.message}" for problem in problems))
        self.problems = tuple(problems)


@dataclass(slots=True)
class Source:
    """Tells where a configuration comes from; without a text, problems have no positions."""

    name: str
    text: str | None = None
    toml: bool = False
    _positions: Positions | None = None

    def positions(self) -> Positions | None:
        if self._positions is None and self.text is not None:
            self._positions = find_positions(self.text, toml=self.toml)
        return self._positions

    def placed(self, problems: Iterable[Problem]) -> list[Problem]:
        """Returns the problems with their positions, in the order of the text."""
        positions = self.positions()
        if positions is None:
            return list(problems)
        found = [
            replace(problem, position=problem.position or positions.find(problem.path, key=problem.at_key))
            for problem in problems
        ]
        return sorted(found, key=lambda problem: problem.position or Position(0, 0))


def dotted(path: Sequence[str | int]) -> str:
    """Returns a path as text; what a terminal would act on is escaped, and what nobody would see is quoted."""
    return ".".join(
        part if isinstance(part, str) and part.strip() and part.isprintable() else json.dumps(part)
        for part in path
    )


def of_validation(error: ValidationError, model: type[BaseModel]) -> list[Problem]:
    """Returns the problems that pydantic has found in data for a model."""
    found: list[Problem] = []
    for detail in error.errors(include_url=False, include_input=False):
        path = tuple(detail["loc"])
        kind, message = detail["type"], detail["msg"].removeprefix(_VALUE_ERROR)
        cause = detail.get("ctx", {}).get("error")
        if isinstance(cause, Faults):
            found += (replace(one, path=(*path, *one.path)) for one in cause.problems)
        elif kind == "extra_forbidden":
            known = keys_at(model, path[:-1])
            near = nearest(str(path[-1]), known)
            others = f"Keys here: {', '.join(known)}." if known else "Leave it out."
            found.append(
                Problem(path, "unknown key", f"Did you mean {near}?" if near else others, at_key=True)
            )
        elif kind == "missing":
            hint = f"Add {dotted(path[-1:])} to {dotted(path[:-1]) or 'the top level'}."
            found.append(Problem(path, "it is needed, and absent", hint))
        elif kind in _NEEDED:
            message, hint = _NEEDED[kind]
            found.append(Problem(path, message, hint.format(dotted(path) or "all of it")))
        else:
            message = message[0].lower() + message[1:] if message.startswith("Input ") else message
            where = dotted(path) or "the top level"
            found.append(Problem(path, message, f"Correct {where} in the configuration."))
    return found


def nearest(word: str, known: Iterable[str], least: float = NEAR) -> str | None:
    import difflib

    plain = {_plain(name): name for name in known}
    near = difflib.get_close_matches(_plain(word[:64]), plain, n=1, cutoff=least)
    return plain[near[0]] if near else None


def keys_at(model: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """Returns the keys that the object at a path may have; none where any may be."""
    here: list[Any] = [model]
    for part in path:
        here = [below for one in here for below in _below(one, part)]
    return [field.alias or name for one in here if _is_model(one) for name, field in one.model_fields.items()]


# ---- inside ------------------------------------------------------------------------------------------


def _plain(word: str) -> str:
    return word.lower().replace("-", "").replace("_", "")


def _below(annotation: Any, part: str | int) -> Iterator[Any]:
    if _is_model(annotation):
        for name, field in annotation.model_fields.items():
            if part in (name, field.alias):
                yield from _alternatives(field.annotation)
        return
    origin, arguments = get_origin(annotation), get_args(annotation)
    if origin in (dict, Mapping):
        yield from _alternatives(arguments[1])
    elif origin in (list, tuple, set, frozenset) and arguments:
        yield from _alternatives(arguments[0])


def _alternatives(annotation: Any) -> Iterator[Any]:
    origin = get_origin(annotation)
    if origin is Annotated:
        yield from _alternatives(get_args(annotation)[0])
    elif origin in (Union, types.UnionType):
        for one in get_args(annotation):
            yield from _alternatives(one)
    else:
        yield annotation


def _is_model(annotation: object) -> TypeIs[type[BaseModel]]:
    return isinstance(annotation, type) and issubclass(annotation, BaseModel)
