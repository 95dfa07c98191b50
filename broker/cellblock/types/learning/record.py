"""Writes observations as the JSON that the store keeps; nothing is believed when it is read back.

Keys are only ever added: a row of an older Cellblock lacks the newer ones, and an older Cellblock passes them by.
"""

from __future__ import annotations

import json
from functools import reduce
from typing import Any

from cellblock.base.json import is_array, is_object
from cellblock.types.learning.observation import (
    MAX_WINDOW,
    NOT_FADING,
    NOT_GIVEN,
    WINDOW,
    Fading,
    Forms,
    GivenCheck,
    Observation,
)
from cellblock.types.learning.shape import (
    ANYTHING,
    MAX_DEPTH,
    MAX_NAMES,
    NAME,
    NOTHING,
    Fields,
    Number,
    Property,
    Shape,
    join_fields,
)


def encoded(seen: Observation) -> str:
    """Writes the whole of an observation as JSON, but for the columns of the store."""
    body: dict[str, Any] = {
        **_forms(seen.shape),
        "skipped": seen.skipped,
        "disagreements": seen.disagreements,
        "disagreement": seen.disagreement,
        "by": seen.by,
    }
    if seen.given.of:
        body["given"] = [seen.given.of, seen.given.checked, seen.given.misfits, seen.given.newest]
    if seen.sample is not None:
        body["sample"] = seen.sample
    fading = seen.fading
    if fading != NOT_FADING:
        # Most often what is known.
        recent = 1 if fading.recent == seen.shape else _forms(fading.recent)
        body["fading"] = {"recent": recent, "count": fading.count, "window": fading.window}
    return json.dumps(body, separators=(",", ":"))


def decoded(body: str) -> Observation:
    """Reads the observation, without what is in the columns of the store.

    Raises:
        ValueError: It is no such data: the store was changed by something else.
    """
    data = as_object(json.loads(body))
    forms = _formed(data)
    sample = data.get("sample")
    return Observation(
        value=forms.value,
        document=forms.document,
        texts=forms.texts,
        results=forms.results,
        skipped=int(data.get("skipped", 0)),
        disagreements=int(data.get("disagreements", 0)),
        disagreement=str(data.get("disagreement", "")),
        by=str(data.get("by", "")),
        sample=sample if isinstance(sample, str) else None,
        given=_given(data.get("given")),
        fading=_fading(as_object(data["fading"]), forms) if "fading" in data else NOT_FADING,
    )


def _forms(forms: Forms) -> dict[str, Any]:
    return {
        "value": encode_shape(forms.value),
        "json": encode_shape(forms.document),
        "texts": forms.texts,
        "results": forms.results,
    }


def _formed(data: dict[str, Any]) -> Forms:
    value, document = (decode_shape(data.get(name, {})) for name in ("value", "json"))
    return Forms(value, document, bool(data.get("texts")), bool(data.get("results")))


def _fading(data: dict[str, Any], known: Forms) -> Fading:
    recent: object = data.get("recent", {})
    return Fading(
        recent=known if recent == 1 else _formed(as_object(recent)),
        count=min(max(int(data.get("count", 0)), 0), MAX_WINDOW),
        window=min(max(int(data.get("window", WINDOW)), WINDOW), MAX_WINDOW),
    )


def _given(data: object) -> GivenCheck:
    if data is None:
        return NOT_GIVEN
    if not is_array(data):
        raise ValueError("no list")
    of, checked, misfits, newest = data
    return GivenCheck(str(of), int(checked), int(misfits), str(newest))


_MAX_KINDS = 12
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
        data["o"] = {"t": None, "v": {"": _encode_fields(shape.objects)}}
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
    if fields.by:
        data["b"] = fields.by
    # Most often whose all is.
    if others := {name: held.by for name, held in fields.properties.items() if held.by != fields.by}:
        data["w"] = others
    return data


def decode_shape(data: object) -> Shape:
    """Decodes a shape from the data that `encode_shape` has made of it.

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


def _decode_objects(data: object, depth: int) -> Fields:
    # Older ones kept objects of several kinds, by a tag.
    kinds = as_object(as_object(data).get("v")).values()
    if not 1 <= len(kinds) <= _MAX_KINDS:
        raise ValueError("no kinds of objects")
    return reduce(join_fields, [_decode_fields(fields, depth) for fields in kinds])


def _decode_fields(data: object, depth: int) -> Fields:
    known = as_object(data)
    properties: dict[str, Property] = {}
    by, others = str(known.get("b", "")), as_object(known.get("w", {}))
    for name, pair in as_object(known.get("p")).items():
        # Names go into generated text: what reads the store checks them again.
        if not NAME.match(name) or not is_array(pair) or len(pair) != 2:
            raise ValueError("a property that cannot be")
        shape, required = pair
        shown_by = str(others.get(name, by))
        properties[name] = Property(_decode(shape, depth + 1), bool(required), shown_by)
    if len(properties) > MAX_NAMES:
        raise ValueError("too many properties")
    other = known.get("x")
    rest = NOTHING if other is None else _decode(other, depth + 1)
    return Fields(properties, rest, bool(known.get("m")), by)


def as_object(data: object) -> dict[str, Any]:
    """Gives stored data that must be an object. Raises ValueError when it is anything else."""
    if not is_object(data):
        raise ValueError("no object")
    return data
