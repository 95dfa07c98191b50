"""Writes shapes as JSON data for the store: short keys, and nothing believed when it is read back."""

from __future__ import annotations

from typing import Any

from cellblock.base.json import is_array, is_object
from cellblock.learning.infer.shape import (
    ANYTHING,
    MAX_DEPTH,
    MAX_NAMES,
    MAX_VARIANTS,
    NAME,
    NOTHING,
    TAG,
    TAGS,
    Fields,
    Number,
    Objects,
    Property,
    Shape,
)

_NUMBERS: dict[object, Number] = {"i": "integer", "n": "number"}


def encode_shape(shape: Shape) -> dict[str, Any]:
    """Gives the shape as plain JSON data."""
    if shape.anything:
        return {"a": 1}
    data: dict[str, Any] = {}
    if shape.null:
        data["z"] = 1
    if shape.boolean:
        data["b"] = 1
    if shape.number:
        data["n"] = shape.number[0]
    if shape.formats is not None:
        data["s"] = sorted(shape.formats)
    if shape.items is not None:
        data["i"] = encode_shape(shape.items)
    if shape.objects is not None:
        variants = {value: _encode_fields(fields) for value, fields in shape.objects.variants.items()}
        data["o"] = {"t": shape.objects.tag, "v": variants}
    return data


def _encode_fields(fields: Fields) -> dict[str, Any]:
    data: dict[str, Any] = {
        "p": {
            name: [encode_shape(held.shape), int(held.required)] for name, held in fields.properties.items()
        }
    }
    if fields.other != NOTHING:
        data["x"] = encode_shape(fields.other)
    if fields.is_map:
        data["m"] = 1
    return data


def decode_shape(data: object) -> Shape:
    """Gives the shape that `encode_shape` made this of.

    Raises:
        ValueError: It is no such data: the store was changed by something else.
    """
    return _decode(data, 0)


def _decode(data: object, depth: int) -> Shape:
    if depth > MAX_DEPTH + 1:
        raise ValueError("nested too deeply")
    known = as_object(data)
    if known.get("a"):
        return ANYTHING
    if not known:
        return NOTHING
    formats, items, objects = known.get("s"), known.get("i"), known.get("o")
    if formats is not None and not is_array(formats):
        raise ValueError("formats are no list")
    return Shape(
        null=bool(known.get("z")),
        boolean=bool(known.get("b")),
        number=_NUMBERS.get(known.get("n"), ""),
        formats=None if formats is None else frozenset(map(str, formats)),
        items=None if items is None else _decode(items, depth + 1),
        objects=None if objects is None else _decode_objects(objects, depth),
    )


def _decode_objects(data: object, depth: int) -> Objects:
    known = as_object(data)
    tag, variants = known.get("t"), as_object(known.get("v"))
    if not 1 <= len(variants) <= MAX_VARIANTS or (tag is not None and tag not in TAGS):
        raise ValueError("no variants")
    if not all((TAG.match(value) if tag else value == "") for value in variants):
        raise ValueError("a variant that is no tag")
    return Objects(tag, {value: _decode_fields(fields, depth) for value, fields in variants.items()})


def _decode_fields(data: object, depth: int) -> Fields:
    known = as_object(data)
    properties: dict[str, Property] = {}
    for name, pair in as_object(known.get("p")).items():
        # Names go into generated text: what reads the store checks them again.
        if not NAME.match(name) or not is_array(pair) or len(pair) != 2:
            raise ValueError("a property that cannot be")
        shape, required = pair
        properties[name] = Property(_decode(shape, depth + 1), bool(required))
    if len(properties) > MAX_NAMES:
        raise ValueError("too many properties")
    other = known.get("x")
    return Fields(properties, NOTHING if other is None else _decode(other, depth + 1), bool(known.get("m")))


def as_object(data: object) -> dict[str, Any]:
    """Gives stored data that must be an object. Raises ValueError when it is anything else."""
    if not is_object(data):
        raise ValueError("no object")
    return data
