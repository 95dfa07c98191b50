"""Makes the exact opposite of a schema, for the few forms that have one a type can say."""

from __future__ import annotations

from typing import Any

from cellblock.base.json import is_array, is_object
from cellblock.catalog.typescript.document import ANNOTATIONS

ALL_KINDS = ("string", "number", "boolean", "array", "object", "null")
"""Holds the kinds of JSON values, in the order in which a union lists them."""

_NOTES = ANNOTATIONS | {"$schema"}
_MAX_DEPTH = 8


def negated(schema: object, depth: int = 0) -> dict[str, Any] | bool | None:
    """Gives a schema for exactly the values that `schema` refuses, or None when there is no simple one.

    An opposite that allowed too little would make a type narrower than its schema, so nothing is guessed.
    """
    if isinstance(schema, bool):
        return not schema
    if not is_object(schema) or depth > _MAX_DEPTH:
        return None
    body = {key: value for key, value in schema.items() if key not in _NOTES}
    if not body:
        return False
    words = set(body)
    if words == {"not"}:
        inner: object = body["not"]
        return inner if isinstance(inner, bool) or is_object(inner) else None
    if words in ({"const"}, {"enum"}):
        return {"not": body} if "const" in body or isinstance(body["enum"], list) else None
    if words == {"type"}:
        return _other_kinds(body["type"])
    for word, dual in (("anyOf", "allOf"), ("allOf", "anyOf")):
        if words == {word} and is_array(body[word]) and body[word]:
            opposites = [negated(member, depth + 1) for member in body[word]]
            return None if None in opposites else {dual: opposites}
    if words <= {"type", "required", "properties"} and ("required" in words or "properties" in words):
        return _not_such_an_object(body, depth)
    return None


def _other_kinds(stated: object) -> dict[str, Any] | bool | None:
    names: list[object] = stated if is_array(stated) else [stated]
    if not names or any(name != "integer" and name not in ALL_KINDS for name in names):
        return None
    # The opposite of `integer` still allows numbers, those with a fraction.
    others = [kind for kind in ALL_KINDS if kind not in names]
    return {"type": others} if others else False


def _not_such_an_object(body: dict[str, Any], depth: int) -> dict[str, Any] | None:
    required, properties = body.get("required", []), body.get("properties", {})
    if body.get("type", "object") != "object" or not is_array(required) or not is_object(properties):
        return None
    if not all(isinstance(key, str) for key in required):
        return None
    ways: list[dict[str, Any]] = [{"properties": {key: False}} for key in required]
    for key, value in properties.items():
        opposite = negated(value, depth + 1)
        if opposite is None:
            return None
        ways.append({"required": [key], "properties": {key: opposite}})
    objects = {"type": "object", **({"anyOf": ways} if len(ways) > 1 else (ways or [{"not": {}}])[0])}
    if "type" not in body:
        return objects
    return {"anyOf": [{"type": [other for other in ALL_KINDS if other != "object"]}, objects]}
