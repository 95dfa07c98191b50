"""A document knows where every `$ref` in one schema leads, and which draft's rules it goes by.

Only this document is ever looked at: a reference that leaves it stays unresolved, and nothing is fetched.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import unquote, urljoin

from cellblock.base.json import inside, is_array, is_object, pointer_steps

Draft = Literal["draft-07", "2020-12"]

MAX_INDEXED = 100_000
"""Bounds the schema objects searched for `$id` and anchors in one document."""

_ONE_SCHEMA = frozenset(
    {"additionalItems", "additionalProperties", "contains", "contentSchema", "else", "if", "items", "not"}
    | {"propertyNames", "then", "unevaluatedItems", "unevaluatedProperties"}
)
_LIST_OF_SCHEMAS = ("allOf", "anyOf", "oneOf", "prefixItems", "items")
_MAP_OF_SCHEMAS = (
    "$defs",
    "definitions",
    "dependentSchemas",
    "dependencies",
    "patternProperties",
    "properties",
)
SCHEMA_WORDS = _ONE_SCHEMA.union(_LIST_OF_SCHEMAS, _MAP_OF_SCHEMAS)
"""Lists the keywords that hold schemas."""

ANNOTATIONS = frozenset(
    ("title", "description", "$comment", "default", "examples", "deprecated", "readOnly", "writeOnly")
)
"""Holds the keywords that assert nothing."""

_MODERN_KEYWORDS = frozenset(
    {"$defs", "$anchor", "$dynamicRef", "$dynamicAnchor", "prefixItems", "unevaluatedProperties"}
    | {"unevaluatedItems", "dependentRequired", "dependentSchemas", "minContains", "maxContains"}
)
_LEGACY_KEYWORDS = frozenset({"definitions", "additionalItems", "dependencies"})


@dataclass(frozen=True, slots=True, eq=False)
class Location:
    """A location is a place in a document that holds a schema (or, in a malformed document, anything else)."""

    value: object
    base: str
    pointer: tuple[str, ...]

    @property
    def key(self) -> tuple[object, ...]:
        """Returns what is equal for locations that mean the same schema; holds while the document is alive."""
        return (self.value,) if isinstance(self.value, bool) else (id(self.value), self.base)


TRUE = Location(True, "", ())
FALSE = Location(False, "", ())


def as_object(value: object) -> dict[str, Any] | None:
    """Gives the value as a JSON object, or None when it is anything else."""
    return value if is_object(value) else None


def as_list(value: object) -> list[Any]:
    """Gives the value as a JSON array; empty when it is anything else."""
    return value if is_array(value) else []


def _join(base: str, reference: str) -> str:
    if not reference:
        return base
    try:
        return urljoin(base, reference)
    except ValueError:
        return reference


class Document:
    """Knows the `$id`s, anchors and draft of one root schema.

    Without `$schema` a document goes by 2020-12, MCP's own default. One that uses only older keywords is read by the
    older rules, which never narrows a type: what differs is that draft-07 ignores everything beside a `$ref`.
    """

    def __init__(self, root: object) -> None:
        self._resources: dict[str, Location] = {}
        self._anchors: dict[tuple[str, str], Location] = {}
        self._dynamic = Counter[str]()
        self._modern_used = False
        self._legacy_used = False
        named = as_object(root) or {}
        uri = named.get("$schema")
        self.stated: Draft | None = None
        if isinstance(uri, str) and "json-schema.org/" in uri:
            old = any(f"draft-0{n}" in uri for n in range(8))
            self.stated = "draft-07" if old else "2020-12"
        self.refs_stand_alone = self.stated == "draft-07"
        """Says whether keywords beside a `$ref` are ignored, as draft-07 has it."""
        self.root = self._located(root, "", ())
        self._resources[""] = self.root
        self._index()
        if self.stated is None:
            self.refs_stand_alone = self._legacy_used and not self._modern_used

    def child(self, parent: Location, value: object, *path: str) -> Location:
        """Gives the location of a value inside `parent`, with the base URI that holds there."""
        return self._located(value, parent.base, (*parent.pointer, *path))

    def resolve(self, reference: str, at: Location) -> Location | None:
        """Finds where a `$ref` leads, or None when it leaves this document or leads nowhere."""
        uri, _, fragment = reference.partition("#")
        target = _join(at.base, uri) if uri else at.base
        resource = self._resources.get(target.partition("#")[0])
        if resource is None or not fragment:
            return resource
        text = unquote(fragment)
        if not text.startswith("/"):
            return self._anchors.get((resource.base, text))
        here = resource
        try:
            for step in pointer_steps(fragment):
                here = self.child(here, inside(here.value, step), step)
        except LookupError:
            return None
        return here

    def resolve_dynamic(self, reference: str, at: Location) -> Location | None:
        """Finds where a `$dynamicRef` leads, when this document leaves it only one place to lead to."""
        anchor = reference.partition("#")[2]
        return self.resolve(reference, at) if self._dynamic[unquote(anchor)] <= 1 else None

    def _located(self, value: object, base: str, pointer: tuple[str, ...]) -> Location:
        schema = as_object(value) or {}
        identifier = schema.get("$id")
        # In draft-07 a `$ref` hides its siblings, a `$id` included.
        if isinstance(identifier, str) and not (self.refs_stand_alone and "$ref" in schema):
            base = _join(base, identifier.partition("#")[0])
        return Location(value, base, pointer)

    def _index(self) -> None:
        stack = [self.root]
        seen = 0
        while stack and seen < MAX_INDEXED:
            here = stack.pop()
            schema = as_object(here.value)
            if schema is None:
                continue
            seen += 1
            self._note_names(here, schema)
            # Reversed onto a stack: the first of two equal names wins, as in reading order.
            stack.extend(reversed([*self._subschemas(here, schema)]))

    def _note_names(self, here: Location, schema: dict[str, Any]) -> None:
        identifier = schema.get("$id")
        if isinstance(identifier, str):
            address, _, anchor = identifier.partition("#")
            if address:
                self._resources.setdefault(here.base, here)
            if anchor:
                self._legacy_used = True
                self._anchors.setdefault((here.base, anchor), here)
        for keyword in ("$anchor", "$dynamicAnchor"):
            anchor = schema.get(keyword)
            if isinstance(anchor, str):
                self._anchors.setdefault((here.base, anchor), here)
                self._dynamic[anchor] += keyword == "$dynamicAnchor"
        self._modern_used |= not _MODERN_KEYWORDS.isdisjoint(schema)
        self._legacy_used |= not _LEGACY_KEYWORDS.isdisjoint(schema) or is_array(schema.get("items"))

    def _subschemas(self, here: Location, schema: dict[str, Any]) -> Iterator[Location]:
        for word, value in schema.items():
            if word in _ONE_SCHEMA and is_object(value):
                yield self.child(here, value, word)
            elif word in _LIST_OF_SCHEMAS and is_array(value):
                yield from (self.child(here, item, word) for item in value)
            elif word in _MAP_OF_SCHEMAS and is_object(value):
                yield from (self.child(here, item, word) for item in value.values())
