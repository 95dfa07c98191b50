"""Reads `unevaluatedProperties` and `unevaluatedItems` as if every branch in reach had been taken.

What a validator calls evaluated depends on the branches a value passes. The union over all of them is what
the keyword leaves alone at most, so a type made from it is never too narrow.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from cellblock.catalog.typescript.document import TRUE, Document, Location, as_list, as_object
from cellblock.catalog.typescript.keywords import ArrayRules, ObjectRules, Rules, is_schema
from cellblock.catalog.typescript.limits import MAX_CONJUNCTS


@dataclass(slots=True)
class _Reach:
    keys: dict[str, Location] = field(default_factory=dict[str, Location])
    patterns: list[tuple[str, Location]] = field(default_factory=list[tuple[str, Location]])
    positions: int = 0
    all_properties: bool = False
    all_items: bool = False


def unevaluated_rules(document: Document, here: Location, schema: dict[str, Any]) -> Rules | None:
    """Gives what the two keywords of this schema object forbid or demand, or None when that is nothing."""
    properties, items = schema.get("unevaluatedProperties"), schema.get("unevaluatedItems")
    if document.stated == "draft-07" or not (is_schema(properties) or is_schema(items)):
        return None
    reach = _reach(document, here)
    rules = Rules()
    if is_schema(properties) and not reach.all_properties:
        others = document.child(here, properties, "unevaluatedProperties")
        rules.objects = ObjectRules(reach.keys, reach.patterns, others, [])
    if is_schema(items) and not reach.all_items:
        others = document.child(here, items, "unevaluatedItems")
        rules.arrays = ArrayRules([TRUE] * reach.positions, others, 0, None)
    return rules


def _reach(document: Document, start: Location) -> _Reach:
    reach = _Reach()
    waiting, seen = [start], set[tuple[object, ...]]()
    while waiting:
        here = waiting.pop()
        schema = as_object(here.value)
        if schema is None or here.key in seen:
            continue
        if len(seen) >= MAX_CONJUNCTS or "$dynamicRef" in schema or "$recursiveRef" in schema:
            reach.all_properties = reach.all_items = True
            return reach
        seen.add(here.key)
        _note(reach, schema, here is start)
        reference = schema.get("$ref")
        if isinstance(reference, str):
            found = document.resolve(reference, here)
            if found is None:
                reach.all_properties = reach.all_items = True
                return reach
            waiting.append(found)
        for word in ("allOf", "anyOf", "oneOf"):
            waiting.extend(document.child(here, part, word) for part in as_list(schema.get(word)))
        waiting.extend(document.child(here, schema.get(word), word) for word in ("if", "then", "else"))
        dependents = as_object(schema.get("dependentSchemas")) or {}
        legacy = as_object(schema.get("dependencies")) or {}
        parts = (*dependents.values(), *legacy.values())
        waiting.extend(document.child(here, part, "dependentSchemas") for part in parts)
    return reach


def _note(reach: _Reach, schema: dict[str, Any], own: bool) -> None:
    for key in as_object(schema.get("properties")) or {}:
        reach.keys.setdefault(str(key), TRUE)
    reach.patterns.extend((str(key), TRUE) for key in as_object(schema.get("patternProperties")) or {})
    # `false` evaluates nothing that a value could still have; anything else evaluates all there is.
    more = [schema.get("additionalProperties")] + ([] if own else [schema.get("unevaluatedProperties")])
    reach.all_properties = reach.all_properties or any(word not in (None, False) for word in more)
    items = schema.get("items")
    prefix = schema.get("prefixItems")
    if isinstance(items, list):
        reach.positions = max(reach.positions, len(as_list(schema["items"])))
        items = schema.get("additionalItems")
    if isinstance(prefix, list):
        reach.positions = max(reach.positions, len(as_list(schema["prefixItems"])))
    others = [items, schema.get("contains")] + ([] if own else [schema.get("unevaluatedItems")])
    reach.all_items = reach.all_items or any(word not in (None, False) for word in others)
