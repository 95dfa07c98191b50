"""Bounds how much work it is to check a value against a schema, before the checking starts.

The checker is native code that cannot be stopped and runs on the event loop, and both the schema (from an
upstream server) and the value (from a script) may be made to exhaust it: references that double at each of 24
levels fit in 2 KB and take 2**24 steps. So the work is bounded first, for each depth of the value: every schema
object costs what its own keywords cost, plus what it applies in place, plus the dearest it applies one level down.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import reduce
from typing import Any, Final, NamedTuple
from urllib.parse import unquote

from cellblock.base.json import inside, is_array, is_object, pointer_steps
from cellblock.tools.schemas import patterns
from cellblock.tools.schemas.keywords import Place, subschemas

MAX_VALUES: Final = 200_000
"""Sets the most JSON values in an input that is checked on the loop."""

KEPT_CHARS: Final = 500
KEPT_ITEMS: Final = 10


class NotCheckable(Exception):
    """Tells that the cost of a schema or value has no bound, or too high a one; the text says why."""


class Level(NamedTuple):
    """Counts what lies at one depth of a value: values, characters of texts and keys, sum of squared array lengths."""

    values: int
    chars: int
    squares: int


def measured(value: Any, max_values: int = MAX_VALUES) -> list[Level]:
    """Sizes a value, depth by depth.

    Raises:
        NotCheckable: Over `max_values`.
    """
    levels: list[Level] = []
    level: list[Any] = [value]
    count = keys = 0
    while level:
        count += len(level)
        chars, squares = keys, 0
        keys = 0
        below: list[Any] = []
        for item in level:
            if isinstance(item, str):
                chars += len(item)
            elif is_object(item):
                for key in item:
                    keys += len(key)
                below += item.values()
            elif is_array(item):
                squares += len(item) ** 2
                below += item
            if count + len(below) > max_values:
                raise NotCheckable(f"it has over {max_values} values")
        # A key is matched both by its object's patterns and, as a value, by propertyNames.
        levels.append(Level(len(level), chars + keys, squares))
        level = below
    return levels


def abridged(value: Any, path: tuple[str | int, ...], cut: set[tuple[str | int, ...]]) -> Any:
    """Copies a value with long texts and arrays cut off, and notes where. Recursion ends with the input's capped
    depth."""
    if isinstance(value, str):
        if len(value) > KEPT_CHARS:
            cut.add(path)
            return value[:KEPT_CHARS]
        return value
    if is_array(value):
        if len(value) > KEPT_ITEMS:
            cut.add(path)
        return [abridged(item, (*path, index), cut) for index, item in enumerate(value[:KEPT_ITEMS])]
    if is_object(value):
        return {key: abridged(item, (*path, key), cut) for key, item in value.items()}
    return value


MAX_SCHEMA_VALUES: Final = 10_000
"""Sets the most JSON values in a schema; compiling takes about 3 us for each."""
MAX_SCHEMA_DEPTH: Final = 200
"""Sets the deepest nesting of a schema's JSON."""
MAX_IN_PLACE: Final = 64
"""Sets the longest chain of subschemas that apply to one value: native recursion without a bound ends the process."""
MAX_PATTERNS: Final = 30
"""Sets the most different regular expressions of a schema that are checked; compiling one takes up to 1 ms."""
MAX_TABLE_STEPS: Final = 40_000
"""Bounds the additions spent on one schema's table of costs, over its life: about 30 ms."""
_CEILING: Final = 10**12
_STATE_STEPS: Final = 10
_MATCH: Final[dict[str, Any]] = {}  # stands for matching one property name with one pattern
_LISTED: Final = frozenset(
    {"properties", "patternProperties", "required", "dependentRequired", "dependentSchemas", "dependencies"}
)


@dataclass(slots=True)
class _Node:
    own: tuple[int, int, int] = (1, 0, 0)
    in_place: list[int] = field(default_factory=list[int])
    one_below: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    all_below: list[int] = field(default_factory=list[int])


@dataclass(frozen=True, slots=True)
class Work:
    """Holds the cost of one value: keyword steps; steps for each 30 characters of its texts; `uniqueItems` keywords."""

    steps: int
    text: int
    unique: int


class SchemaCost:
    """Tabulates the costs of one schema.

    Args:
        root: The schema object.
        draft4: Whether `id` identifies, as it does in draft 4 only.

    Raises:
        NotCheckable: Too large, endless, or with references that cannot be followed inside the schema.
    """

    def __init__(self, root: dict[str, Any], *, draft4: bool = False) -> None:
        self._root = root
        self._id = "id" if draft4 else "$id"
        self._index: dict[int, int] = {}
        self._schemas: list[dict[str, Any]] = []
        self._nodes: list[_Node] = []
        self.unusable: set[str] = set()
        """Holds patterns that cannot be matched in bounded time."""
        self.has_alternatives = False
        """Says whether there is an `anyOf` or `oneOf`."""
        self._patterns: set[str] = set()
        self._embeds = False
        _count(root)
        self._walk()
        self._order = self._sorted()
        self._levels: list[list[tuple[int, int, int]]] = []
        self._works: list[Work] = []
        self._steps_left = MAX_TABLE_STEPS
        self._edges = sum(
            1 + len(node.in_place) + len(node.all_below) + sum(map(len, node.one_below.values()))
            for node in self._nodes
        )
        self.at(0)

    def is_schema(self, part: dict[str, Any]) -> bool:
        """Says whether this very object of the schema stands where a schema stands."""
        return id(part) in self._index

    def at(self, depth: int) -> Work:
        """Gives the cost for each value that lies `depth` levels under the root value.

        Raises:
            NotCheckable: The table would take too long to make.
        """
        if depth < len(self._works):
            return self._works[depth]
        while len(self._levels) <= depth:
            above = self._levels[-1] if self._levels else None
            if above is not None and not any(map(any, above)):
                return Work(0, 0, 0)  # No part of the schema reaches so deep.
            self._steps_left -= self._edges
            if self._levels and self._steps_left < 0:
                raise NotCheckable("the schema is too large for a value nested this deep")
            self._levels.append(self._level(above))
            self._works.append(Work(*self._levels[-1][0]))
        return self._works[depth]

    # ---- the graph -------------------------------------------------------------------------------------

    def _walk(self) -> None:
        self._add(self._root)
        anchors: dict[str, int] = {}
        references: list[tuple[int, str]] = []
        position = 0
        while position < len(self._schemas):
            schema, node = self._schemas[position], self._nodes[position]
            node.own = self._own(schema)
            for keyword, place, part in subschemas(schema):
                index = self._add(part)
                if place is Place.IN_PLACE:
                    node.in_place.append(index)
                elif place is Place.ONE_BELOW:
                    node.one_below.setdefault(keyword, []).append(index)
                elif place is Place.ALL_BELOW:
                    node.all_below.append(index)
            named = schema.get("patternProperties")
            if is_object(named):
                node.all_below += [self._add(_MATCH)] * len(named)
            self._note(position, schema, anchors, references)
            if position + 1 == len(self._schemas):
                self._resolve(references, anchors)
            position += 1
        for schema, node in zip(self._schemas, self._nodes, strict=True):
            if "unevaluatedProperties" in schema or "unevaluatedItems" in schema:
                node.in_place *= 2  # What was evaluated is found by evaluating again.

    def _add(self, schema: dict[str, Any]) -> int:
        index = self._index.get(id(schema))
        if index is None:
            index = self._index[id(schema)] = len(self._schemas)
            self._schemas.append(schema)
            self._nodes.append(_Node())
        return index

    def _note(
        self,
        position: int,
        schema: dict[str, Any],
        anchors: dict[str, int],
        references: list[tuple[int, str]],
    ) -> None:
        self.has_alternatives |= "anyOf" in schema or "oneOf" in schema
        for keyword in ("$dynamicRef", "$recursiveRef"):
            if keyword in schema:
                raise NotCheckable(f"it uses {keyword}")
        identity = schema.get(self._id)
        if isinstance(identity, str):
            if identity.startswith("#"):
                anchors[identity[1:]] = position
            elif position:
                self._embeds = True
        for keyword in ("$anchor", "$dynamicAnchor"):
            if isinstance(schema.get(keyword), str):
                anchors[schema[keyword]] = position
        if isinstance(schema.get("$ref"), str):
            references.append((position, schema["$ref"]))

    def _resolve(self, references: list[tuple[int, str]], anchors: dict[str, int]) -> None:
        if references and self._embeds:
            raise NotCheckable("it holds another schema document and has references")
        base = self._root.get(self._id)
        base = base.removesuffix("#") if isinstance(base, str) else None
        for position, reference in references:
            rest = reference.removeprefix(base) if base else reference
            if rest and not rest.startswith("#"):
                raise NotCheckable("it refers to another document, and none is ever fetched")
            fragment = unquote(rest[1:])
            if fragment in anchors:
                target = anchors[fragment]
            elif fragment and not fragment.startswith("/"):
                raise NotCheckable("one of its references leads nowhere")
            else:
                target = self._add(self._find(rest[1:]))
            self._nodes[position].in_place.append(target)
        references.clear()

    def _find(self, pointer: str) -> dict[str, Any]:
        try:
            value = reduce(inside, pointer_steps(pointer), self._root)
        except LookupError:
            value = None
        if isinstance(value, bool):
            return {}
        if not is_object(value):
            raise NotCheckable("one of its references leads nowhere")
        return value

    # ---- costs -----------------------------------------------------------------------------------------

    def _own(self, schema: dict[str, Any]) -> tuple[int, int, int]:
        """Gives the cost of a schema object's own keywords."""
        steps, text = 1, 0
        for keyword, value in schema.items():
            steps += 1
            if keyword in ("enum", "const"):
                # Comparing objects takes about ten times as long as comparing texts.
                steps += _count(value) * 5
            elif keyword in _LISTED and (is_object(value) or is_array(value)):
                steps += len(value)
            if keyword == "pattern" and isinstance(value, str):
                text += self._automaton(value)
            elif keyword in ("minLength", "maxLength"):
                text += 1
            elif keyword == "patternProperties" and is_object(value):
                for pattern in value:
                    text += self._automaton(pattern)
                    if pattern in self.unusable:
                        raise NotCheckable("a regular expression of patternProperties has no bounded cost")
        return steps, text, 1 if schema.get("uniqueItems") is True else 0

    def _automaton(self, pattern: str) -> int:
        if pattern not in self._patterns:
            self._patterns.add(pattern)
            if len(self._patterns) > MAX_PATTERNS or not patterns.is_usable(pattern):
                self.unusable.add(pattern)
        return 0 if pattern in self.unusable else patterns.states(pattern) * _STATE_STEPS

    def _sorted(self) -> list[int]:
        """Gives the schema objects, each after those that it applies in place."""
        waiting = [0] * len(self._nodes)
        users: list[list[int]] = [[] for _ in self._nodes]
        for index, node in enumerate(self._nodes):
            waiting[index] = len(node.in_place)
            for target in node.in_place:
                users[target].append(index)
        order = [index for index, count in enumerate(waiting) if count == 0]
        chain = [1] * len(self._nodes)
        for index in order:
            for user in users[index]:
                chain[user] = max(chain[user], chain[index] + 1)
                waiting[user] -= 1
                if waiting[user] == 0:
                    order.append(user)
        if len(order) < len(self._nodes):
            raise NotCheckable("it applies itself to the same value without end")
        self.in_place_depth = max(chain)
        """Counts the longest chain of schema objects that apply to one value."""
        if self.in_place_depth > MAX_IN_PLACE:
            raise NotCheckable(f"over {MAX_IN_PLACE} of its parts are nested on one value")
        return order

    def _level(self, above: list[tuple[int, int, int]] | None) -> list[tuple[int, int, int]]:
        costs: list[tuple[int, int, int]] = [(0, 0, 0)] * len(self._nodes)
        for index in self._order:
            node = self._nodes[index]
            steps, text, unique = node.own if above is None else (0, 0, 0)
            parts = [costs[target] for target in node.in_place]
            if above is not None:
                parts += [above[target] for target in node.all_below]
                for targets in node.one_below.values():
                    group = [above[target] for target in targets]
                    parts.append(
                        (max(c[0] for c in group), max(c[1] for c in group), max(c[2] for c in group))
                    )
            for part in parts:
                steps += part[0]
                text += part[1]
                unique += part[2]
            costs[index] = (min(steps, _CEILING), min(text, _CEILING), min(unique, _CEILING))
        return costs


def _count(value: Any) -> int:
    """Counts the JSON values in `value`."""
    try:
        levels = measured(value, MAX_SCHEMA_VALUES)
    except TypeError:
        raise NotCheckable("one of its names is no text") from None
    if len(levels) > MAX_SCHEMA_DEPTH:
        raise NotCheckable(f"it is nested over {MAX_SCHEMA_DEPTH} levels deep")
    return sum(level.values for level in levels)
