"""Boxes values: what a tool returns that is no object travels as the one property of an object.

MCP's structured content has to be an object. A schema that was boxed says so with the extension `x-dedalus-box`,
which names the property, so that whoever reads it can take the value out again.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from cellblock.base.json import is_object
from cellblock.tools.schemas.alternatives import Alternatives, Rules
from cellblock.tools.schemas.document import Document

BOX_KEY: Final = "x-dedalus-box"
"""Holds the extension of a boxed schema: `{"field": "result"}`."""

BOX_FIELD: Final = "result"
"""Names the property of a box that holds the value."""

_FASTMCP_KEY: Final = "x-fastmcp-wrap-result"
"""Holds FastMCP's own extension of a boxed schema, `true`."""

_SDK_TITLE_END: Final = "Output"
"""Ends a title of the MCP SDK for Python, which marks nothing, but titles a box after the function: `addOutput`."""

_OBJECT_KEYWORDS: Final = ("properties", "patternProperties", "additionalProperties", "propertyNames")


def describes_object(schema: Mapping[str, Any] | bool) -> bool:
    """Says whether every value that fits the schema is an object, as far as its root says."""
    document = Document(schema)
    found = Alternatives(document, lambda amount: True, lambda message, at: None).expand([document.root])
    return bool(found) and all(any(map(_says_object, rules)) for rules in found)


def box_schema(schema: Mapping[str, Any] | bool) -> dict[str, Any]:
    """Gives the schema of the boxed value; the schema itself (a copy) when it describes an object already.

    Definitions move to the new root, where references look for them.
    """
    if isinstance(schema, Mapping) and describes_object(schema):
        return dict(schema)
    inner, definitions = without_definitions(schema) if isinstance(schema, Mapping) else (schema, {})
    return {
        "type": "object",
        "properties": {BOX_FIELD: inner},
        "required": [BOX_FIELD],
        BOX_KEY: {"field": BOX_FIELD},
        **definitions,
    }


def without_definitions(schema: Mapping[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """Gives a schema as it can stand within another, and what moves to the new root for it."""
    inner = {key: value for key, value in schema.items() if key != "$defs"}
    return inner, {"$defs": schema["$defs"]} if "$defs" in schema else {}


def boxed_field(schema: object) -> str | None:
    """Gives the property that holds the value where every value that fits is a box and nothing else, so that what is in
    it can stand for it; None for a schema that is not boxed.

    Three conventions are known: `x-dedalus-box`, FastMCP's `x-fastmcp-wrap-result`, and that of the MCP SDK for
    Python, an object titled `…Output` whose only property is a required `result`.
    """
    if not is_object(schema) or schema.get("type") != "object":
        return None
    properties: object = schema.get("properties")
    if not is_object(properties) or len(properties) != 1 or schema.get("required") != [*properties]:
        return None
    [field] = properties
    if BOX_KEY in schema:
        return field if schema[BOX_KEY] == {"field": field} else None
    title: object = schema.get("title")
    by_sdk = isinstance(title, str) and title.endswith(_SDK_TITLE_END)
    return field if field == BOX_FIELD and (schema.get(_FASTMCP_KEY) is True or by_sdk) else None


def unbox_schema(schema: Mapping[str, Any], field: str) -> dict[str, Any] | bool:
    """Gives the schema of what is in a box, for declarations; definitions move with it."""
    inner: object = schema["properties"][field]
    if not is_object(inner):
        return inner is not False
    return {
        **inner,
        **{key: schema[key] for key in ("$schema", "$defs", "definitions") if key in schema},
    }


def _says_object(rules: Rules) -> bool:
    if rules.kinds is None:
        return any(keyword in rules.schema for keyword in _OBJECT_KEYWORDS)
    return rules.kinds == frozenset({"object"})
