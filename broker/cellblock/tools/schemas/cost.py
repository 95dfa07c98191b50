"""Bounds how much work it is to check a value against a schema, before the checking starts.

The checker is native code that cannot be stopped and runs on the event loop, and both the schema (from an
upstream server) and the value (from a script) may be made to exhaust it: references that double at each of 24
levels fit in 2 KB and take 2**24 steps. So the work is bounded first, for each depth of the value: every schema
object costs what its own keywords cost, plus what it applies in place, plus the dearest it applies one level down.

A `pattern` is hostile until shown otherwise, too. The automaton engine matches in time proportional to text x states
and knows no lookaround or back-reference; a pattern that it cannot take is left unchecked, as a backtracking engine has
no bound that holds (a step limit is per start position: `(?=a)(a+)+$` with a limit of 10,000 steps still takes 3 s on
100 KB).
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Set
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from graphlib import CycleError, TopologicalSorter
from itertools import chain, islice
from math import isqrt
from typing import Any, Final, NamedTuple

import jsonschema_rs

from cellblock.base.json import is_array, is_object
from cellblock.tools.schemas.document import Applies, Document, subschemas

MAX_VALUES: Final = 200_000
"""Sets the most JSON values in an input that is checked on the loop."""

_UNHASHED: Final = 2**63

KEPT_CHARS: Final = 500
KEPT_ITEMS: Final = 10
KEPT_MEMBERS: Final = 1_000
"""Bound what is left of each text, array and object of a large input, for the explanation of what is wrong."""


class NotCheckable(Exception):
    """Tells that the cost of a schema or value has no bound, or too high a one; the text says why."""


class Level(NamedTuple):
    """Counts what lies at one depth of a value: values, characters of texts and keys, comparisons between the items of
    arrays."""

    values: int
    chars: int
    squares: int


def measured(value: Any, max_values: int = MAX_VALUES) -> list[Level]:
    """Sizes a value, depth by depth.

    Raises:
        NotCheckable: Over `max_values`.
    """
    levels: list[Level] = []
    has_big = False
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
            elif isinstance(item, int):
                has_big = has_big or abs(item) >= _UNHASHED
            if count + len(below) > max_values:
                raise NotCheckable(f"it has over {max_values} values")
        # A key is matched both by its object's patterns and, as a value, by propertyNames.
        levels.append(Level(len(level), chars + keys, squares))
        level = below
    # The items of an array are told apart by their hashes, but for integers of over 64 bits.
    return levels if has_big else [level._replace(squares=isqrt(level.squares)) for level in levels]


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
        if len(value) > KEPT_MEMBERS:
            cut.add(path)
        return {key: abridged(item, (*path, key), cut) for key, item in islice(value.items(), KEPT_MEMBERS)}
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


class Work(NamedTuple):
    """Holds the cost of one value: keyword steps; steps for each 30 characters of its texts; `uniqueItems` keywords."""

    steps: int = 0
    text: int = 0
    unique: int = 0


_ONE_STEP: Final = Work(1)
_NO_WORK: Final = Work()

MAX_SOON: Final = 8
"""Bounds the levels that are looked at for the most that a value costs."""


@dataclass(slots=True, eq=False)
class _Node:
    """Holds one schema object, with what it applies, and what it costs at each depth of a value."""

    schema: dict[str, Any]
    own: Work = _ONE_STEP
    in_place: list[_Node] = field(default_factory=list["_Node"])
    one_below: dict[str, list[_Node]] = field(default_factory=dict[str, list["_Node"]])
    all_below: list[_Node] = field(default_factory=list["_Node"])
    is_unsure: bool = False
    """Says whether something that it asks for is not checked: it takes more than it says."""

    costs: list[Work] = field(default_factory=list[Work])

    def targets(self) -> Iterator[_Node]:
        return chain(self.in_place, self.all_below, *self.one_below.values())


class SchemaCost:
    """Tabulates the costs of one schema.

    Args:
        root: The schema object.
        draft4: Whether `id` identifies, as it does in draft 4 only.
        odd: Keywords with values that they cannot have, each with the `id` of its schema object: they are not checked.

    Attributes:
        unusable: Patterns that cannot be matched in bounded time.
        unfollowed: References that lead out of the schema, or nowhere.
        has_alternatives: Whether there is an `anyOf` or `oneOf`.

    Raises:
        NotCheckable: Too large, or endless.
    """

    def __init__(
        self, root: dict[str, Any], *, draft4: bool = False, odd: Set[tuple[int, str]] = frozenset()
    ) -> None:
        self.odd = odd
        self._id = "id" if draft4 else "$id"
        self._document = Document(root, self._id)
        self._nodes: list[_Node] = []
        self._node_of: dict[int, _Node] = {}
        self.unusable: set[str] = set()
        self.unfollowed: set[str] = set()
        self.has_alternatives = False
        self._patterns: set[str] = set()
        self.values = _count(root)
        self._walk(root)
        self._spread_doubt()
        self._order = self._sorted()
        self._steps_left = MAX_TABLE_STEPS
        self._edges = sum(1 + len([*node.targets()]) for node in self._nodes)
        self.at(0)

    def is_schema(self, part: dict[str, Any]) -> bool:
        """Says whether this very object of the schema stands where a schema stands."""
        return id(part) in self._node_of

    def is_unsure(self, part: object) -> bool:
        """Says whether something that this part of the schema asks for is not checked: it takes more than it says."""
        nodes = (self._node_of.get(id(one)) for one in (part if is_array(part) else [part]))
        return any(node is not None and node.is_unsure for node in nodes)

    def at(self, depth: int) -> Work:
        """Gives the cost for each value that lies `depth` levels under the root value.

        Raises:
            NotCheckable: The table would take too long to make.
        """
        costs = self._nodes[0].costs
        while len(costs) <= depth:
            if costs and not any(any(node.costs[-1]) for node in self._nodes):
                return _NO_WORK  # No part of the schema reaches so deep.
            self._steps_left -= self._edges
            if costs and self._steps_left < 0:
                raise NotCheckable("the schema is too large for a value nested this deep")
            for node in self._order:
                node.costs.append(_next_cost(node))
        return costs[depth]

    @cached_property
    def most(self) -> Work | None:
        """Gives the most that a value costs, wherever it lies; None where that is not soon known."""
        with suppress(NotCheckable):
            for depth in range(MAX_SOON):
                if self.at(depth) == _NO_WORK:
                    return _dearest(self._nodes[0].costs)
        return None

    # ---- the graph -------------------------------------------------------------------------------------

    def _walk(self, root: dict[str, Any]) -> None:
        self._add(root)
        embeds = has_references = False
        # Grows meanwhile.
        for node in self._nodes:
            schema = node.schema
            node.own = self._own(node)
            for keyword, applies, part in subschemas(schema):
                target = self._add(part)
                if applies is Applies.IN_PLACE:
                    node.in_place.append(target)
                elif applies is Applies.ONE_BELOW:
                    node.one_below.setdefault(keyword, []).append(target)
                elif applies is Applies.ALL_BELOW:
                    node.all_below.append(target)
            named = schema.get("patternProperties")
            if is_object(named):
                node.all_below += [self._add(_MATCH)] * len(named)
            self.has_alternatives |= "anyOf" in schema or "oneOf" in schema
            if not {"$dynamicRef", "$recursiveRef"}.isdisjoint(schema):
                raise NotCheckable("it uses $dynamicRef or $recursiveRef")
            identity, reference = schema.get(self._id), schema.get("$ref")
            is_root = node is self._nodes[0]
            embeds |= not is_root and isinstance(identity, str) and not identity.startswith("#")
            has_references |= "$ref" in schema
            if isinstance(reference, str):
                found = self._document.resolve(reference, self._document.root)
                value = None if found is None else found.value
                if is_object(value):
                    node.in_place.append(self._add(value))
                elif not isinstance(value, bool):
                    self.unfollowed.add(reference)
                    node.is_unsure = True
        if embeds and has_references:
            raise NotCheckable("it holds another schema document and has references")
        for node in self._nodes:
            if "unevaluatedProperties" in node.schema or "unevaluatedItems" in node.schema:
                node.in_place *= 2  # What was evaluated is found by evaluating again.

    def _add(self, schema: dict[str, Any]) -> _Node:
        node = self._node_of.get(id(schema))
        if node is None:
            node = self._node_of[id(schema)] = _Node(schema)
            self._nodes.append(node)
        return node

    def _spread_doubt(self) -> None:
        """Adds to what takes more than it says all that applies it."""
        users: dict[_Node, list[_Node]] = {}
        for node in self._nodes:
            for target in node.targets():
                users.setdefault(target, []).append(node)
        waiting = [node for node in self._nodes if node.is_unsure]
        while waiting:
            for user in users.get(waiting.pop(), ()):
                if not user.is_unsure:
                    user.is_unsure = True
                    waiting.append(user)

    # ---- costs -----------------------------------------------------------------------------------------

    def _own(self, node: _Node) -> Work:
        """Gives the cost of a schema object's own keywords."""
        schema = node.schema
        steps, text = 1, 0
        for keyword, value in schema.items():
            steps += 1
            if (id(schema), keyword) in self.odd:
                node.is_unsure = True
            if keyword in ("enum", "const"):
                # Comparing objects takes about ten times as long as comparing texts.
                steps += _count(value) * 5
            elif keyword in _LISTED and (is_object(value) or is_array(value)):
                steps += len(value)
            if keyword == "pattern" and isinstance(value, str):
                text += self._automaton(value)
                if value in self.unusable:
                    node.is_unsure = True
            elif keyword in ("minLength", "maxLength"):
                text += 1
            elif keyword == "patternProperties" and is_object(value):
                for pattern in value:
                    text += self._automaton(pattern)
                    if pattern in self.unusable:
                        raise NotCheckable("a regular expression of patternProperties has no bounded cost")
        return Work(steps, text, 1 if schema.get("uniqueItems") is True else 0)

    def _automaton(self, pattern: str) -> int:
        if pattern not in self._patterns:
            self._patterns.add(pattern)
            if len(self._patterns) > MAX_PATTERNS or _checker(pattern) is None:
                self.unusable.add(pattern)
        return 0 if pattern in self.unusable else states(pattern) * _STATE_STEPS

    def _sorted(self) -> list[_Node]:
        """Gives the schema objects, each after those that it applies in place."""
        try:
            order = [*TopologicalSorter({node: node.in_place for node in self._nodes}).static_order()]
        except CycleError:
            raise NotCheckable("it applies itself to the same value without end") from None
        depths: dict[_Node, int] = {}
        for node in order:
            depths[node] = 1 + max(map(depths.__getitem__, node.in_place), default=0)
        self.in_place_depth = max(depths.values())
        """Counts the longest chain of schema objects that apply to one value."""
        if self.in_place_depth > MAX_IN_PLACE:
            raise NotCheckable(f"over {MAX_IN_PLACE} of its parts are nested on one value")
        return order


def _next_cost(node: _Node) -> Work:
    """Gives what a value costs a level deeper than those that are known; what is applied in place is known there."""
    depth = len(node.costs)
    parts = [target.costs[depth] for target in node.in_place]
    if depth == 0:
        parts.append(node.own)
    else:
        parts += [target.costs[depth - 1] for target in node.all_below]
        # No value meets two of one keyword: it costs what the dearest does.
        parts += [
            _dearest([target.costs[depth - 1] for target in targets]) for targets in node.one_below.values()
        ]
    return Work(*(min(sum(part), _CEILING) for part in zip(Work(), *parts, strict=True)))


def _dearest(costs: list[Work]) -> Work:
    return Work(*map(max, zip(*costs, strict=True)))


def _count(value: Any) -> int:
    """Counts the JSON values in `value`."""
    try:
        levels = measured(value, MAX_SCHEMA_VALUES)
    except TypeError:
        raise NotCheckable("one of its names is no text") from None
    if len(levels) > MAX_SCHEMA_DEPTH:
        raise NotCheckable(f"it is nested over {MAX_SCHEMA_DEPTH} levels deep")
    return sum(level.values for level in levels)


MAX_CHARS: Final = 1000
"""Sets the longest pattern, in characters."""
MAX_STATES: Final = 4000
"""Sets the most automaton states, as `states` estimates them."""
MAX_COMPILED_BYTES: Final = 256 * 1024
"""Sets the largest compiled pattern."""

_TOKEN: Final = re.compile(
    r"\\[pP]\{[^}]{0,64}+\}|\\.|\[\^?[^\]\\]*+(?:\\.[^\]\\]*+)*+(?:\]|\\?\Z)|\{\d+(?:,\d*)?\}|.", re.DOTALL
)
_WIDE: Final = 10  # `.` and negated classes are a small automaton over UTF-8 bytes
_UNICODE: Final = 300


def pattern_options() -> jsonschema_rs.RegexOptions:
    """Gives the automaton engine."""
    return jsonschema_rs.RegexOptions(size_limit=MAX_COMPILED_BYTES)


def states(pattern: str) -> int:
    """Estimates how many automaton states a pattern needs; repeats with counts multiply."""
    groups: list[int] = [0]
    last = 0
    for token in _TOKEN.findall(pattern):
        if token == "(":
            groups.append(0)
            last = 0
        elif token == ")" and len(groups) > 1:
            last = groups.pop() + 1
            groups[-1] += last
        elif token[0] == "{" and len(token) > 1:
            times = max(int(number) for number in re.findall(r"\d{1,6}", token))
            groups[-1] += last * max(0, times - 1)
            last *= times
        else:
            last = (
                _UNICODE if token[:2] in (r"\p", r"\P") else _WIDE if token == "." or token[:2] == "[^" else 1
            )
            groups[-1] += last
    return sum(groups)


def matches(pattern: str, text: str) -> bool:
    """Says whether a usable pattern is found in a text; False for one that is not usable."""
    checker = _checker(pattern)
    return checker is not None and checker.is_valid(text)


@lru_cache(maxsize=256)
def _checker(pattern: str) -> jsonschema_rs.Validator | None:
    """Gives what matches a pattern; None where it cannot be matched in bounded time."""
    if len(pattern) > MAX_CHARS or states(pattern) > MAX_STATES:
        return None
    try:
        return jsonschema_rs.Draft202012Validator(
            {"pattern": pattern}, pattern_options=pattern_options(), offline=True
        )
    except ValueError:
        return None
