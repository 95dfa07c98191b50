"""Finds which schemas apply together to one value: `$ref`, allOf, anyOf, oneOf, if and dependents, multiplied out.

The result is a list of alternatives, each a plain conjunction of `Rules`. A value that the schemas
allow satisfies at least one of them.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field

from cellblock.catalog.typescript.budget import Budget
from cellblock.catalog.typescript.document import Document, Location, as_list, as_object
from cellblock.catalog.typescript.keywords import Branch, Rules, read_choices, read_rules
from cellblock.catalog.typescript.limits import MAX_ALTERNATIVES, MAX_CONJUNCTS
from cellblock.catalog.typescript.unevaluated import unevaluated_rules

_MAX_NESTING = 24
_NULL_ONLY = Rules(kinds=frozenset({"null"}))


@dataclass(slots=True)
class _Parsed:
    rules: list[Rules] = field(default_factory=list[Rules])
    in_place: list[Location] = field(default_factory=list[Location])
    choices: list[list[Branch]] = field(default_factory=list[list[Branch]])


Alternative = tuple[Rules, ...]


class Alternatives:
    """Multiplies out the applicators of one document; keeps what it has read of each location."""

    def __init__(self, document: Document, budget: Budget) -> None:
        self._document = document
        self._budget = budget
        self._parsed: dict[tuple[object, ...], tuple[Location, _Parsed]] = {}

    def of(self, locations: Sequence[Location]) -> list[Alternative]:
        """Gives the alternatives of the conjunction of `locations`; none when no value fits."""
        return self._expand(list(locations), set(), 0)

    def target(self, reference: str, here: Location) -> Location | None:
        """Finds where a `$ref` leads; a warning when that is nowhere in this document."""
        found = self._document.resolve(reference, here)
        if found is None:
            shown = reference[:120]
            if reference.startswith("#"):
                self._budget.warn(f'The reference "{shown}" leads nowhere; any value is allowed.', here)
            else:
                self._budget.warn(f'The reference "{shown}" leaves the schema; it is not fetched.', here)
        return found

    def _expand(self, start: Branch, seen: set[tuple[object, ...]], nesting: int) -> list[Alternative]:
        rules, choices, possible = self._flatten(start, seen)
        if not possible:
            return []
        alternatives: list[Alternative] = [tuple(rules)] if _compatible(rules) else []
        if nesting > _MAX_NESTING or (choices and not self._budget.spend()):
            self._budget.warn(
                "Alternatives are nested too deeply; some are left out and any of them is allowed."
            )
            return alternatives
        for branches in choices:
            if not alternatives:
                break
            options: list[Alternative] = []
            for branch in branches:
                options.extend(self._expand(branch, set(seen), nesting + 1))
            if (
                len(alternatives) > 1
                and len(options) > 1
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
    ) -> tuple[list[Rules], list[list[Branch]], bool]:
        rules: list[Rules] = []
        choices: list[list[Branch]] = []
        waiting: deque[Location | Rules] = deque(start)
        while waiting:
            here = waiting.popleft()
            if isinstance(here, Rules):
                rules.append(here)
                continue
            if here.value is False:
                return [], [], False
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
        return rules, choices, True

    def _read(self, here: Location) -> _Parsed:
        known = self._parsed.get(here.key)
        if known is not None:
            return known[1]
        parsed = _Parsed()
        # The location is kept too: its key is an object's identity, which must not be given away again.
        self._parsed[here.key] = (here, parsed)
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
        self._read_dynamic(parsed, here, schema.get("$dynamicRef"), schema.get("$recursiveRef"))
        document = self._document
        parsed.rules.append(read_rules(document, here, schema))
        unevaluated = unevaluated_rules(document, here, schema)
        if unevaluated is not None:
            parsed.rules.append(unevaluated)
        parts = enumerate(as_list(schema.get("allOf")))
        parsed.in_place.extend(document.child(here, part, "allOf", str(at)) for at, part in parts)
        parsed.choices.extend(read_choices(document, here, schema))
        return parsed

    def _read_dynamic(self, parsed: _Parsed, here: Location, dynamic: object, recursive: object) -> None:
        if isinstance(dynamic, str) and self._document.stated != "draft-07":
            found = self._document.resolve_dynamic(dynamic, here)
            if found is None:
                self._budget.warn("A $dynamicRef cannot be followed; any value is allowed.", here)
            else:
                parsed.in_place.append(found)
        elif isinstance(recursive, str):
            self._budget.warn("A $recursiveRef cannot be followed; any value is allowed.", here)


def _compatible(rules: Sequence[Rules]) -> bool:
    kinds: frozenset[str] | None = None
    for rule in rules:
        if rule.kinds is not None:
            kinds = rule.kinds if kinds is None else kinds & rule.kinds
    return kinds is None or bool(kinds)
