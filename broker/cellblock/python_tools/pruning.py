"""Makes pydantic's schemas short for a model's context: no titles, and definitions where they are used."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from cellblock.base.json import is_array, is_object
from cellblock.schemas.keywords import BELOW_LIST, BELOW_ONE, IN_PLACE_LIST, IN_PLACE_ONE, MAPS, subschemas

MAX_INLINED_SCHEMAS: Final = 2_000
"""Bounds the subschemas after inlining: definitions that use each other twice double at every step. Past it, all of
them stay in `$defs`."""

_PREFIX: Final = "#/$defs/"
_ONE: Final = IN_PLACE_ONE | BELOW_ONE
_LISTS: Final = IN_PLACE_LIST | BELOW_LIST


def prune_titles(schema: Any) -> Any:
    """Gives a copy without the `title` of any subschema; a property that is called `title` stays, and so does data."""
    if not is_object(schema):
        return schema
    return _rebuilt({key: value for key, value in schema.items() if key != "title"}, prune_titles)


def inline_definitions(schema: dict[str, Any]) -> dict[str, Any]:
    """Gives a copy with each definition in place of the references to it, except where it is recursive.

    What is recursive stays in `$defs`. The root itself is never a reference: a recursive one is spelled out once
    there. References that are not to the schema's own `$defs` are left alone.
    """
    definitions: dict[str, Any] = schema.get("$defs") or {}
    if not definitions:
        return dict(schema)
    body = {key: value for key, value in schema.items() if key != "$defs"}
    inliner = _Inliner(definitions)
    if inliner.size(body) > MAX_INLINED_SCHEMAS:
        inliner.kept = set(definitions)
    whole = inliner.inlined(body)
    name = _name_of(whole)
    if name in definitions:
        whole = {**inliner.inlined(definitions[name]), **_without_reference(whole)}
    used = inliner.used(whole)
    if used:
        whole["$defs"] = {name: inliner.inlined(definitions[name]) for name in definitions if name in used}
    return whole


class _Inliner:
    def __init__(self, definitions: dict[str, Any]) -> None:
        self._definitions = definitions
        self._direct = {name: set(_references(body)) for name, body in definitions.items()}
        self.kept = {name for name in definitions if name in self._reachable(self._direct[name])}
        self._sizes: dict[str, int] = {}

    def size(self, schema: Any) -> int:
        """Gives subschemas after inlining, counted without making them."""
        total = 0
        for part in _walk(schema):
            total += 1
            name = _name_of(part)
            if name in self._definitions and name not in self.kept:
                if name not in self._sizes:
                    self._sizes[name] = self.size(self._definitions[name])
                total += self._sizes[name]
        return total

    def inlined(self, schema: Any) -> Any:
        if not is_object(schema):
            return schema
        name = _name_of(schema)
        if name in self._definitions and name not in self.kept:
            # Keywords beside a reference are a default or a description: they say more than the definition.
            return self.inlined({**self._definitions[name], **_without_reference(schema)})
        return _rebuilt(schema, self.inlined)

    def used(self, schema: Any) -> set[str]:
        """Definitions that the inlined schema still needs."""
        return self._reachable(set(_references(schema))) & self.kept

    def _reachable(self, names: set[str]) -> set[str]:
        found: set[str] = set()
        left = list(names)
        while left:
            name = left.pop()
            if name in self._definitions and name not in found:
                found.add(name)
                left += self._direct[name]
        return found


def _rebuilt(schema: dict[str, Any], change: Callable[[Any], Any]) -> dict[str, Any]:
    """Gives a copy with every direct subschema changed; data, such as a default, is left as it is."""
    made: dict[str, Any] = {}
    for key, value in schema.items():
        if key in MAPS and is_object(value):
            made[key] = {name: change(part) for name, part in value.items()}
        elif key in _LISTS and is_array(value):
            made[key] = [change(part) for part in value]
        elif key in _ONE and is_object(value):
            made[key] = change(value)
        else:
            made[key] = value
    return made


def _walk(schema: Any) -> Iterator[dict[str, Any]]:
    """Gives the schema and all its subschemas."""
    if is_object(schema):
        yield schema
        for _, _, part in subschemas(schema):
            yield from _walk(part)


def _references(schema: Any) -> Iterator[str]:
    for part in _walk(schema):
        name = _name_of(part)
        if name is not None:
            yield name


def _name_of(schema: dict[str, Any]) -> str | None:
    reference: object = schema.get("$ref")
    if isinstance(reference, str) and reference.startswith(_PREFIX):
        return reference.removeprefix(_PREFIX)
    return None


def _without_reference(schema: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in schema.items() if key != "$ref"}
