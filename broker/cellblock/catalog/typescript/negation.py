"""The exact opposite of a schema, for the few forms that have one a type can say."""

from __future__ import annotations

from typing import Any, cast

_KINDS = ("string", "number", "boolean", "array", "object", "null")
_NOTES = frozenset(
    (
        "title",
        "description",
        "$comment",
        "default",
        "examples",
        "deprecated",
        "readOnly",
        "writeOnly",
        "$schema",
    )
)
_MAX_DEPTH = 8


def negated(schema: object, depth: int = 0) -> dict[str, Any] | bool | None:
    """A schema for exactly the values that `schema` refuses, or None when there is no simple one.

    An opposite that allowed too little would make a type narrower than its schema, so nothing is guessed.
    """
    if isinstance(schema, bool):
        return not schema
    if not isinstance(schema, dict) or depth > _MAX_DEPTH:
        return None
    body = {key: value for key, value in cast("dict[str, Any]", schema).items() if key not in _NOTES}
    if not body:
        return False
    words = set(body)
    if words == {"not"}:
        inner: object = body["not"]
        return cast("dict[str, Any] | bool", inner) if isinstance(inner, dict | bool) else None
    if words in ({"const"}, {"enum"}):
        return {"not": body} if "const" in body or isinstance(body["enum"], list) else None
    if words == {"type"}:
        return _other_kinds(body["type"])
    if words == {"anyOf"} and isinstance(body["anyOf"], list) and body["anyOf"]:
        opposites = [negated(member, depth + 1) for member in cast("list[object]", body["anyOf"])]
        return None if None in opposites else {"allOf": opposites}
    if words == {"allOf"} and isinstance(body["allOf"], list) and body["allOf"]:
        opposites = [negated(member, depth + 1) for member in cast("list[object]", body["allOf"])]
        return None if None in opposites else {"anyOf": opposites}
    if words <= {"type", "required", "properties"} and ("required" in words or "properties" in words):
        return _not_such_an_object(body, depth)
    return None


def _other_kinds(stated: object) -> dict[str, Any] | bool | None:
    names: list[object] = cast("list[object]", stated) if isinstance(stated, list) else [stated]
    if not names or any(name != "integer" and name not in _KINDS for name in names):
        return None
    # The opposite of `integer` still allows numbers, those with a fraction.
    others = [kind for kind in _KINDS if kind not in names]
    return {"type": others} if others else False


def _not_such_an_object(body: dict[str, Any], depth: int) -> dict[str, Any] | None:
    kind, required, properties = (
        body.get("type", "object"),
        body.get("required", []),
        body.get("properties", {}),
    )
    if kind != "object" or not isinstance(required, list) or not isinstance(properties, dict):
        return None
    keys = cast("list[object]", required)
    if not all(isinstance(key, str) for key in keys):
        return None
    ways: list[dict[str, Any]] = [{"properties": {key: False}} for key in keys]
    for key, value in cast("dict[str, Any]", properties).items():
        opposite = negated(value, depth + 1)
        if opposite is None:
            return None
        ways.append({"required": [key], "properties": {key: opposite}})
    objects: dict[str, Any] = (
        {"type": "object", "anyOf": ways}
        if len(ways) > 1
        else {"type": "object", **(ways or [{"not": {}}])[0]}
    )
    if "type" not in body:
        return objects
    return {"anyOf": [{"type": [other for other in _KINDS if other != "object"]}, objects]}
