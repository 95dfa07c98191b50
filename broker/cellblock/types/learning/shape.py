"""Shapes say what JSON values look like: a lattice, from `NOTHING` (no value seen) to `ANYTHING`.

Every value that a shape was made from fits it, and all that it is joined into. What is not kept (a name, a depth, the
values past a budget) leaves it wider, never wrong. Only `refreshed` takes something away: what newer ones do not show.
No value is kept; only kinds, formats, and names of properties, each with who has shown it. That is no part of what a
shape says: equal ones may differ in it.
`join` is associative, commutative and idempotent, with `NOTHING` as its neutral element.

Shapes are stored as they are, under the short names that stand behind `rename`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import reduce
from itertools import chain
from typing import Annotated, Any, Final, Literal, TypeVar

from msgspec import Meta, Struct
from msgspec.structs import replace

MAX_DEPTH: Final = 24
"""Bounds the levels described; what is deeper is `ANYTHING`. The declaration generator goes to 32."""

MAX_NAMES: Final = 128
"""Bounds the property names kept for one kind of object; with more it is a map, and only its values are described."""

MAX_SHAPES: Final = 1_000
"""Bounds the shapes in one merged shape: about 40 KiB of declaration. Past it the deepest levels become `ANYTHING`."""

NAME: Final = re.compile(r"(?!__proto__\Z)[A-Za-z_$][A-Za-z0-9_$]{0,63}\Z")
"""Holds the property names that are kept, of at most 64 characters. A server chooses its names freely, and they are
shown to an agent: a name that is no identifier can be a sentence. `__proto__` is a key that JavaScript gives its own
meaning."""

Name = Annotated[str, Meta(pattern=rf"\A{NAME.pattern}")]
Number = Literal["", "integer", "number"]

MAX_VALUES: Final = 250_000
"""Bounds the values looked at in one sample: a result of several MiB. What is past it counts as `ANYTHING`."""

FORMATS: Final = {
    "date-time": re.compile(
        r"\d{4}-(?:0\d|1[0-2])-(?:[0-2]\d|3[01])[Tt](?:[01]\d|2[0-3]):[0-5]\d:[0-5]\d(?:\.\d{1,9})?"
        r"(?:[Zz]|[+-](?:[01]\d|2[0-3]):[0-5]\d)",
        re.ASCII,
    ),
    "date": re.compile(r"\d{4}-(?:0\d|1[0-2])-(?:[0-2]\d|3[01])", re.ASCII),
    "uuid": re.compile(r"[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}"),
    "email": re.compile(r"[A-Za-z0-9_.+-]{1,64}@[A-Za-z0-9-]{1,63}(?:\.[A-Za-z0-9-]{1,63}){1,8}"),
    "uri": re.compile(r"https?://[!#-;=?-\[\]_a-z~%]{1,2000}"),
}
"""Holds the formats that a string's text shows, by their names in JSON Schema; stated when all samples have one."""

_ENVIRONMENT: Final = frozenset({"PATH", "HOME", "USER", "SHELL", "LANG", "PWD"})
"""Holds names of variables, by which an environment is known: another machine's has others."""

_KNOWN: Final = frozenset({dict, list, str, int, float, bool, type(None)})


class Property(Struct, frozen=True, array_like=True):
    """Holds one key of objects; `required` when every object had it."""

    shape: Shape
    required: bool
    by: str = ""
    """Says who has shown the name, as `of_any` does: marks of principals, or `SEVERAL`."""

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Property) and (self.shape, self.required) == (other.shape, other.required)


_FIELDS: Final = {"properties": "p", "other": "x", "is_map": "m", "by": "b"}


class Fields(Struct, frozen=True, omit_defaults=True, rename=_FIELDS):
    """Holds what objects held: kept names, and under `other` all values whose names are not kept.

    `is_map`: the names were too many to be fields; all values are under `other`.
    """

    properties: Annotated[dict[Name, Property], Meta(max_length=MAX_NAMES)]
    other: Shape
    is_map: bool = False
    by: str = ""
    """Says whose all these objects were, as `of_all` does."""

    def __eq__(self, other: object) -> bool:
        said = self.properties, self.other, self.is_map
        return isinstance(other, Fields) and said == (other.properties, other.other, other.is_map)

    def values(self) -> Shape:
        """Gives the shape of all values, whatever their names."""
        return reduce(join, [held.shape for held in self.properties.values()], self.other)


_SHAPE: Final = {
    "anything": "a",
    "null": "z",
    "boolean": "b",
    "number": "n",
    "formats": "s",
    "items": "i",
    "objects": "o",
}


class Shape(Struct, frozen=True, omit_defaults=True, rename=_SHAPE):
    """Holds what values looked like. Equal shapes say the same; the order of names does not count.

    Attributes:
        anything: Nothing is known about some of the values: they can be anything.
        number: `"integer"` when all numbers were written without a fraction.
        formats: The formats that all strings have; None when there was no string.
        items: What the arrays held, `NOTHING` when all were empty; None when there was no array.
    """

    anything: bool = False
    null: bool = False
    boolean: bool = False
    number: Number = ""
    formats: frozenset[str] | None = None
    items: Shape | None = None
    objects: Fields | None = None

    def children(self) -> Iterator[Shape]:
        """Gives the shapes directly inside."""
        if self.items is not None:
            yield self.items
        if self.objects is not None:
            for one in self.objects.properties.values():
                yield one.shape
            yield self.objects.other


NOTHING: Final = Shape()
ANYTHING: Final = Shape(anything=True)

LOCAL: Final = "local"
"""Marks what the user of this machine has shown."""

SEVERAL: Final = "*"
"""Marks what `ENOUGH` principals have shown."""

ENOUGH: Final = 2
"""Counts the principals who must have shown a name before others are shown it. Of one it may be data: a key that is a
person's name. More than two would leave teams of two without types, and hide nothing from who has that many tokens."""


def of_any(one: str, other: str) -> str:
    """Says who has shown a name, of both that did: marks joined by `+`, nothing for who is not known."""
    if one == other or not other:
        return one
    marks = {*one.split("+"), *other.split("+")} - {""}
    return SEVERAL if SEVERAL in marks or len(marks) >= ENOUGH else "+".join(sorted(marks))


def of_all(one: str, other: str) -> str:
    """Says whose values those of two are together; those of nobody known are taken for the user's of this machine."""
    return one if one == other else LOCAL if {one, other} == {"", LOCAL} else SEVERAL


_T = TypeVar("_T")


def join(one: Shape, other: Shape) -> Shape:
    """Gives the least shape that is true of the values of both."""
    if one is other or other is NOTHING:
        return one
    if one is NOTHING:
        return other
    if one.anything or other.anything:
        return ANYTHING
    return Shape(
        null=one.null or other.null,
        boolean=one.boolean or other.boolean,
        # They are in the order of the alphabet.
        number=max(one.number, other.number),
        formats=_either(one.formats, other.formats, frozenset[str].intersection),
        items=_either(one.items, other.items, join),
        objects=_either(one.objects, other.objects, join_fields),
    )


def join_fields(one: Fields, other: Fields) -> Fields:
    """Joins the fields of two kinds of objects."""
    names = list(dict.fromkeys([*one.properties, *other.properties]))
    by = of_all(one.by, other.by)
    if one.is_map or other.is_map or len(names) > MAX_NAMES:
        return Fields({}, join(one.values(), other.values()), is_map=True, by=by)
    rest = join(one.other, other.other)
    return Fields(
        {name: _property(one.properties.get(name), other.properties.get(name)) for name in names}, rest, by=by
    )


def bounded(shape: Shape, maximum: int = MAX_SHAPES) -> Shape:
    """Gives the shape with its deepest levels cut off where there are more than `maximum` shapes in it.

    What is cut depends on the order of the samples, and is still true of all of them.
    """
    seen, depth, level = 0, 0, [shape]
    while level:
        seen += len(level)
        if seen > maximum:
            return _cut(shape, max(depth - 1, 0))
        level = [child for inside in level for child in inside.children()]
        depth += 1
    return shape


def _cut(shape: Shape, depth: int) -> Shape:
    if depth <= 0:
        return ANYTHING if shape.items is not None or shape.objects is not None else shape
    return _with_inside(shape, lambda one: _cut(one, depth - 1))


def _with_inside(shape: Shape, change: Callable[[Shape], Shape]) -> Shape:
    """Gives the shape with those directly inside changed."""
    objects = shape.objects
    if objects is not None:
        properties = {
            name: replace(held, shape=change(held.shape)) for name, held in objects.properties.items()
        }
        objects = replace(objects, properties=properties, other=change(objects.other))
    return replace(shape, items=None if shape.items is None else change(shape.items), objects=objects)


def _either(one: _T | None, other: _T | None, both: Callable[[_T, _T], _T | None]) -> _T | None:
    """Joins two shapes of which one may be missing."""
    if one is None or other is None:
        return other if one is None else one
    return both(one, other)


def _property(one: Property | None, other: Property | None) -> Property:
    if one is not None and other is not None:
        both = one.required and other.required
        return Property(join(one.shape, other.shape), both, of_any(one.by, other.by))
    held = one or other
    assert held is not None
    return replace(held, required=False)


def refreshed(old: Shape, recent: Shape) -> Shape:
    """Gives a shape without what newer results do not show: between both, true of all that `recent` was made from.

    What these are silent about stays: the inside of arrays that were empty, what is beside null, and maps. So does what
    costs a script little: null, and no format.

    Args:
        old: True of all results.
        recent: Of the newer ones among them.
    """
    if recent.anything or recent in (NOTHING, Shape(null=True)):
        return old
    if old.anything:
        return recent
    items = recent.items
    if items is not None and old.items is not None:
        items = refreshed(old.items, items)
    return Shape(
        null=old.null,
        boolean=recent.boolean,
        number=old.number if recent.number else "",
        formats=old.formats if recent.formats is not None else None,
        items=items,
        objects=_refreshed_fields(old.objects, recent.objects),
    )


def _refreshed_fields(old: Fields | None, recent: Fields | None) -> Fields | None:
    if old is None or recent is None:
        return recent
    if old.is_map or (not recent.properties and recent.other == NOTHING):
        return old
    newer = recent.properties
    # In the old order: a type does not look otherwise by which result a window began with.
    properties = {
        name: Property(refreshed(known.shape, newer[name].shape), newer[name].required, known.by)
        for name, known in old.properties.items()
        if name in newer
    }
    other = NOTHING if recent.other == NOTHING else refreshed(old.other, recent.other)
    return Fields(properties, other, by=old.by)


def shared(shape: Shape, own: Collection[str]) -> Shape:
    """Gives what may be shown of a shape: names that several principals have shown, and those of `own`. What is left
    out is true of all names."""
    shape = _with_inside(shape, lambda one: shared(one, own))
    if shape.objects is None:
        return shape
    shown, hidden = dict[str, Property](), dict[str, Property]()
    for name, held in shape.objects.properties.items():
        is_shown = held.by == SEVERAL or any(mark in own for mark in held.by.split("+"))
        (shown if is_shown else hidden)[name] = held
    rest = Fields(hidden, shape.objects.other).values()
    return replace(shape, objects=replace(shape.objects, properties=shown, other=rest))


def shape_of(values: Sequence[Any], *, by: str = "", max_values: int = MAX_VALUES) -> Shape:
    """Gives the shape of JSON values that were seen in one place; equal to the join of their shapes.

    Args:
        values: Plain JSON data as Python has it.
        by: Whose they are, as in `shape.Property`.
        max_values: Values looked at, containers included; past them the shape is `ANYTHING`.
    """
    return _Reader(max_values, by).column(values, 0)


class _Reader:
    def __init__(self, left: int, by: str) -> None:
        self._left = left
        self._by = by

    def column(self, values: Sequence[object], depth: int) -> Shape:
        """Gives the shape of all values of one place."""
        self._left -= len(values)
        kinds: dict[type, list[Any]] = {
            kind: [value for value in values if type(value) is kind] for kind in set(map(type, values))
        }
        lists, dicts, floats = kinds.get(list), kinds.get(dict), kinds.get(float, [])
        if self._left < 0 or not kinds.keys() <= _KNOWN or (depth >= MAX_DEPTH and (lists or dicts)):
            return ANYTHING
        # Scripts get null for what is no JSON number.
        finite = [number for number in floats if math.isfinite(number)]
        return Shape(
            null=type(None) in kinds or len(finite) < len(floats),
            boolean=bool in kinds,
            number="number" if finite else "integer" if int in kinds else "",
            formats=_formats(kinds[str]) if str in kinds else None,
            items=self.column(list(chain.from_iterable(lists)), depth + 1) if lists else None,
            objects=self._fields(dicts, depth) if dicts else None,
        )

    def _fields(self, rows: Sequence[dict[str, Any]], depth: int) -> Fields:
        names = dict.fromkeys(chain.from_iterable(rows))
        kept = dict.fromkeys(name for name in names if type(name) is str and NAME.match(name))
        if len(kept) > MAX_NAMES or (_ENVIRONMENT.intersection(kept) and all(map(str.isupper, kept))):
            everything = list(chain.from_iterable(row.values() for row in rows))
            return Fields({}, self.column(everything, depth + 1), is_map=True, by=self._by)
        others = [value for row in rows for name, value in row.items() if name not in kept]
        other = self.column(others, depth + 1)
        properties: dict[str, Property] = {}
        for name in kept:
            column = [row[name] for row in rows if name in row]
            properties[name] = Property(self.column(column, depth + 1), len(column) == len(rows), self._by)
        return Fields(properties, other, by=self._by)


def _formats(strings: Sequence[str]) -> frozenset[str]:
    return frozenset(name for name, pattern in FORMATS.items() if all(map(pattern.fullmatch, strings)))
