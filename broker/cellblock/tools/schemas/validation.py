"""Checks tool inputs against their schemas before an upstream is called (Code Mode specification, 5.3.1, 7.2).

The verdict is `jsonschema-rs`'s. What is never checked, because a hostile schema or value could then stop the
broker, is accepted, with one warning in the log for each schema: the upstream server is the judge in the end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from types import MappingProxyType
from typing import Any, Final, TypeVar

import jsonschema_rs

from cellblock.base.errors import shorten
from cellblock.base.json import is_array, is_object, pointer_of
from cellblock.tools.schemas.cost import (
    MAX_SCHEMA_VALUES,
    MAX_VALUES,
    Level,
    NotCheckable,
    SchemaCost,
    abridged,
    measured,
    pattern_options,
)
from cellblock.tools.schemas.document import ANNOTATIONS
from cellblock.tools.schemas.violations import UNCLEAR, Violation

logger = logging.getLogger("cellblock.schemas")

MAX_STEPS: Final = 2_500_000
"""Sets the most work on one input, in keyword steps of about 20 ns."""
MAX_NESTED: Final = 4_000
"""Sets the most native stack frames, counted as levels of the input times schemas nested on one value."""
MAX_LEVELS: Final = 129
"""Bounds the levels of an input or a result, with the values in the innermost array or object."""
MAX_EXPLAINED: Final = 3_000
"""Sets the most keyword steps where all errors are collected; each error takes about 15 us."""
MAX_EXPLAINED_CHARS: Final = 20_000
"""Sets the most characters in an input whose errors are all collected; every error copies its part of the input."""
_TEXT_DIVISOR: Final = 30
_PAIR_STEPS: Final = 50
_IGNORED: Final = ANNOTATIONS | {
    "$schema",
    "format",
    "contentEncoding",
    "contentMediaType",
    "contentSchema",
}
"""Holds the annotations, which assert nothing; malformed ones must not cost a tool its validation."""
_SIZE_KEYWORDS: Final = frozenset(
    """
    minLength minItems contains pattern enum const uniqueItems
    minProperties required dependencies dependentRequired dependentSchemas
    """.split()  # noqa: SIM905
)
"""Holds what may fail only because a part of the value was cut off."""
_CHECKERS: Final = {
    "draft-04": "Draft4Validator",
    "draft-06": "Draft6Validator",
    "draft-07": "Draft7Validator",
    "2019-09": "Draft201909Validator",
    "2020-12": "Draft202012Validator",
}
"""Maps the drafts of JSON Schema, by the part of a `$schema` address that tells one."""

_DEFAULT_DRAFT: Final = "2020-12"
"""Names MCP's own default."""

_UNSTATED: Final = ("draft-07", "draft-04")
"""Lists the drafts of a schema without `$schema` that is none of 2020-12: with arrays as `items`, or a boolean
`exclusiveMinimum`. Rules that must hold are read as 2020-12 alone."""

_NO_NULL: Final = frozenset({"const", "$ref", "allOf", "anyOf", "oneOf"})
"""Holds the keywords beside `nullable` that may leave no room for null."""

_NARROWING: Final = {
    "not": ("not",),
    "oneOf": ("oneOf",),
    "if": ("if", "then", "else"),
    "contains": ("maxContains",),
}
"""Maps keywords to those that cannot be checked where a subschema takes more than it says."""

_OTHERS_BUILD_ON: Final = frozenset({"properties", "patternProperties", "items", "prefixItems"})
"""Holds the keywords without which others, as `additionalProperties`, would refuse more."""

_T = TypeVar("_T")


class Allowance:
    """Bounds the work that the checks of one value against several schemas take together to that of one check.

    Args:
        value: As for `InputValidator.check`; sized once, at the first check.
    """

    def __init__(self, value: Any) -> None:
        self._value = value
        self._levels: list[Level] | None = None
        self._steps = MAX_STEPS

    def levels(self) -> list[Level]:
        """Gives the sizes of the value, level by level. Raises NotCheckable as `measured`."""
        if self._levels is None:
            self._levels = measured(self._value)
        return self._levels

    def take(self, steps: int) -> None:
        """Counts the work of one check. Raises NotCheckable when it is more than is left."""
        if steps > self._steps:
            raise NotCheckable("all the schemas for it together could take too long")
        self._steps -= steps


@dataclass(frozen=True, slots=True)
class _Compiled:
    """Holds what values are checked by, and what that costs; nothing of a boolean schema."""

    checker: jsonschema_rs.Validator
    cost: SchemaCost | None = None

    def work(self, levels: list[Level]) -> tuple[int, int]:
        """Gives the keyword steps on a value of this size, and those for its texts and arrays.

        Raises:
            NotCheckable: They are too many, or too deep.
        """
        cost = self.cost
        if cost is None:  # A boolean schema.
            return 1, 0
        if cost.in_place_depth * len(levels) > MAX_NESTED:
            raise NotCheckable("schema and input together are nested too deep")
        steps = more = 0
        for depth, level in enumerate(levels):
            work = cost.at(depth)
            steps += work.steps * level.values
            more += work.text * level.chars // _TEXT_DIVISOR + work.unique * level.squares * _PAIR_STEPS
        return steps, more

    def explained(self, schema: Any, value: Any, levels: list[Level]) -> Violation:
        """Says why a value of this size does not fit the schema."""
        from cellblock.tools.schemas.explain import explain  # names the library's errors, and so loads it

        checker, cost = self.checker, self.cost
        if self._can_be_explained(levels):
            return explain(_native(checker.iter_errors, value), schema, value) or UNCLEAR
        # Collecting errors copies and repeats parts of the value.
        cut: set[tuple[str | int, ...]] = set()
        short = abridged(value, (), cut)
        if self._can_be_explained(measured(short)):
            found = explain(
                _native(checker.iter_errors, short),
                schema,
                value,
                lambda path, keyword: path not in cut or keyword not in _SIZE_KEYWORDS,
            )
            if found is not None:
                return found
        if cost is not None and not cost.has_alternatives:
            # Without alternatives, the first error is found without collecting any other.
            try:
                _native(checker.validate, value)
            except jsonschema_rs.ValidationError as error:
                return explain([error], schema, value) or UNCLEAR
        return UNCLEAR

    def _can_be_explained(self, levels: list[Level]) -> bool:
        try:
            return (
                sum(level.chars for level in levels) <= MAX_EXPLAINED_CHARS
                and self.work(levels)[0] <= MAX_EXPLAINED
            )
        except NotCheckable:
            return False


class InputValidator:
    """Checks values against one schema; compiles it at the first call.

    Args:
        schema: The upstream's JSON Schema; never changed, and assumed never to change. None accepts anything.
        label: Names the schema in the log.
        subject: What is checked, for the log.
        strict: For rules that must hold: what cannot be checked, or not wholly, is a violation, and nothing is accepted
            unchecked.
    """

    def __init__(
        self,
        schema: Mapping[str, Any] | bool | None,
        *,
        label: str = "a tool",
        subject: str = "an input",
        strict: bool = False,
    ) -> None:
        self._strict = strict
        self.why_not = ""
        self._schema = schema
        self._label = label
        self._subject = subject
        self._warned = False

    @property
    def is_checking(self) -> bool:
        """Says whether values are checked at all; False for a schema that cannot be."""
        return self._compiled is not None

    def check(self, value: Any, allowance: Allowance | None = None) -> Violation | None:
        """Judges plain JSON data (dict, list, str, int, float, bool, None); never changes it, never raises.

        Returns the most helpful violation, or None: the value fits, or it was not checked. Takes at most
        about 50 ms, whatever the schema and the value: all checks with one `allowance` of this value together.
        """
        try:
            return self.judge(value, allowance)
        except NotCheckable as error:
            return self._unchecked(error)

    def judge(self, value: Any, allowance: Allowance | None = None) -> Violation | None:
        """Judges plain JSON data as `check`, but nothing passes only because it is too much work.

        Raises:
            NotCheckable: It is. A schema that can never be checked raises nothing.
        """
        compiled = self._compiled
        if compiled is None:
            return UNCLEAR if self._strict and self.why_not else None
        levels = measured(value) if allowance is None else allowance.levels()
        steps = sum(compiled.work(levels))
        if steps > MAX_STEPS:
            raise NotCheckable("it could take too long")
        if allowance is not None:
            allowance.take(steps)
        try:
            is_valid = _native(compiled.checker.is_valid, value)
            return None if is_valid else compiled.explained(self._schema, value, levels)
        except ValueError as error:
            return self._unchecked(error)

    def takes_at_once(self, value: Any, size: int) -> bool:
        """Says whether data fits, by the bytes of its JSON alone as to what the check takes. False: it is to be judged.

        Args:
            value: Plain JSON data that nests within `MAX_LEVELS`.
            size: The bytes.
        """
        compiled = self._compiled
        if compiled is None or (cost := compiled.cost) is None or (most := cost.most) is None:
            return False
        values = size // 2 + 1
        # Each key counts at its object and below.
        steps = most.steps * values + most.text * 2 * size // _TEXT_DIVISOR
        is_flat = cost.in_place_depth * min(values, MAX_LEVELS) <= MAX_NESTED
        if values > MAX_VALUES or not is_flat or most.unique or steps > MAX_STEPS:
            return False
        try:
            return _native(compiled.checker.is_valid, value)
        except (NotCheckable, ValueError):
            return False

    # ---- checking --------------------------------------------------------------------------------------

    def _unchecked(self, error: NotCheckable | ValueError) -> Violation | None:
        if self._strict:
            return replace(UNCLEAR, message=f"the input cannot be checked: {error}")
        self._warn(f"{self._subject} of {self._label} was not checked against its schema: {error}")
        return None

    # ---- compiling -------------------------------------------------------------------------------------

    @cached_property
    def _compiled(self) -> _Compiled | None:
        schema = self._schema
        try:
            if isinstance(schema, bool):
                return _Compiled(jsonschema_rs.Draft202012Validator(schema))
            if not schema:
                return None
            self._schema = root = schema if isinstance(schema, dict) else dict(schema)
            draft = _draft_of(root)
            if draft is None:
                raise NotCheckable("its $schema is no known draft")
            unstated = "$schema" not in root and not self._strict
            return self._compiled_as(root, (draft, *_UNSTATED) if unstated else (draft,))
        except (NotCheckable, ValueError) as error:
            reason = error.message if isinstance(error, jsonschema_rs.ValidationError) else str(error)
            self.why_not = reason[:300]
            self._warn(
                f"{self._subject} of {self._label} is never checked against its schema: {self.why_not}"
            )
            return None

    def _compiled_as(
        self,
        root: dict[str, Any],
        drafts: tuple[str, ...],
        odd: Mapping[tuple[int, str], str] = MappingProxyType({}),
    ) -> _Compiled:
        """Compiles for the first draft in which the schema is valid, without the keywords that are odd in all of them;
        the error is that of the first."""
        refused: list[tuple[jsonschema_rs.ValidationError, SchemaCost]] = []
        for draft in drafts:
            cost = SchemaCost(root, draft4=draft == "draft-04", odd=odd.keys())
            if self._strict and cost.unusable:
                raise NotCheckable("one of its patterns cannot be used")
            if self._strict and cost.unfollowed:
                raise NotCheckable(_leads_away(cost))
            try:
                checker = self._made(root, cost, draft)
            except jsonschema_rs.ValidationError as error:
                refused.append((error, cost))
                continue
            if cost.unfollowed or odd:
                why = _leads_away(cost) if cost.unfollowed else f"no draft has its {next(iter(odd.values()))}"
                self._warn(f"{self._subject} of {self._label} is checked in part: {why}")
            return _Compiled(checker, cost)
        first, last = refused[0][0], refused[-1][1]
        place = first.instance_path
        found = None if self._strict else _odd_keyword(root, place, last)
        if found is None or found in odd or (len(odd) + 1) * last.values > MAX_SCHEMA_VALUES:
            raise first
        return self._compiled_as(root, drafts, {**odd, found: shorten(pointer_of(place))})

    def _made(self, root: dict[str, Any], cost: SchemaCost, draft: str) -> jsonschema_rs.Validator:
        """Compiles the schema without its annotations and what cannot be checked of it."""

        def copied(part: Any) -> Any:
            if is_array(part):
                return [copied(item) for item in part]
            if not is_object(part):
                return part
            if not cost.is_schema(part):
                return {key: copied(item) for key, item in part.items()}
            nullable = part.get("nullable") is True and not self._strict
            dropped = _unchecked_keywords(cost, part, draft)
            items = {key: item for key, item in part.items() if key not in dropped}
            return {key: copied(item) for key, item in (_with_null(items) if nullable else items).items()}

        return _native(
            lambda: getattr(jsonschema_rs, _CHECKERS[draft])(
                copied(root),
                validate_formats=False,
                pattern_options=pattern_options(),
                offline=True,
                mask="the value",
            )
        )

    def _warn(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("%s", text)


def _draft_of(schema: dict[str, Any]) -> str | None:
    """Gives the draft that `$schema` names; 2020-12, as MCP has it, where there is none; None if it is no known one.

    A schema that names none may be of an older draft all the same: one that is not valid in 2020-12.

    `http` and `https`, with or without the closing `#`, are all in use and all accepted.
    """
    address = schema.get("$schema")
    if address is None:
        return _DEFAULT_DRAFT
    if not isinstance(address, str) or "json-schema.org/" not in address[:64]:
        return None
    return next((draft for draft in _CHECKERS if f"/{draft}/schema" in address[:64]), None)


def _unchecked_keywords(cost: SchemaCost, schema: dict[str, Any], draft: str) -> set[str]:
    dropped = {*_IGNORED, *(keyword for keyword in schema if (id(schema), keyword) in cost.odd)}
    pattern, reference = schema.get("pattern"), schema.get("$ref")
    if isinstance(pattern, str) and pattern in cost.unusable:
        dropped.add("pattern")
    if isinstance(reference, str) and reference in cost.unfollowed:
        # Up to draft 7, a reference hides all keywords beside it.
        dropped |= schema.keys() if draft.startswith("draft") else {"$ref"}
    for keyword, unchecked in _NARROWING.items():
        if keyword in schema and cost.is_unsure(schema[keyword]):
            dropped.update(unchecked)
    if cost.is_unsure(schema):
        dropped |= {"unevaluatedProperties", "unevaluatedItems"}
    return dropped


def _with_null(schema: dict[str, Any]) -> dict[str, Any]:
    """Gives what OpenAPI's `nullable` means; the declarations that agents are given say `| null` too."""
    kinds, options = schema.get("type"), schema.get("enum")
    more: dict[str, Any] = {}
    if isinstance(kinds, str) and kinds != "null":
        more["type"] = [kinds, "null"]
    if is_array(options) and None not in options:
        more["enum"] = [*options, None]
    others = {key: schema[key] for key in schema if key in _NO_NULL}
    if not others:
        return {**schema, **more}
    plain = {key: value for key, value in schema.items() if key not in others}
    return {**plain, **more, "anyOf": [others, {"type": "null"}]}


def _odd_keyword(root: dict[str, Any], place: list[str | int], cost: SchemaCost) -> tuple[int, str] | None:
    """Gives the innermost keyword at a place, with the `id` of its schema object; None where it cannot be done without,
    or there is no such place."""
    part: Any = root
    found: tuple[int, str] | None = None
    for step in place:
        outer: Any = part
        if isinstance(step, str) and is_object(part) and cost.is_schema(part):
            found = id(part), step
        try:
            part = outer[step]
        except (LookupError, TypeError):
            return None
    return found if found is not None and found[1] not in _OTHERS_BUILD_ON else None


def _leads_away(cost: SchemaCost) -> str:
    reference = min(cost.unfollowed)
    return f"its reference {shorten(reference)} leads to no place in it, and nothing is ever fetched"


def _native(function: Callable[..., _T], *arguments: Any) -> _T:
    """Calls into the native library; its panic is not an `Exception` and must not end the broker's tasks."""
    try:
        return function(*arguments)
    except BaseException as error:
        if type(error).__name__ == "PanicException":
            raise NotCheckable("the checker failed") from None
        raise
