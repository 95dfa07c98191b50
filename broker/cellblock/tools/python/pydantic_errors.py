"""Turns pydantic's error into a violation in a schema's own terms (Code Mode specification, section 7.2).

A Python tool's input is read by pydantic after it has passed its JSON Schema, which says of a date or a UUID no more
than its format.
"""

from __future__ import annotations

from typing import Any, Final

from pydantic import ValidationError

from cellblock.base.errors import shorten
from cellblock.base.json import inside, is_array, is_object, pointer_of
from cellblock.tools.schemas import describe
from cellblock.tools.schemas.explain import MAX_POINTER_CHARS, Violation

_OWN_CHECKS: Final = frozenset({"value_error", "assertion_error"})
_SHOULD_BE: Final = "Input should be "
_KEY: Final = "[key]"
_MAX_PARTS: Final = 200


def pydantic_violation(error: ValidationError, schema: Any, value: object) -> Violation:
    """Says what is wrong with a value, as pydantic's first error says.

    Args:
        error: Of reading the value.
        schema: The JSON Schema of what was read.
        value: Plain JSON data, as it was given.
    """
    first = error.errors(include_url=False, include_context=False)[0]
    kind, said = first["type"], first["msg"]
    location = first["loc"]
    of_key = bool(location) and location[-1] == _KEY
    path, here = _placed(location[:-1] if of_key else location, value, missing=kind == "missing")
    part = _schema_at(schema, path[:-1] if of_key else path, schema)
    if of_key:
        part = {"type": "string", **_as_dict(part.get("propertyNames"))}
        here = str(path[-1]) if path else ""
    keyword = "propertyNames" if of_key else "required" if kind == "missing" else kind
    expected = describe.expected_of(part)
    if kind in _OWN_CHECKS:
        expected = f"{expected} ({said.partition(', ')[2] or said})"
    elif kind == "int_parsing_size":
        expected = "integer of fewer digits"
    elif "format" not in expected and said.startswith(_SHOULD_BE):
        expected = said.removeprefix(_SHOULD_BE).partition(", ")[0]
    pointer = shorten(pointer_of(path), MAX_POINTER_CHARS)
    return Violation(
        pointer,
        said,
        shorten(expected, describe.MAX_CHARS),
        "nothing" if kind == "missing" else describe.received(here),
        keyword,
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


def _schema_at(schema: Any, path: list[str | int], root: Any) -> dict[str, Any]:
    """Gives the part of a schema that a value at a path is held against: the first, where there are alternatives; `{}`
    where there is none."""
    parts = [_as_dict(schema)]
    for step in path:
        inner = [one for part in parts for one in _parts(part, root)][:_MAX_PARTS]
        parts = [_as_dict(below) for one in inner if (below := _below(one, step)) is not None]
    return _resolved(parts[0], root) if parts else {}


def _parts(schema: Any, root: Any) -> list[dict[str, Any]]:
    """Gives a schema and all its alternatives, references followed."""
    found = [_resolved(_as_dict(schema), root)]
    for part in found:
        if len(found) > _MAX_PARTS:
            break
        for keyword in ("anyOf", "oneOf", "allOf"):
            if is_array(branches := part.get(keyword)):
                found += [_resolved(_as_dict(branch), root) for branch in branches]
    return found


def _below(part: dict[str, Any], step: str | int) -> Any:
    if isinstance(step, int):
        first = part.get("prefixItems")
        return first[step] if is_array(first) and step < len(first) else part.get("items")
    properties = _as_dict(part.get("properties"))
    return properties[step] if step in properties else part.get("additionalProperties")


def _resolved(part: dict[str, Any], root: Any) -> dict[str, Any]:
    """Gives what a local reference of pydantic's (`#/$defs/NAME`) stands for."""
    reference = part.get("$ref")
    if isinstance(reference, str) and reference.startswith("#/$defs/"):
        return _as_dict(_as_dict(_as_dict(root).get("$defs")).get(reference.removeprefix("#/$defs/")))
    return part


def _as_dict(value: Any) -> dict[str, Any]:
    return value if is_object(value) else {}
