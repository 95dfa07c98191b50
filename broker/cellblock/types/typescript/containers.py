"""Merges the rules of objects and of arrays that apply together: key by key, and position by position.

Of the regular expressions of `patternProperties` those are read that a template literal type can say. They are hostile:
a small linear reader here reads them, and they are never given to a regex engine.
"""

from __future__ import annotations

import re
import sys
from dataclasses import dataclass
from functools import lru_cache
from typing import TYPE_CHECKING

from cellblock.types.typescript.document import Location
from cellblock.types.typescript.keywords import ArrayRules, ObjectRules
from cellblock.types.typescript.limits import MAX_KEY_CHARS, MAX_PADDING, MAX_TUPLE, Budget
from cellblock.types.typescript.shapes import (
    INHERITED,
    NEVER,
    UNKNOWN,
    Array,
    Index,
    Literal,
    Never,
    Object,
    Property,
    Shape,
    Union,
    Unknown,
    union,
)
from cellblock.types.typescript.text import template_part

if TYPE_CHECKING:
    from cellblock.types.typescript.compiler import Compiler

_ANY = ".*"
_SOME = ".+"
_TOKEN = re.compile(r"\.\*|\.\+|\\[^A-Za-z0-9]|[^\\.*+?()\[\]{}|^$]")
_QUANTIFIER = re.compile(r"[*+?{]")
_LINE_BREAK = re.compile("[\n\r\u2028\u2029]")
_MAX_PATTERN = 200
_GAP = "\ue000"
"""Stands for any text in a template that is tested against another; a private character no pattern needs."""


def object_shape(groups: list[ObjectRules], compiler: Compiler) -> Shape:
    """Gives the objects that all groups allow; `Never` when there are none."""
    return _Merge(groups, compiler).shape()


class _Merge:
    def __init__(self, groups: list[ObjectRules], compiler: Compiler) -> None:
        self._groups = groups
        self._compiler = compiler
        self._patterns = [[(read_pattern(text), at) for text, at in group.patterns] for group in groups]
        self._allowed = self._allowed_keys()
        self._left_out = False

    def shape(self) -> Shape:
        required = dict.fromkeys(key for group in self._groups for key in group.required)
        if any(group.empty_only for group in self._groups):
            return NEVER if required else Object()
        properties: list[Property] = []
        for key in self._keys(required):
            one = self._property(key, key in required)
            if isinstance(one.shape, Never) and one.required:
                return NEVER
            properties.append(one)
        indexes = self._indexes(properties)
        everything = next((index.shape for index in indexes if index.template is None), None)
        covered = {one.key for index in indexes for one in index.also}
        kept = tuple(
            one
            for one in properties
            # A key that may not be there needs saying only where an index signature would let it in.
            if not isinstance(one.shape, Never) or everything is not None or one.key in covered
        )
        return Object(kept, tuple(indexes))

    def _allowed_keys(self) -> list[str] | None:
        allowed: list[str] | None = None
        for group in self._groups:
            if group.names is None:
                continue
            names = self._compiler.resolved(self._compiler.compile([group.names]))
            members = names.members if isinstance(names, Union) else (names,)
            if not all(isinstance(member, Literal | Never) for member in members):
                continue
            keys = [m.value for m in members if isinstance(m, Literal) and isinstance(m.value, str)]
            allowed = keys if allowed is None else [key for key in allowed if key in keys]
        return allowed

    def _keys(self, required: dict[str, None]) -> list[str]:
        keys: dict[str, None] = {}
        for group in self._groups:
            keys.update(dict.fromkeys(group.properties))
        keys.update(required)
        for patterns in self._patterns:
            exact = [pattern.exact_key for pattern, _ in patterns if pattern is not None]
            keys.update(dict.fromkeys(key for key in exact if key is not None))
        keys.update(dict.fromkeys(self._allowed or ()))
        short = [key for key in keys if len(key) <= MAX_KEY_CHARS]
        if len(short) < len(keys):
            self._left_out = True
            self._compiler.budget.warn("A property key is too long to declare; its object is left open.")
        return short

    def _property(self, key: str, required: bool) -> Property:
        locations: list[Location] = []
        for group, patterns in zip(self._groups, self._patterns, strict=True):
            certain, possible = False, False
            if key in group.properties:
                locations.append(group.properties[key])
                certain = True
            for pattern, at in patterns:
                matched = None if pattern is None else pattern.matches(key)
                if matched:
                    locations.append(at)
                certain, possible = certain or bool(matched), possible or matched is None
            if not certain and not possible and group.additional is not None:
                locations.append(group.additional)
        refused = self._allowed is not None and key not in self._allowed
        shape = NEVER if refused else self._compiler.compile(locations)
        prose, facts = self._compiler.docs.of_property(key, locations)
        doc = (*prose, *facts, *_warnings(self._compiler.budget))
        return Property(key, shape, required, doc, len(prose))

    def _indexes(self, properties: list[Property]) -> list[Index]:
        others = self._other_keys()
        # What a key of no template may hold; a pattern that no template can say adds to it, as it may match.
        wide: list[Shape] = [UNKNOWN if self._left_out else others]
        templates: dict[KeyPattern, Shape] = {}
        if self._allowed is None:
            for group_at, patterns in enumerate(self._patterns):
                for pattern, location in patterns:
                    if pattern is None or not any(pattern.parts):
                        wide.append(self._of_pattern(pattern, location, group_at))
                    elif pattern.exact_key is None and pattern not in templates:
                        templates[pattern] = self._of_pattern(pattern, location, group_at)
        for pattern in [pattern for pattern in templates if not pattern.is_exact]:
            # The template holds keys too that the pattern does not match: they go by the other rules.
            templates[pattern] = union([*wide, *templates.values()])
        indexes: list[Index] = []
        unsaid = tuple(key for key in INHERITED if all(one.key != key for one in properties))
        # Patterns can differ and have one template all the same: `^x-` and `^x-.+`.
        for text, template in {pattern.template: pattern for pattern in templates}.items():
            # TypeScript wants a wider template to allow what a narrower one allows.
            inside = [shape for pattern, shape in templates.items() if pattern.within_template(template)]
            also = tuple(one for one in properties if template.template_covers(one.key))
            inherited = tuple(key for key in unsaid if template.template_covers(key))
            indexes.append(Index(text, union(inside), also, inherited))
        whole = union(wide)
        read = [pattern for patterns in self._patterns for pattern, _ in patterns]
        is_lost = any(pattern is None or (pattern.dots and not any(pattern.parts)) for pattern in read)
        if isinstance(whole, Unknown) and is_lost and not self._left_out:
            self._compiler.budget.warn("Keys of a pattern have a type that is not declared here.")
        if isinstance(whole, Never):
            return indexes
        if not isinstance(whole, Unknown):
            whole = union([whole, *templates.values()])
        also = () if isinstance(whole, Unknown) else tuple(properties)
        return [*indexes, Index(None, whole, also, unsaid)]

    def _other_keys(self) -> Shape:
        """Gives what a key may hold that no group names, by property or by pattern."""
        if self._allowed is not None:
            return NEVER
        locations: list[Location] = []
        for group, patterns in zip(self._groups, self._patterns, strict=True):
            every = [at for pattern, at in patterns if pattern is not None and pattern.matches_every_key]
            locations.extend(every)
            if not every and group.additional is not None:
                locations.append(group.additional)
        return self._compiler.compile(locations)

    def _of_pattern(self, pattern: KeyPattern | None, location: Location, group_at: int) -> Shape:
        """Gives what a key may hold that matches the pattern at `location`."""
        locations = [location]
        for at, (group, patterns) in enumerate(zip(self._groups, self._patterns, strict=True)):
            for other, also in patterns:
                if other is not None and (other == pattern or other.certain_for(pattern)):
                    locations.append(also)
            if at != group_at and not patterns and group.additional is not None:
                locations.append(group.additional)
        return self._compiler.compile(locations)


def _warnings(budget: Budget) -> list[str]:
    return [f"Warning: {sentence}" for sentence in budget.take_unplaced()]


def array_shape(groups: list[ArrayRules], compiler: Compiler) -> Shape:
    """Gives the arrays that all groups allow; `Never` when there are none."""
    minimum = max(group.minimum for group in groups)
    maximum = min((group.maximum for group in groups if group.maximum is not None), default=sys.maxsize)
    rest = compiler.compile([group.rest for group in groups if group.rest is not None])
    items: list[Shape] = []
    for position in range(max(len(group.prefix) for group in groups)):
        here = [group.prefix[position] if position < len(group.prefix) else group.rest for group in groups]
        items.append(compiler.compile([location for location in here if location is not None]))
        if isinstance(items[-1], Never):
            # No value fits this position, so every array ends in front of it.
            items.pop()
            rest = NEVER
            break
    if maximum < len(items):
        items, rest = items[:maximum], NEVER
    if isinstance(rest, Never):
        maximum = min(maximum, len(items))
    if minimum > maximum:
        return NEVER
    if len(items) > MAX_TUPLE:
        items, rest = items[:MAX_TUPLE], union([*items[MAX_TUPLE:], rest])
    if isinstance(rest, Never):
        return Array(tuple(items), min(minimum, len(items)))
    if maximum - len(items) <= MAX_PADDING and maximum <= MAX_TUPLE:
        return Array((*items, *[rest] * (maximum - len(items))), minimum)
    if minimum > len(items) + MAX_PADDING:
        # The full number of positions would be noise; the first few still refuse the common mistake.
        minimum = len(items) + 1
    return Array((*items, *[rest] * max(0, minimum - len(items))), minimum, rest)


@dataclass(frozen=True, slots=True)
class KeyPattern:
    """A key pattern is made of literal text, `.*` and `.+`, anchored or not.

    `parts` are the literal texts between the gaps; `some[i]` says the gap behind `parts[i]` is not empty.
    Gaps beyond the written pattern (a missing anchor) match line breaks; a written `.` does not.
    """

    parts: tuple[str, ...]
    some: tuple[bool, ...]
    dots: bool

    @property
    def exact_key(self) -> str | None:
        """Gives the only key that matches, where there is only one."""
        return self.parts[0] if len(self.parts) == 1 else None

    @property
    def template(self) -> str:
        """Gives the template literal type, without a leading gap test: `` `x-${string}` ``."""
        return "`" + "${string}".join(template_part(part) for part in self.parts) + "`"

    @property
    def is_exact(self) -> bool:
        """Says whether the template matches exactly the keys that the pattern matches."""
        return not self.dots and not any(self.some)

    @property
    def matches_every_key(self) -> bool:
        """Says whether no key at all fails the pattern."""
        return self.is_exact and not any(self.parts)

    def certain_for(self, other: KeyPattern | None) -> bool:
        """Says whether every key that `other` matches matches this pattern too; None is one nobody could read."""
        if other is None or not self.is_exact or self.exact_key is not None:
            return self.matches_every_key
        return self.template_covers(_GAP.join(other.parts))

    def within_template(self, template: KeyPattern) -> bool:
        """Says whether each key of this pattern's template is one of another pattern's."""
        return template.template_covers(_GAP.join(self.parts))

    def matches(self, key: str) -> bool | None:
        """Says whether the key matches; None where this reader cannot tell."""
        if self.exact_key is not None:
            return key == self.exact_key
        if not self.is_exact and (any(self.some) or _LINE_BREAK.search(key)):
            return None if self.template_covers(key) else False
        return self.template_covers(key)

    def template_covers(self, key: str) -> bool:
        """Says whether a key fits a pattern's template, which a key of a pattern with dots may do without matching."""
        head, *middle, tail = self.parts
        if len(key) < len(head) + len(tail) or not key.startswith(head) or not key.endswith(tail):
            return False
        at, end = len(head), len(key) - len(tail)
        for part in middle:
            at = key.find(part, at, end)
            if at < 0:
                return False
            at += len(part)
        return True


@lru_cache(maxsize=512)
def read_pattern(pattern: str) -> KeyPattern | None:
    """Gives the pattern as literal text and gaps, or None when it says more than that."""
    if len(pattern) > _MAX_PATTERN:
        return None
    open_start = not pattern.startswith("^")
    body = pattern if open_start else pattern[1:]
    open_end = not (body.endswith("$") and not body.endswith("\\$"))
    body = body if open_end else body[:-1]
    if body.startswith("(") and body.endswith(")") and body[1:-1] in (_ANY, _SOME):
        body = body[1:-1]
    # Beside a missing anchor `.*` says nothing; elsewhere it refuses line breaks.
    while open_start and body.startswith(_ANY):
        body = body[len(_ANY) :]
    while open_end and body.endswith(_ANY) and not body.endswith("\\" + _ANY):
        body = body[: -len(_ANY)]
    parts, some, dots = [""], list[bool](), False
    if open_start:
        parts.append("")
        some.append(False)
    at = 0
    while at < len(body):
        token = _TOKEN.match(body, at)
        if token is None or _QUANTIFIER.match(body, token.end()):
            return None
        at = token.end()
        if token.group() in (_ANY, _SOME):
            dots = True
            parts.append("")
            some.append(token.group() == _SOME)
        else:
            parts[-1] += token.group()[-1]
    if open_end:
        parts.append("")
        some.append(False)
    return _without_double_gaps(parts, some, dots)


def _without_double_gaps(parts: list[str], some: list[bool], dots: bool) -> KeyPattern:
    kept, gaps = [parts[0]], list[bool]()
    for part, gap in zip(parts[1:], some, strict=True):
        if gaps and not kept[-1]:
            # Two gaps in a row are one; it is not empty when either is.
            gaps[-1] = gaps[-1] or gap
            kept[-1] = part
        else:
            gaps.append(gap)
            kept.append(part)
    return KeyPattern(tuple(kept), tuple(gaps), dots)
