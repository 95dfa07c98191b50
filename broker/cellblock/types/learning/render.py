"""Shows shapes: as JSON Schema 2020-12; and what differs between two of them.

Objects are closed (`additionalProperties: false`): the schema says what was seen, so that a property that never was
there is an error in a script that is checked against it.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any, Final

from cellblock.types.learning.shape import NOTHING, Fields, Shape

MAX_CHANGES: Final = 20
"""Bounds the sentences about one change; a log line is read by people."""


_MAP_NAMES: Final = 4
"""Sets the number of names that an object has at least before they can count as data."""

_MANY_NAMES: Final = 32
"""Sets the number of names, none of them always there, that count as data whatever they look like."""

_DATA: Final = re.compile(r"[0-9a-fA-F]{8,}|\d+")


def to_schema(shape: Shape) -> dict[str, Any]:
    """Gives a JSON Schema that every value fits which the shape was made from.

    `NOTHING`, as inside arrays that were always empty, gives the schema of everything.
    """
    if shape.anything or shape == NOTHING:
        return {}
    members: list[dict[str, Any]] = []
    if shape.objects is not None:
        members.append(_fields(shape.objects))
    if shape.items is not None:
        inside = to_schema(shape.items)
        members.append({"type": "array", "items": inside} if inside else {"type": "array"})
    if shape.formats:
        members.append({"type": "string", "format": min(shape.formats)})
    plain = [kind for kind in _scalars(shape) if kind != "string" or not shape.formats]
    if plain:
        members.append({"type": plain if len(plain) > 1 else plain[0]})
    return members[0] if len(members) == 1 else {"anyOf": members}


def _fields(fields: Fields) -> dict[str, Any]:
    if fields.is_map or not fields.properties or _is_map_like(fields):
        inside = to_schema(fields.values())
        return {"type": "object", "additionalProperties": inside} if inside else {"type": "object"}
    schema: dict[str, Any] = {
        "type": "object",
        "properties": {name: to_schema(held.shape) for name, held in fields.properties.items()},
    }
    required = [name for name, held in fields.properties.items() if held.required]
    if required:
        schema["required"] = required
    schema["additionalProperties"] = False if fields.other == NOTHING else to_schema(fields.other)
    return schema


def _scalars(shape: Shape) -> list[str]:
    """Gives the kinds of values that have no others inside, by their names in JSON Schema."""
    string = "string" * (shape.formats is not None)
    return [*filter(None, [string, shape.number, "boolean" * shape.boolean, "null" * shape.null])]


def _is_map_like(fields: Fields) -> bool:
    """Says whether names are data, over values of one kind: numbered ones, or very many of which none is always
    there."""
    names = list(fields.properties)
    if len(names) < _MAP_NAMES:
        return False
    first, *others = (held.shape for held in fields.properties.values())
    if not all(_kind(first) == _kind(one) for one in others):
        return False
    always = {held.required for held in fields.properties.values()}
    # `x1, y1, x2, y2` are fields, `user_1, user_2, user_3, user_4` are data.
    stems = {_DATA.sub("0", name) for name in names}
    numbered = len(always) == 1 and "0" in "".join(stems) and len(stems) * _MAP_NAMES <= len(names)
    return numbered or (always == {False} and len(names) >= _MANY_NAMES)


def _kind(shape: Shape) -> tuple[object, ...]:
    """Gives what alike shapes have in common: their kinds of values, and the required names of objects."""
    inside = None if shape.objects is None else shape.objects.properties.items()
    names = None if inside is None else frozenset(name for name, held in inside if held.required)
    return (
        shape.anything,
        shape.boolean,
        bool(shape.number),
        shape.formats is None,
        shape.items is None,
        names,
    )


def changes(before: Shape, after: Shape) -> list[str]:
    """Gives one sentence for each place that differs, by its path; `[]` when the shapes are equal."""
    old, new = dict(_places("", before)), dict(_places("", after))
    found: list[str] = []
    gone = "?"
    for place in dict.fromkeys([*old, *new]):
        # What is inside of a place that is new or gone is not said again.
        if old.get(place) == new.get(place) or place.startswith(f"{gone}/"):
            continue
        if place in old and place in new:
            found.append(f"{place or '/'}: was {old[place]}, is {new[place]}")
        else:
            gone = place
            found.append(f"{place}: {'new' if place in new else 'gone'}")
    return found[:MAX_CHANGES]


def _places(path: str, shape: Shape, mark: str = "") -> Iterator[tuple[str, str]]:
    """Gives each place in a shape, and what is there."""
    formats = f" ({', '.join(sorted(shape.formats))})" if shape.formats else ""
    is_map = shape.objects is not None and shape.objects.is_map
    inside = "object" * (shape.objects is not None), "array" * (shape.items is not None)
    kinds = " or ".join(filter(None, ["anything" * shape.anything, *inside, *_scalars(shape)])) or "nothing"
    yield path, f"{mark}{kinds}{formats}{' with any names' * is_map}"
    if shape.items is not None:
        yield from _places(f"{path}/*", shape.items)
    if shape.objects is not None:
        for name, held in shape.objects.properties.items():
            yield from _places(f"{path}/{name}", held.shape, "" if held.required else "optional ")
        if shape.objects.other != NOTHING:
            yield from _places(f"{path}/(other names)", shape.objects.other)
