"""Writes doc comments of properties, from the annotations and constraints that a type cannot say."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from cellblock.tools.schemas.document import Document, Location, as_list, as_object
from cellblock.types.typescript.limits import (
    MAX_DOC_CHARS_PER_TOOL,
    MAX_DOC_VALUE,
    MAX_EXAMPLES,
    MAX_PROPERTY_DESCRIPTION,
)
from cellblock.types.typescript.text import comment_lines, json_line, letters

_CONSTRAINT_WORDS = """
format pattern minLength maxLength minimum maximum exclusiveMinimum exclusiveMaximum multipleOf minItems maxItems
uniqueItems minContains maxContains minProperties maxProperties contentEncoding contentMediaType
"""
_CONSTRAINTS = _CONSTRAINT_WORDS.split()
_SHOWN_SCHEMAS = ("not", "if", "contains", "propertyNames")
_MAX_SOURCES = 8


class Docs:
    """Writes the doc lines of the properties of one schema, within a budget for all of them together."""

    def __init__(self, document: Document) -> None:
        self._document = document
        self._left = MAX_DOC_CHARS_PER_TOOL

    def of_property(self, key: str, locations: Sequence[Location]) -> tuple[list[str], list[str]]:
        """Gives lines safe for a comment about the value at `locations`: its description, and the facts that its type
        does not say; empty when the budget is spent."""
        sources = self._sources(locations) if self._left > 0 else []
        prose, facts = _description(sources, key), _facts(sources)
        self._left -= sum(map(len, prose)) + sum(map(len, facts))
        return prose, facts

    def of_root(self, location: Location) -> tuple[str, ...]:
        """Gives the constraints of a whole schema as lines safe for a comment, without its description."""
        return tuple(_facts(self._sources([location])))

    def _sources(self, locations: Sequence[Location]) -> list[dict[str, Any]]:
        """Gives the schemas that describe one value: as written, then behind `$ref`, allOf and a nullable union."""
        found: list[dict[str, Any]] = []
        waiting = list(locations)
        seen: set[tuple[object, ...]] = set()
        while waiting and len(found) < _MAX_SOURCES:
            here = waiting.pop(0)
            schema = as_object(here.value)
            if schema is None or here.key in seen:
                continue
            seen.add(here.key)
            found.append(schema)
            reference = schema.get("$ref")
            target = self._document.resolve(reference, here) if isinstance(reference, str) else None
            if target is not None:
                waiting.append(target)
            unions = (as_list(schema.get(word)) for word in ("anyOf", "oneOf"))
            branches = [branch for union in unions for branch in union if branch != {"type": "null"}]
            parts = [*as_list(schema.get("allOf")), *(branches if len(branches) == 1 else [])]
            waiting.extend(self._document.child(here, part, "allOf") for part in parts)
        return found


def _description(sources: list[dict[str, Any]], key: str) -> list[str]:
    # A title behind a reference is the name of the type, and not about this property.
    for word, schemas in (("description", sources), ("title", sources[:1])):
        for schema in schemas:
            text = schema.get(word)
            # Generators title a property by its own key, which tells nobody anything.
            if (
                isinstance(text, str)
                and text.strip()
                and letters(text[:MAX_PROPERTY_DESCRIPTION]) != letters(key[:MAX_PROPERTY_DESCRIPTION])
            ):
                return comment_lines(text.strip(), MAX_PROPERTY_DESCRIPTION)
    return []


def _facts(sources: list[dict[str, Any]]) -> list[str]:
    merged: dict[str, Any] = {}
    for schema in reversed(sources):
        merged.update(schema)
    lines = [f"@{word}{value}" for word, value in _constraints(merged)]
    if merged.get("type") == "integer":
        lines.append("@type integer")
    about = [word + value for word, value in _constraints(as_object(merged.get("items")) or {})]
    if about:
        lines.append("Items: " + ", ".join(about))
    lines.extend(
        f"@{word} {_shown(merged[word])}" for word in _SHOWN_SCHEMAS if isinstance(merged.get(word), dict)
    )
    if "default" in merged:
        lines.append(f"@default {_shown(merged['default'])}")
    examples = as_list(merged.get("examples")) or ([merged["example"]] if "example" in merged else [])
    lines.extend(f"@example {_shown(example)}" for example in examples[:MAX_EXAMPLES])
    lines.extend(f"@{word}" for word in ("deprecated", "readOnly", "writeOnly") if merged.get(word) is True)
    return lines


def _constraints(schema: dict[str, Any]) -> list[tuple[str, str]]:
    """Returns the keywords that a type does not say, with their values as text behind a blank (none behind a plain
    `true`)."""
    return [
        (word, "" if schema[word] is True else f" {_shown(schema[word])}")
        for word in _CONSTRAINTS
        if isinstance(schema.get(word), str | int | float) and schema[word] is not False
    ]


def _shown(value: Any) -> str:
    """Gives a JSON value as one short line."""
    return json_line(value[: MAX_DOC_VALUE * 4] if isinstance(value, str) else value, MAX_DOC_VALUE)
