"""Asks a native validator whether a value adds anything to a shape: a fifth of what reading the value costs.

A tool's results look alike, so most looks end here. The schema made for it says exactly what `join` would leave as it
is; it is not the one that is shown (`render.to_schema`), which is wider where tags or names turn out to be data.
"""

from __future__ import annotations

from typing import Any, Final

import jsonschema_rs

from cellblock.types.learning.infer.shape import NOTHING, TAGS, Fields, Objects, Shape

_DATE: Final = r"[0-9]{4}-(?:0[0-9]|1[0-2])-(?:[0-2][0-9]|3[01])"
_HOURS: Final = r"(?:[01][0-9]|2[0-3]):[0-5][0-9]"

_PATTERNS: Final[dict[str, dict[str, Any]]] = {
    "date-time": {
        "pattern": rf"^{_DATE}[Tt]{_HOURS}:[0-5][0-9](?:\.[0-9]{{1,9}})?(?:[Zz]|[+-]{_HOURS})$",
    },
    "date": {"pattern": f"^{_DATE}$"},
    "uuid": {"pattern": "^[0-9A-Fa-f]{8}-(?:[0-9A-Fa-f]{4}-){3}[0-9A-Fa-f]{12}$"},
    "email": {
        "pattern": r"^[A-Za-z0-9_.+-]+@[A-Za-z0-9-]+(?:\.[A-Za-z0-9-]+){1,8}$",
        "maxLength": 64,
    },
    "uri": {"pattern": r"^https?://[!#-;=?-\[\]_a-z~%]+$", "maxLength": 2_007},
}
"""Writes `observe.FORMATS` as JSON Schema, without its counted repeats, which take long to compile: lengths stand for
them. What is longer than these allow, though of the format, is looked at in full."""

_NO_NAME: Final[list[dict[str, Any]]] = [
    {"not": {"pattern": "^[A-Za-z_$][A-Za-z0-9_$]{0,63}$"}},
    {"const": "__proto__"},
]
"""Holds the names that `shape.NAME` does not keep."""


class _NotExact(Exception):
    """Tells that no schema says exactly what a shape allows."""


class Fits:
    """Tests values against one shape.

    Args:
        shape: What is known; every value that passes leaves it as it is when it is joined to it.
    """

    def __init__(self, shape: Shape) -> None:
        self.shape = shape
        try:
            self._validator = jsonschema_rs.Draft202012Validator(_schema(shape))
        except (_NotExact, ValueError, jsonschema_rs.ValidationError):
            self._validator = None

    def __call__(self, value: Any) -> bool:
        """Says whether the value certainly adds nothing; False also when it is not known.

        A float without a fraction passes where integers are known: JSON does not tell them apart.
        """
        if self._validator is None:
            return False
        try:
            return self._validator.is_valid(value)
        except (ValueError, TypeError):  # a lone surrogate, or what is no JSON
            return False


def _schema(shape: Shape) -> Any:
    if shape.anything:
        return True
    if shape == NOTHING:
        return False
    types: list[str] = []
    schema: dict[str, Any] = {"type": types}
    if shape.null:
        types.append("null")
    if shape.boolean:
        types.append("boolean")
    if shape.number:
        types.append(shape.number)
    if shape.formats is not None:
        types.append("string")
        if len(shape.formats) > 1:
            raise _NotExact
        for name in shape.formats:
            schema |= _PATTERNS[name]
    if shape.items is not None:
        types.append("array")
        schema["items"] = _schema(shape.items)
    if shape.objects is None:
        return schema
    types.append("object")
    schema |= _objects(shape.objects)
    return schema


def _objects(objects: Objects) -> dict[str, Any]:
    """Returns keywords that judge objects and let all else be."""
    if objects.tag is None:
        return _fields(objects.variants[""])
    chosen: Any = False
    for value, fields in objects.variants.items():
        earlier = TAGS[: TAGS.index(objects.tag)]
        if fields.is_map or any(_has_strings(fields, name) for name in earlier):
            raise _NotExact  # The other name could be the tag.
        # A chain, and no `anyOf`, which would read objects of other variants up to the tag.
        tagged = {"properties": {objects.tag: {"const": value}}, "required": [objects.tag]}
        chosen = {"if": tagged, "then": _fields(fields), "else": chosen}
    # Not for what is no object: `if` would hold for it, and `else` in the end refuse it.
    return {"if": {"type": "object"}, "then": chosen}


def _has_strings(fields: Fields, name: str) -> bool:
    held = fields.properties.get(name)
    return held is not None and (held.shape.anything or held.shape.formats is not None)


def _fields(fields: Fields) -> dict[str, Any]:
    rest = _schema(fields.other)
    if fields.is_map:
        return {"additionalProperties": rest}
    schema: dict[str, Any] = {
        "properties": {name: _schema(held.shape) for name, held in fields.properties.items()},
        "required": [name for name, held in fields.properties.items() if held.required],
        "additionalProperties": rest,
    }
    if rest is not False:
        schema["propertyNames"] = {"anyOf": [{"enum": [*fields.properties]}, *_NO_NAME]}
    return schema
