"""Finds which schemas apply together to one value: `$ref`, allOf, anyOf, oneOf, if and dependents, multiplied out.

The result is a list of alternatives, each a plain conjunction of `Rules`. A value that the schemas
allow satisfies at least one of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from cellblock.types.typescript.document import TRUE, Document, Location, as_list, as_object
from cellblock.types.typescript.keywords import (
    ArrayRules,
    Branch,
    ObjectRules,
    Rules,
    is_schema,
    read_choices,
    read_rules,
)
from cellblock.types.typescript.limits import MAX_ALTERNATIVES, MAX_CONJUNCTS, Budget

_MAX_NESTING = 24
_NULL_ONLY = Rules(kinds=frozenset({"null"}))


@dataclass(slots=True)
class _Parsed:
    # Its key is an object's identity, which must not be given away again while this is held.
    at: Location
    rules: list[Rules] = field(default_factory=list[Rules])
    in_place: list[Location] = field(default_factory=list[Location])
    choices: list[list[Branch]] = field(default_factory=list[list[Branch]])


Alternative = tuple[Rules, ...]


class Alternatives:
    """Multiplies out the applicators of one document; keeps what it has read of each location."""

    def __init__(self, document: Document, budget: Budget) -> None:
        self._document = document
        self._budget = budget
        self._parsed: dict[tuple[object, ...], _Parsed] = {}

    def expand(self, locations: Sequence[Location]) -> list[Alternative]:
        """Gives the alternatives of the conjunction of `locations`; none when no value fits."""
        return self._expand(list(locations), set(), 0)

    def target(self, reference: str, here: Location) -> Location | None:
        """Finds where a `$ref` leads; a warning when that is nowhere in this document."""
        found = self._document.resolve(reference, here)
        if found is None:
            local = reference.startswith("#")
            why = "leads nowhere; any value is allowed" if local else "leaves the schema; it is not fetched"
            self._budget.warn(f'The reference "{reference[:120]}" {why}.', here)
        return found

    def _expand(self, start: Branch, seen: set[tuple[object, ...]], nesting: int) -> list[Alternative]:
        flat = self._flatten(start, seen)
        if flat is None:
            return []
        rules, choices = flat
        alternatives: list[Alternative] = [tuple(rules)] if _compatible(rules) else []
        if nesting > _MAX_NESTING or (choices and not self._budget.spend()):
            self._budget.warn(
                "Alternatives are nested too deeply; some are left out and any of them is allowed."
            )
            return alternatives
        for branches in choices:
            if not alternatives:
                break
            options = [one for branch in branches for one in self._expand(branch, set(seen), nesting + 1)]
            if (
                min(len(alternatives), len(options)) > 1
                and len(alternatives) * len(options) > MAX_ALTERNATIVES
            ):
                self._budget.warn(
                    "Too many alternatives combine; some are left out and any of them is allowed."
                )
                continue
            alternatives = [
                (*one, *other) for one in alternatives for other in options if _compatible((*one, *other))
            ]
        return alternatives

    def _flatten(
        self, start: Branch, seen: set[tuple[object, ...]]
    ) -> tuple[list[Rules], list[list[Branch]]] | None:
        rules: list[Rules] = []
        choices: list[list[Branch]] = []
        waiting: deque[Location | Rules] = deque(start)
        while waiting:
            here = waiting.popleft()
            if isinstance(here, Rules):
                rules.append(here)
                continue
            if here.value is False:
                return None
            # A schema that contains itself in place adds nothing the second time.
            if here.key in seen:
                continue
            if len(seen) >= MAX_CONJUNCTS:
                self._budget.warn("Too many schemas apply to one value; the rest is left out.", here)
                break
            seen.add(here.key)
            parsed = self._read(here)
            rules.extend(parsed.rules)
            choices.extend(parsed.choices)
            waiting.extendleft(reversed(parsed.in_place))
        return rules, choices

    def _read(self, here: Location) -> _Parsed:
        known = self._parsed.get(here.key)
        if known is not None:
            return known
        parsed = self._parsed[here.key] = _Parsed(here)
        schema = as_object(here.value)
        if schema is None:
            return parsed
        if schema.get("nullable") is True:
            plain = {key: value for key, value in schema.items() if key != "nullable"}
            parsed.choices.append([[Location(plain, here.base, here.pointer)], [_NULL_ONLY]])
            return parsed
        reference = schema.get("$ref")
        if isinstance(reference, str):
            found = self.target(reference, here)
            if found is not None:
                parsed.in_place.append(found)
            if self._document.refs_stand_alone:
                return parsed
        dynamic = schema.get("$dynamicRef")
        if isinstance(dynamic, str) and self._document.stated != "draft-07":
            found = self._document.resolve_dynamic(dynamic, here)
            if found is None:
                self._budget.warn("A $dynamicRef cannot be followed; any value is allowed.", here)
            else:
                parsed.in_place.append(found)
        elif isinstance(schema.get("$recursiveRef"), str):
            self._budget.warn("A $recursiveRef cannot be followed; any value is allowed.", here)
        document = self._document
        parsed.rules.append(read_rules(document, here, schema))
        unevaluated = unevaluated_rules(document, here, schema)
        if unevaluated is not None:
            parsed.rules.append(unevaluated)
        parts = enumerate(as_list(schema.get("allOf")))
        parsed.in_place.extend(document.child(here, part, "allOf", str(at)) for at, part in parts)
        parsed.choices.extend(read_choices(document, here, schema))
        return parsed


def _compatible(rules: Sequence[Rules]) -> bool:
    stated = [rule.kinds for rule in rules if rule.kinds is not None]
    return not stated or bool(frozenset[str].intersection(*stated))


@dataclass(slots=True)
class _Reach:
    keys: dict[str, Location] = field(default_factory=dict[str, Location])
    patterns: list[tuple[str, Location]] = field(default_factory=list[tuple[str, Location]])
    positions: int = 0
    all_properties: bool = False
    all_items: bool = False


def unevaluated_rules(document: Document, here: Location, schema: dict[str, Any]) -> Rules | None:
    """Returns what `unevaluatedProperties` and `unevaluatedItems` of a schema object forbid or demand, or None when
    that is nothing."""
    properties, items = schema.get("unevaluatedProperties"), schema.get("unevaluatedItems")
    if document.stated == "draft-07" or not (is_schema(properties) or is_schema(items)):
        return None
    reach = _reach(document, here)
    if reach is None:
        return None
    rules = Rules()
    if is_schema(properties) and not reach.all_properties:
        others = document.child(here, properties, "unevaluatedProperties")
        rules.objects = ObjectRules(reach.keys, reach.patterns, others, [])
    if is_schema(items) and not reach.all_items:
        others = document.child(here, items, "unevaluatedItems")
        rules.arrays = ArrayRules([TRUE] * reach.positions, others, 0, None)
    return rules


def _reach(document: Document, start: Location) -> _Reach | None:
    """Gives what the schemas in reach of one evaluate; None where that could be anything."""
    reach = _Reach()
    waiting, seen = [start], set[tuple[object, ...]]()
    while waiting:
        here = waiting.pop()
        schema = as_object(here.value)
        if schema is None or here.key in seen:
            continue
        if len(seen) >= MAX_CONJUNCTS or "$dynamicRef" in schema or "$recursiveRef" in schema:
            return None
        seen.add(here.key)
        _note(reach, schema, here is start)
        reference = schema.get("$ref")
        if isinstance(reference, str):
            found = document.resolve(reference, here)
            if found is None:
                return None
            waiting.append(found)
        for word in ("allOf", "anyOf", "oneOf"):
            waiting.extend(document.child(here, part, word) for part in as_list(schema.get(word)))
        waiting.extend(document.child(here, schema.get(word), word) for word in ("if", "then", "else"))
        for word in ("dependentSchemas", "dependencies"):
            parts = as_object(schema.get(word)) or {}
            waiting.extend(document.child(here, part, "dependentSchemas") for part in parts.values())
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
