"""A document knows where every `$ref` in one schema leads, and which draft's rules it goes by.

Only this document is ever looked at: a reference that leaves it stays unresolved, and nothing is fetched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal
from urllib.parse import unquote, urljoin

from cellblock.base.json import is_array, is_object
from cellblock.catalog.typescript.limits import MAX_INDEXED

Draft = Literal["draft-07", "2020-12"]

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
_LEGACY_KEYWORDS = ("definitions", "additionalItems", "dependencies")


@dataclass(frozen=True, slots=True, eq=False)
class Location:
    """A location is a place in a document that holds a schema (or, in a malformed document, anything else)."""

    value: object
    base: str
    pointer: tuple[str, ...]

    @property
    def key(self) -> tuple[object, ...]:
        """Is equal for locations that mean the same schema; holds while the document is alive."""
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

    `draft` names the rules of a document without `$schema`; MCP's own default is 2020-12. Left out, a
    document that uses only older keywords is read by the older rules, which never narrows a type: what
    differs is that draft-07 ignores everything beside a `$ref`.
    """

    def __init__(self, root: object, draft: Draft | None = None) -> None:
        self._resources: dict[str, Location] = {}
        self._anchors: dict[tuple[str, str], Location] = {}
        self._dynamic: dict[str, int] = {}
        self._modern_used = False
        self._legacy_used = False
        named = as_object(root) or {}
        uri = named.get("$schema")
        self.stated: Draft | None = draft
        if isinstance(uri, str) and "json-schema.org/" in uri:
            old = any(f"draft-0{n}" in uri for n in range(8))
            self.stated = "draft-07" if old else "2020-12"
        self._legacy = self.stated == "draft-07"
        self.root = self._located(root, "", ())
        self._resources[""] = self.root
        self._index()
        if self.stated is None:
            self._legacy = self._legacy_used and not self._modern_used

    @property
    def refs_stand_alone(self) -> bool:
        """Says whether keywords beside a `$ref` are ignored, as draft-07 has it."""
        return self._legacy

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
        for raw in text[1:].split("/"):
            step = raw.replace("~1", "/").replace("~0", "~")
            value = here.value
            if is_object(value) and step in value:
                here = self.child(here, value[step], step)
            elif is_array(value) and step.isdecimal() and len(step) < 9 and int(step) < len(value):
                here = self.child(here, value[int(step)], step)
            else:
                return None
        return here

    def resolve_dynamic(self, reference: str, at: Location) -> Location | None:
        """Finds where a `$dynamicRef` leads, when this document leaves it only one place to lead to."""
        anchor = reference.partition("#")[2]
        return self.resolve(reference, at) if self._dynamic.get(unquote(anchor), 0) <= 1 else None

    def _located(self, value: object, base: str, pointer: tuple[str, ...]) -> Location:
        schema = as_object(value)
        identifier = schema.get("$id") if schema is not None else None
        # In draft-07 a `$ref` hides its siblings, a `$id` included.
        if schema is not None and isinstance(identifier, str) and not (self._legacy and "$ref" in schema):
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
            stack.extend(reversed(self._subschemas(here, schema)))

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
                if keyword == "$dynamicAnchor":
                    self._dynamic[anchor] = self._dynamic.get(anchor, 0) + 1
        self._modern_used = self._modern_used or any(word in schema for word in _MODERN_KEYWORDS)
        old = any(word in schema for word in _LEGACY_KEYWORDS) or isinstance(schema.get("items"), list)
        self._legacy_used = self._legacy_used or old

    def _subschemas(self, here: Location, schema: dict[str, object]) -> list[Location]:
        found: list[Location] = []
        for word, value in schema.items():
            if word in _ONE_SCHEMA and as_object(value) is not None:
                found.append(self.child(here, value, word))
            if word in _LIST_OF_SCHEMAS:
                found.extend(self.child(here, item, word) for item in as_list(value))
            if word in _MAP_OF_SCHEMAS:
                found.extend(self.child(here, item, word) for item in (as_object(value) or {}).values())
        return found
