"""Where JSON Schema keeps subschemas, and which draft a schema is written in.

"In place" keywords apply their subschemas to the value itself, the others to its properties or items.
The tables are the union of drafts 4 to 2020-12: a keyword that a draft does not know is no keyword there, and
walking it all the same only overestimates.
"""

from __future__ import annotations

from collections.abc import Iterator
from enum import Enum
from typing import Any, Final, cast

IN_PLACE_ONE: Final = frozenset({"not", "if", "then", "else"})
IN_PLACE_LIST: Final = frozenset({"allOf", "anyOf", "oneOf"})
IN_PLACE_MAP: Final = frozenset({"dependentSchemas", "dependencies"})
BELOW_ONE: Final = frozenset(
    {
        "additionalProperties",
        "unevaluatedProperties",
        "propertyNames",
        "additionalItems",
        "unevaluatedItems",
        "contains",
        "items",
    }
)
BELOW_LIST: Final = frozenset({"prefixItems", "items"})
BELOW_MAP: Final = frozenset({"properties", "patternProperties"})
DEFINITIONS: Final = frozenset({"$defs", "definitions"})


class Place(Enum):
    """To what a subschema applies."""

    IN_PLACE = 1
    """The value itself."""
    ONE_BELOW = 2
    """One property or item: two subschemas of this kind in one keyword never meet on the same value."""
    ALL_BELOW = 3
    """Any property or item."""
    NOWHERE = 4
    """Nothing, until a `$ref` names it."""


def subschemas(schema: dict[str, Any]) -> Iterator[tuple[str, Place, dict[str, Any]]]:
    """The object subschemas of a schema object: (keyword, place, subschema). Malformed parts are left out."""
    for keyword, value in schema.items():
        if isinstance(value, dict):
            part = cast("dict[str, Any]", value)
            if keyword in IN_PLACE_ONE:
                yield keyword, Place.IN_PLACE, part
            elif keyword in BELOW_ONE:
                yield keyword, Place.ALL_BELOW, part
            elif keyword in IN_PLACE_MAP or keyword in BELOW_MAP or keyword in DEFINITIONS:
                place = _MAP_PLACES.get(keyword, Place.IN_PLACE)
                for item in part.values():
                    if isinstance(item, dict):
                        yield keyword, place, cast("dict[str, Any]", item)
        elif isinstance(value, list) and (keyword in IN_PLACE_LIST or keyword in BELOW_LIST):
            place = Place.IN_PLACE if keyword in IN_PLACE_LIST else Place.ONE_BELOW
            for item in cast("list[Any]", value):
                if isinstance(item, dict):
                    yield keyword, place, cast("dict[str, Any]", item)


_MAP_PLACES: Final = {
    "properties": Place.ONE_BELOW,
    "patternProperties": Place.ALL_BELOW,
    "$defs": Place.NOWHERE,
    "definitions": Place.NOWHERE,
}


class Draft(Enum):
    """A draft of JSON Schema, by the part of its `$schema` address that tells it."""

    DRAFT_4 = "draft-04"
    DRAFT_6 = "draft-06"
    DRAFT_7 = "draft-07"
    DRAFT_2019_09 = "2019-09"
    DRAFT_2020_12 = "2020-12"


def draft_of(schema: dict[str, Any]) -> Draft | None:
    """The draft that `$schema` names; 2020-12, as MCP has it, where there is none; None if it is no known one.

    A schema that names none may be of an older draft all the same: one that is not valid in 2020-12.

    `http` and `https`, with or without the closing `#`, are all in use and all accepted.
    """
    address = schema.get("$schema")
    if address is None:
        return Draft.DRAFT_2020_12
    if not isinstance(address, str) or "json-schema.org/" not in address[:64]:
        return None
    found = [draft for draft in Draft if f"/{draft.value}/schema" in address[:64]]
    return found[0] if found else None


def pointer_of(parts: list[str | int]) -> str:
    """The JSON Pointer (RFC 6901) of a path; the root is the empty text."""
    return "".join("/" + str(part).replace("~", "~0").replace("/", "~1") for part in parts)
