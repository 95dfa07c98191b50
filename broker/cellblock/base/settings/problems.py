"""Collects what is wrong with a configuration: every problem with its place, and what was probably meant."""

from __future__ import annotations

import functools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, Literal

from pydantic import BaseModel, ValidationError

from cellblock.base.errors import ConfigError
from cellblock.base.json import is_array, is_object
from cellblock.base.settings.syntax import Path, Position, Positions, find_positions

SECTION_KEY: Final = "cellblock"
"""Names Cellblock's own part of a configuration."""

Severity = Literal["error", "warning"]

NEAR: Final = 0.6
"""Sets the least similarity of what is suggested, on difflib's scale of 0 to 1."""

_VALUE_ERROR: Final = "Value error, "

_MISMATCH: Final = "string_pattern_mismatch"
_KEY: Final = "[key]"
"""Ends a place of pydantic's that is the key itself."""

_HINTS: Final = {
    "string_type": "Put the value of {} in quotes.",
    "list_type": "Put {} in brackets: [...].",
    **dict.fromkeys(
        ["dict_type", "mapping_type", "model_type", "model_attributes_type"], "Put {} in braces."
    ),
}
"""Says how a value becomes one of the kind that is needed, by pydantic's name of the mistake."""

_KINDS: Final = {
    "string": ("a text", "texts"),
    "path": ("a path", "paths"),
    "integer": ("a whole number", "whole numbers"),
    "number": ("a number", "numbers"),
    "boolean": ("true", "false"),
    "array": ("a list", "lists"),
    "object": ("an object", "objects"),
}
"""Names kinds of JSON values for people: one, and several."""


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


def of_validation(error: ValidationError, model: type[BaseModel], data: object) -> list[Problem]:
    """Returns the problems that pydantic has found in data for a model, one for each place: of a value that fits none
    of several kinds pydantic tells each."""
    found: dict[tuple[Path, bool], list[tuple[str, str]]] = {}
    problems: list[Problem] = []
    for detail in error.errors(include_url=False, include_input=False):
        kind, loc = detail["type"], detail["loc"]
        path = _place(data, loc)
        cause = detail.get("ctx", {}).get("error")
        if isinstance(cause, Faults):
            problems += (replace(one, path=(*path, *one.path)) for one in cause.problems)
        elif kind == "extra_forbidden":
            known = keys_at(model, path[:-1])
            near = nearest(str(path[-1]), known)
            others = f"Keys here: {', '.join(known)}." if known else "Leave it out."
            hint = f"Did you mean {near}?" if near else others
            problems.append(Problem(path, "unknown key", hint, at_key=True))
        elif kind == "missing" and isinstance(loc[-1], str):
            hint = f"Add {dotted(loc[-1:])} to {dotted(path) or 'the top level'}."
            problems.append(Problem((*path, loc[-1]), "it is needed, and absent", hint))
        else:
            at_key, said = loc[-1:] == (_KEY,), detail["msg"]
            if kind == _MISMATCH:
                said = f"a text that matches {detail.get('ctx', {}).get('pattern')} is needed"
            found.setdefault((path, at_key), []).append((kind, said))
    deeper = [problem.path for problem in problems] + [path for path, _ in found]
    for (path, at_key), told in found.items():
        kind, said = told[0]
        fits_so_far = any(len(other) > len(path) and other[: len(path)] == path for other in deeper)
        if fits_so_far and kind != "value_error" and not at_key:
            continue  # what is wrong further in is told
        message = said.removeprefix(_VALUE_ERROR)
        if len(told) > 1 or kind != "value_error":
            schemas = _schemas_at(model, path, of_key=at_key)
            words = [*_words(schemas)]
            if words and (kind != _MISMATCH or "examples" in schemas[0]):
                message = f"{_listed(words, 'or')} is needed"
        where = dotted(path) or "all of it"
        hint = _HINTS.get(kind if len(told) == 1 else "", "Correct {} in the configuration.").format(where)
        problems.append(Problem(path, message, hint, at_key=at_key))
    return problems


def nearest(word: str, known: Iterable[str], least: float = NEAR) -> str | None:
    import difflib

    plain = {_plain(name): name for name in known}
    near = difflib.get_close_matches(_plain(word[:64]), plain, n=1, cutoff=least)
    return plain[near[0]] if near else None


def keys_at(model: type[BaseModel], path: Sequence[str | int]) -> list[str]:
    """Returns the keys that the object at a path may have; none where any may be."""
    return [key for schema in _schemas_at(model, path) for key in schema.get("properties", ())]


# ---- inside ------------------------------------------------------------------------------------------


def _plain(word: str) -> str:
    return word.lower().replace("-", "").replace("_", "")


def _place(data: object, loc: Path) -> Path:
    """Returns a place of pydantic's without what is not in the data: the kinds that were tried, and what a short form
    stands for."""
    path: Path = ()
    for part in loc:
        if is_object(data) and part in data:
            path, data = (*path, part), data[str(part)]
        elif is_array(data) and isinstance(part, int) and part < len(data):
            path, data = (*path, part), data[part]
    return path


_Schemas = list[dict[str, Any]]


@functools.cache
def _schema_of(model: type[BaseModel]) -> dict[str, Any]:
    return model.model_json_schema()


def _schemas_at(model: type[BaseModel], path: Sequence[str | int], *, of_key: bool = False) -> _Schemas:
    """Returns the schemas of which a value at a path, or its key, must fit one."""
    whole = _schema_of(model)

    def alternatives(schema: Any) -> Iterator[dict[str, Any]]:
        if not is_object(schema):
            return
        if "$ref" in schema:
            schema = whole["$defs"][schema["$ref"].rpartition("/")[2]]
        for one in schema.get("anyOf", ()):
            yield from alternatives(one)
        if "anyOf" not in schema:
            items = [*alternatives(schema.get("items"))]
            yield schema | ({"items": items} if items else {})

    def below(schema: dict[str, Any], part: str | int) -> Any:
        if isinstance(part, int):
            return {"anyOf": schema.get("prefixItems", [])[part : part + 1] or schema.get("items", [])}
        by_pattern = next(iter(schema.get("patternProperties", {}).values()), None)
        return schema.get("properties", {}).get(part, schema.get("additionalProperties") or by_pattern)

    here = [*alternatives(whole)]
    for number, part in enumerate(path, 1):
        if of_key and number == len(path):
            return [schema["propertyNames"] for schema in here if "propertyNames" in schema]
        here = [one for schema in here for one in alternatives(below(schema, part))]
    return here


def _words(schemas: _Schemas, form: int = 0) -> Iterator[str]:
    """Yields in words what fits the schemas."""
    for schema in schemas:
        kind = schema.get("type", "")
        if "prefixItems" in schema:
            yield f"[{', '.join(one.get('title', 'number').upper() for one in schema['prefixItems'])}]"
        elif values := schema.get("enum", [schema["const"]] if "const" in schema else []):
            yield from map(json.dumps, values)
        elif kind == "boolean":
            yield from _KINDS[kind]
        elif kind == "array" and "items" in schema:
            items = _listed([*_words(schema["items"], form=1)], "and")
            yield f"{_KINDS[kind][form]} of {_bounds(schema, 'Items', '{} ')}{items}"
        elif words := _KINDS.get(schema.get("format", ""), _KINDS.get(kind)):
            such = f" such as {_listed(schema['examples'], 'or')}" if "examples" in schema else ""
            yield f"{words[form]}{_bounds(schema, 'imum', ' ({})')}{such}"


def _bounds(schema: dict[str, Any], unit: str, frame: str) -> str:
    least, most = schema.get(f"min{unit}"), schema.get(f"max{unit}")
    if least is None and most is None:
        return ""
    return frame.format(
        f"at least {least:,}"
        if most is None
        else f"at most {most:,}"
        if least is None
        else f"{least:,} to {most:,}"
    )


def _listed(words: Sequence[str], last: str) -> str:
    return f" {last} ".join([*filter(None, [", ".join(words[:-1])]), *words[-1:]])
