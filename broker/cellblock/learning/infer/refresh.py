"""Takes from a shape what newer results no longer show.

`refreshed(old, recent)` lies between both: it is true of all that `recent` was made from, and `old` is true of it. What
the newer results are silent about stays: the inside of arrays that were empty, what is beside null, maps, and the
members of a union that a tag tells apart. So does what costs a script little: null, and no format.
"""

from __future__ import annotations

from cellblock.learning.infer.merge import collapsed
from cellblock.learning.infer.shape import NOTHING, Fields, Objects, Property, Shape


def refreshed(old: Shape, recent: Shape) -> Shape:
    """Gives a shape without what newer results do not show.

    Args:
        old: True of all results.
        recent: Of the newer ones among them.
    """
    if recent.anything or _is_silent(recent):
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
        objects=_objects(old.objects, recent.objects),
    )


def _is_silent(shape: Shape) -> bool:
    return shape in (NOTHING, Shape(null=True))


def _objects(old: Objects | None, recent: Objects | None) -> Objects | None:
    if old is None or recent is None:
        return recent
    if old.tag is None:
        return Objects(None, {"": _fields(old.variants[""], collapsed(recent))})
    variants = {
        value: _fields(fields, recent.variants[value]) if value in recent.variants else fields
        for value, fields in old.variants.items()
    }
    return Objects(old.tag, variants)


def _fields(old: Fields, recent: Fields) -> Fields:
    if old.is_map or (not recent.properties and recent.other == NOTHING):
        return old
    properties = {
        name: Property(refreshed(old.properties[name].shape, held.shape), held.required)
        for name, held in recent.properties.items()
    }
    return Fields(properties, NOTHING if recent.other == NOTHING else refreshed(old.other, recent.other))
