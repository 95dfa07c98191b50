"""Finds which schemas apply together to one value: `$ref`, allOf, anyOf, oneOf and if, multiplied out.

The result is a list of alternatives, each a plain conjunction of `Rules`. A value that the schemas
allow satisfies at least one of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

from cellblock.types.typescript.document import Document, Location, as_list, as_object
from cellblock.types.typescript.keywords import Branch, Rules, read_choices, read_rules
from cellblock.types.typescript.limits import MAX_ALTERNATIVES, MAX_CONJUNCTS, Budget

_MAX_NESTING = 24
_NOT_FOLLOWED: Final = (
    "$dynamicRef",
    "$recursiveRef",
    "dependencies",
    "dependentSchemas",
    "unevaluatedItems",
    "unevaluatedProperties",
)
"""Holds the keywords that refuse values which the types here allow, rare as they are."""

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
            parsed.choices.append([[Location(plain, here.is_foreign, here.pointer)], [_NULL_ONLY]])
            return parsed
        reference = schema.get("$ref")
        if isinstance(reference, str):
            found = self.target(reference, here)
            if found is not None:
                parsed.in_place.append(found)
            if self._document.stated != "2020-12":
                return parsed
        for word in filter(schema.__contains__, _NOT_FOLLOWED):
            self._budget.warn(f"{word} is not followed here; more values may be allowed.", here)
        document = self._document
        parsed.rules.append(read_rules(document, here, schema))
        parts = enumerate(as_list(schema.get("allOf")))
        parsed.in_place.extend(document.child(here, part, "allOf", str(at)) for at, part in parts)
        parsed.choices.extend(read_choices(document, here, schema))
        return parsed


def _compatible(rules: Sequence[Rules]) -> bool:
    stated = [rule.kinds for rule in rules if rule.kinds is not None]
    return not stated or bool(frozenset[str].intersection(*stated))
