"""A document knows where every `$ref` in one schema leads.

Only this document is ever looked at: a reference that leaves it stays unresolved, and nothing is fetched. So does one
within a part that has an `$id` of its own: these are rare, and their type is then unknown.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal
from urllib.parse import unquote

from cellblock.base.json import inside, is_array, is_object, pointer_steps
from cellblock.tools.schemas.keywords import subschemas

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
