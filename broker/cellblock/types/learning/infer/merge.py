"""Merges shapes: `join` is associative, commutative and idempotent, with `NOTHING` as its neutral element.

`bounded` keeps what is stored small; a shape that it had to cut depends on the order of the samples, and is still
true of all of them. `refreshed` takes away what newer results no longer show.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from cellblock.types.learning.infer.shape import (
    ANYTHING,
    MAX_NAMES,
    MAX_SHAPES,
    MAX_VARIANTS,
    NOTHING,
    Fields,
    Number,
    Objects,
    Property,
    Shape,
)

_T = TypeVar("_T")
_RANKS: dict[Number, int] = {"": 0, "integer": 1, "number": 2}


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
        number=one.number if _RANKS[one.number] >= _RANKS[other.number] else other.number,
        formats=_either(one.formats, other.formats, frozenset[str].intersection),
        items=_either(one.items, other.items, join),
        objects=_either(one.objects, other.objects, _objects),
    )


def join_fields(one: Fields, other: Fields) -> Fields:
    """Joins the fields of two kinds of objects."""
    names = list(dict.fromkeys([*one.properties, *other.properties]))
    rest = join(one.other, other.other)
    if one.is_map or other.is_map or len(names) > MAX_NAMES:
        for fields in (one, other):
            for held in fields.properties.values():
                rest = join(rest, held.shape)
        return Fields({}, rest, is_map=True)
    return Fields(
        {name: _property(one.properties.get(name), other.properties.get(name)) for name in names}, rest
    )


def collapsed(objects: Objects) -> Fields:
    """Gives the fields of all variants as those of one kind of object."""
    first, *others = objects.variants.values()
    for fields in others:
        first = join_fields(first, fields)
    return first


def bounded(shape: Shape, maximum: int = MAX_SHAPES) -> Shape:
    """Gives the shape with its deepest levels cut off where there are more than `maximum` shapes in it."""
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
    objects = shape.objects
    if objects is not None:
        objects = Objects(
            objects.tag,
            {
                value: Fields(
                    {
                        name: Property(_cut(held.shape, depth - 1), held.required)
                        for name, held in fields.properties.items()
                    },
                    _cut(fields.other, depth - 1),
                    fields.is_map,
                )
                for value, fields in objects.variants.items()
            },
        )
    items = None if shape.items is None else _cut(shape.items, depth - 1)
    return Shape(shape.anything, shape.null, shape.boolean, shape.number, shape.formats, items, objects)


def _either(one: _T | None, other: _T | None, both: Callable[[_T, _T], _T | None]) -> _T | None:
    """Joins two shapes of which one may be missing."""
    if one is None or other is None:
        return other if one is None else one
    return both(one, other)


def _property(one: Property | None, other: Property | None) -> Property:
    if one is not None and other is not None:
        return Property(join(one.shape, other.shape), one.required and other.required)
    held = one or other
    assert held is not None
    return Property(held.shape, False)


def _objects(one: Objects, other: Objects) -> Objects:
    if one.tag == other.tag:
        variants = dict(one.variants)
        for value, fields in other.variants.items():
            held = variants.get(value)
            variants[value] = fields if held is None else join_fields(held, fields)
        if len(variants) <= MAX_VARIANTS:
            return Objects(one.tag, variants)
        return Objects(None, {"": collapsed(Objects(one.tag, variants))})
    return Objects(None, {"": join_fields(collapsed(one), collapsed(other))})


def refreshed(old: Shape, recent: Shape) -> Shape:
    """Gives a shape without what newer results do not show: between both, true of all that `recent` was made from.

    What these are silent about stays: the inside of arrays that were empty, what is beside null, maps, and the members
    of a union that a tag tells apart. So does what costs a script little: null, and no format.

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
        objects=_refreshed_objects(old.objects, recent.objects),
    )


def _refreshed_objects(old: Objects | None, recent: Objects | None) -> Objects | None:
    if old is None or recent is None:
        return recent
    if old.tag is None:
        return Objects(None, {"": _refreshed_fields(old.variants[""], collapsed(recent))})
    variants = {
        value: _refreshed_fields(fields, recent.variants[value]) if value in recent.variants else fields
        for value, fields in old.variants.items()
    }
    return Objects(old.tag, variants)


def _refreshed_fields(old: Fields, recent: Fields) -> Fields:
    if old.is_map or (not recent.properties and recent.other == NOTHING):
        return old
    newer = recent.properties
    # In the old order: a type does not look otherwise by which result a window began with.
    properties = {
        name: Property(refreshed(known.shape, newer[name].shape), newer[name].required)
        for name, known in old.properties.items()
        if name in newer
    }
    return Fields(properties, NOTHING if recent.other == NOTHING else refreshed(old.other, recent.other))
