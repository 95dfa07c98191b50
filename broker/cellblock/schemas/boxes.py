"""Boxes: scalars and lists that a server's SDK wrapped in an object, because structured content has to be one.

Three conventions are known: `x-dedalus-box` names the field; fastmcp marks the schema with `x-fastmcp-wrap-result`; the
Python SDK marks nothing, and calls the object `<function>Output` and its one field `result`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, cast

_SDK_FIELD: Final = "result"


def box_of(schema: object) -> str | None:
    """The field that a declared output schema boxes its value in, or None when it is no box."""
    if not isinstance(schema, Mapping):
        return None
    known = cast("Mapping[str, Any]", schema)
    properties: object = known.get("properties")
    if known.get("type") != "object" or not isinstance(properties, Mapping):
        return None
    fields = list(cast("Mapping[str, Any]", properties))
    if len(fields) != 1 or known.get("required") != fields:
        return None
    mark: object = known.get("x-dedalus-box")
    if isinstance(mark, Mapping):
        return fields[0] if cast("Mapping[str, Any]", mark).get("field") == fields[0] else None
    title: object = known.get("title")
    of_sdk = isinstance(title, str) and title.endswith("Output")
    if fields[0] == _SDK_FIELD and (known.get("x-fastmcp-wrap-result") is True or of_sdk):
        return _SDK_FIELD
    return None


def unboxed(schema: Mapping[str, Any], field: str) -> dict[str, Any] | bool:
    """The schema of the value in the box, with the definitions that it refers to."""
    inside: object = schema["properties"][field]
    if not isinstance(inside, Mapping):
        return inside is not False
    definitions = {key: schema[key] for key in ("$defs", "definitions", "$schema") if key in schema}
    return {**definitions, **cast("Mapping[str, Any]", inside)}
