"""Knows where JSON Schema keeps subschemas.

"In place" keywords apply their subschemas to the value itself, the others to its properties or items.
The tables are the union of drafts 4 to 2020-12: a keyword that a draft does not know is no keyword there, and
walking it all the same only overestimates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from enum import Enum
from typing import Any, Final

from cellblock.base.json import is_array, is_object
from cellblock.base.suggest import nearest_names

IN_PLACE_ONE: Final = frozenset({"not", "if", "then", "else"})
IN_PLACE_LIST: Final = frozenset({"allOf", "anyOf", "oneOf"})
BELOW_ONE: Final = frozenset(
    {"additionalProperties", "unevaluatedProperties", "propertyNames"}
    | {"additionalItems", "unevaluatedItems", "contains", "items"}
)
BELOW_LIST: Final = frozenset({"prefixItems", "items"})


class Applies(Enum):
    """Says to what a subschema applies."""

    IN_PLACE = 1
    """Applies to the value itself that the schema is for."""
    ONE_BELOW = 2
    """Applies to one property or item: two subschemas of this kind in one keyword never meet on the same value."""
    ALL_BELOW = 3
    """Applies to any property or item."""
    NOWHERE = 4
    """Applies to nothing, until a `$ref` names it."""


def subschemas(schema: dict[str, Any]) -> Iterator[tuple[str, Applies, dict[str, Any]]]:
    """Yields the object subschemas of a schema object, with their keywords. Malformed parts are left out."""
    for keyword, value in schema.items():
        parts: list[Any] = []
        applies = Applies.IN_PLACE
        if is_object(value):
            if keyword in IN_PLACE_ONE or keyword in BELOW_ONE:
                parts = [value]
                applies = Applies.IN_PLACE if keyword in IN_PLACE_ONE else Applies.ALL_BELOW
            elif keyword in MAPS:
                parts = [*value.values()]
                applies = MAPS[keyword]
        elif is_array(value) and (keyword in IN_PLACE_LIST or keyword in BELOW_LIST):
            parts = value
            applies = Applies.IN_PLACE if keyword in IN_PLACE_LIST else Applies.ONE_BELOW
        for part in parts:
            if is_object(part):
                yield keyword, applies, part


MAPS: Final = {
    "dependentSchemas": Applies.IN_PLACE,
    "dependencies": Applies.IN_PLACE,
    "properties": Applies.ONE_BELOW,
    "patternProperties": Applies.ALL_BELOW,
    "$defs": Applies.NOWHERE,
    "definitions": Applies.NOWHERE,
}
"""Holds the keywords that map names to subschemas, with what these apply to."""

ANNOTATIONS: Final = frozenset(
    ("title", "description", "$comment", "default", "examples", "deprecated", "readOnly", "writeOnly")
)
"""Holds the keywords that assert nothing."""

_ASSERTIONS: Final = (
    "type enum const multipleOf maximum exclusiveMaximum minimum exclusiveMinimum maxLength minLength pattern maxItems "
    "minItems uniqueItems maxContains minContains maxProperties minProperties required dependentRequired $ref "
    "$dynamicRef $recursiveRef"
)
_SILENT: Final = (
    "$defs definitions $schema $id id $anchor $dynamicAnchor $recursiveAnchor $vocabulary $comment title description "
    "default deprecated readOnly writeOnly examples format contentEncoding contentMediaType contentSchema"
)
_RESTRICTING: Final = {
    *_ASSERTIONS.split(),
    *IN_PLACE_ONE,
    *IN_PLACE_LIST,
    *BELOW_ONE,
    *BELOW_LIST,
    *MAPS,
} - {*_SILENT.split()}
_KNOWN: Final = _RESTRICTING | {*_SILENT.split()}
_VOID: Final[Sequence[dict[str, Any]]] = (
    {"type": "object"},
    *({keyword: {}} for keyword in (*MAPS, "additionalProperties", "unevaluatedProperties", "propertyNames")),
    {"required": []},
    {"additionalProperties": True},
    {"unevaluatedProperties": True},
)
"""Holds what says nothing of a tool's arguments, which are an object."""


def why_unrestricting(schema: Mapping[str, Any] | bool) -> str | None:
    """Says why a rule restricts less than it seems to; None where it does not."""
    left = [schema] if is_object(schema) else []
    while left:
        one = left.pop()
        for keyword in one:
            if keyword not in _KNOWN and not keyword.startswith("x-"):
                near = nearest_names(keyword, sorted(_RESTRICTING), 1)
                return f"{keyword!r} is no keyword of JSON Schema" + "".join(
                    f", {name!r} is" for name in near
                )
        left += (part for _, _, part in subschemas(one))
    is_void = (
        all(key not in _RESTRICTING or {key: value} in _VOID for key, value in schema.items())
        if is_object(schema)
        else schema
    )
    return "it restricts nothing" if is_void else None
