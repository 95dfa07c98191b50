"""A document knows where JSON Schema keeps subschemas, and where every `$ref` in one schema leads.

Only this document is ever looked at: a reference that leaves it stays unresolved, and nothing is fetched. So does one
within a part that has an `$id` of its own: these are rare, and their type is then unknown.

"In place" keywords apply their subschemas to the value itself, the others to its properties or items. The tables are
the union of drafts 4 to 2020-12: a keyword that a draft does not know is no keyword there, and walking it all the same
only overestimates.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from enum import Enum
from functools import cached_property
from typing import Any, Final, Literal
from urllib.parse import unquote

from cellblock.base.json import inside, is_array, is_object, pointer_steps
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


Draft = Literal["draft-07", "2020-12"]


@dataclass(frozen=True, slots=True, eq=False)
class Location:
    """A location is a place in a document that holds a schema (or, in a malformed document, anything else).

    `is_foreign` says whether it is within a part with an `$id` of its own, where a `$ref` means something else.
    """

    value: object
    is_foreign: bool
    pointer: tuple[str, ...]

    @property
    def key(self) -> tuple[object, ...]:
        """Returns what is equal for locations that mean the same schema; holds while the document is alive."""
        return (self.value,) if isinstance(self.value, bool) else (id(self.value), self.is_foreign)


TRUE = Location(True, False, ())


def as_object(value: object) -> dict[str, Any] | None:
    """Gives the value as a JSON object, or None when it is anything else."""
    return value if is_object(value) else None


def as_list(value: object) -> list[Any]:
    """Gives the value as a JSON array; empty when it is anything else."""
    return value if is_array(value) else []


class Document:
    """Knows the root and the draft of one schema.

    Args:
        root: The schema.
        id_key: The keyword that identifies; `id` in draft 4.

    Attributes:
        root: Where the schema is.
        stated: The draft that it says it goes by, if any; else the keywords of both count, but for those beside a
            `$ref`.
    """

    def __init__(self, root: object, id_key: str = "$id") -> None:
        named = as_object(root) or {}
        self._id_key = id_key
        uri, identifier = named.get("$schema"), named.get(id_key)
        self.root = Location(root, False, ())
        self._id = identifier.partition("#")[0] if isinstance(identifier, str) else ""
        self.stated: Draft | None = None
        if isinstance(uri, str) and "json-schema.org/" in uri:
            old = any(f"draft-0{n}" in uri for n in range(8))
            self.stated = "draft-07" if old else "2020-12"

    def child(self, parent: Location, value: object, *path: str) -> Location:
        """Gives the location of a value inside `parent`."""
        identifier = (as_object(value) or {}).get(self._id_key)
        is_foreign = isinstance(identifier, str) and not identifier.startswith("#")
        return Location(value, parent.is_foreign or is_foreign, (*parent.pointer, *path))

    def resolve(self, reference: str, at: Location) -> Location | None:
        """Finds where a `$ref` leads, or None when it leaves this document or leads nowhere."""
        uri, _, fragment = reference.partition("#")
        if at.is_foreign or uri not in ("", self._id):
            return None
        if (name := unquote(fragment))[:1] not in ("", "/"):
            return self._anchors.get(name)
        here = self.root
        try:
            for step in pointer_steps(fragment):
                here = self.child(here, inside(here.value, step), step)
        except LookupError:
            return None
        return here

    @cached_property
    def _anchors(self) -> dict[str, Location]:
        """Holds the parts of the document that have names of their own."""
        found: dict[str, Location] = {}
        seen: set[tuple[object, ...]] = set()
        waiting = [self.root]
        while waiting:
            here = waiting.pop()
            schema = as_object(here.value)
            if schema is None or here.is_foreign or here.key in seen:
                continue
            seen.add(here.key)
            identifier = str(schema.get(self._id_key))
            named = identifier[1:] if identifier[:1] == "#" else None
            names = (named, schema.get("$anchor"), schema.get("$dynamicAnchor"))
            found |= {name: here for name in names if isinstance(name, str)}
            waiting += (self.child(here, part, keyword) for keyword, _, part in subschemas(schema))
        return found
