"""Checks tool inputs against their schemas before an upstream is called (Code Mode specification, 5.3.1, 7.2).

The verdict is `jsonschema-rs`'s. What is never checked, because a hostile schema or value could then stop the
broker, is accepted, with one warning in the log for each schema: the upstream server is the judge in the end.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, Final, TypeVar

import jsonschema_rs

from cellblock.base.json import (
    FLAT_KEY_CHARS,
    FLAT_MEMBERS,
    FLAT_TEXT_CHARS,
    is_array,
    is_flat,
    is_object,
)
from cellblock.tools.schemas import patterns
from cellblock.tools.schemas.cost import Level, NotCheckable, SchemaCost, abridged, measured
from cellblock.tools.schemas.explain import UNCLEAR, Violation, explain
from cellblock.tools.schemas.keywords import Draft, draft_of

logger = logging.getLogger("cellblock.schemas")

MAX_STEPS: Final = 1_500_000
"""Sets the most work on one input, in keyword steps of about 20 ns."""
MAX_NESTED: Final = 4_000
"""Sets the most native stack frames, counted as levels of the input times schemas nested on one value."""
MAX_EXPLAINED: Final = 3_000
"""Sets the most keyword steps where all errors are collected; each error takes about 15 us."""
MAX_EXPLAINED_CHARS: Final = 20_000
"""Sets the most characters in an input whose errors are all collected; every error copies its part of the input."""
_TEXT_DIVISOR: Final = 30
_PAIR_STEPS: Final = 50
_ANNOTATIONS: Final = """
$schema $comment title description default examples deprecated readOnly writeOnly
format contentEncoding contentMediaType contentSchema
"""
_IGNORED: Final = frozenset(_ANNOTATIONS.split())
"""Holds the annotations, which assert nothing; malformed ones must not cost a tool its validation."""
_COSTLY: Final = frozenset({"pattern", "uniqueItems"})
_SIZE_KEYWORDS: Final = frozenset(
    {"minLength", "minItems", "contains", "pattern", "enum", "const", "uniqueItems"}
)
_CHECKERS: Final = {
    Draft.DRAFT_4: jsonschema_rs.Draft4Validator,
    Draft.DRAFT_6: jsonschema_rs.Draft6Validator,
    Draft.DRAFT_7: jsonschema_rs.Draft7Validator,
    Draft.DRAFT_2019_09: jsonschema_rs.Draft201909Validator,
    Draft.DRAFT_2020_12: jsonschema_rs.Draft202012Validator,
}

_UNSTATED: Final = (Draft.DRAFT_7, Draft.DRAFT_4)
"""Lists the drafts of a schema without `$schema` that is none of 2020-12: with arrays as `items`, or a boolean
`exclusiveMinimum`. Rules that must hold are read as 2020-12 alone."""

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


class InputValidator:
    """Checks values against one schema; compiles it at the first call.

    Args:
        schema: The upstream's JSON Schema; never changed, and assumed never to change. None accepts anything.
        label: Names the schema in the log.
        subject: What is checked, for the log.
        strict: For rules that must hold: what cannot be checked, or not wholly, is a violation, and nothing is accepted
            unchecked.
        apart: In a process whose time is bounded: there nothing is too much work.
    """

    def __init__(
        self,
        schema: Mapping[str, Any] | bool | None,
        *,
        label: str = "a tool",
        subject: str = "an input",
        strict: bool = False,
        apart: bool = False,
    ) -> None:
        self._strict = strict
        self._apart = apart
        self.why_not = ""
        self._schema = schema
        self._label = label
        self._subject = subject
        self._compiled = False
        self._warned = False
        self._draft = Draft.DRAFT_2020_12
        self._cost: SchemaCost | None = None
        self._full: jsonschema_rs.Validator | None = None
        self._light: jsonschema_rs.Validator | None = None
        self._bare: Any = None
        self._flat_fits = False

    @property
    def is_checking(self) -> bool:
        """Says whether values are checked at all; False for a schema that cannot be."""
        self._compile()
        return self._full is not None

    def check(self, value: Any, allowance: Allowance | None = None) -> Violation | None:
        """Judges plain JSON data (dict, list, str, int, float, bool, None); never changes it, never raises.

        Returns the most helpful violation, or None: the value fits, or it was not checked. Takes at most
        about 50 ms, whatever the schema and the value: all checks with one `allowance` of this value together.
        """
        try:
            return self._judged(value, allowance)
        except NotCheckable as error:
            return self._unchecked(error)

    def judge(self, value: Any) -> Violation | None:
        """Judges plain JSON data as `check`, but nothing passes only because it is too much work.

        Raises:
            NotCheckable: It is, wholly or for one keyword. A schema that can never be checked raises nothing.
        """
        return self._judged(value, None, whole=True)

    # ---- checking --------------------------------------------------------------------------------------

    def _judged(self, value: Any, allowance: Allowance | None, *, whole: bool = False) -> Violation | None:
        self._compile()
        if self._full is None:
            return UNCLEAR if self._strict and self.why_not else None
        try:
            if self._apart:
                return self._check_apart(self._full, value)
            return self._check(self._full, value, allowance, whole)
        except ValueError as error:
            return self._unchecked(error)

    def _unchecked(self, error: NotCheckable | ValueError) -> Violation | None:
        if self._strict:
            return replace(UNCLEAR, message=f"the input cannot be checked: {error}")
        self._warn(f"{self._subject} of {self._label} was not checked against its schema: {error}")
        return None

    def _check_apart(self, checker: jsonschema_rs.Validator, value: Any) -> Violation | None:
        if _native(checker.is_valid, value):
            return None
        try:
            return self._explain(checker, value, measured(value), None)
        except NotCheckable:
            return self._explain_large(checker, value)

    def _check(
        self, checker: jsonschema_rs.Validator, value: Any, allowance: Allowance | None, whole: bool
    ) -> Violation | None:
        if self._flat_fits and allowance is None and is_flat(value) and _native(checker.is_valid, value):
            return None
        levels = measured(value) if allowance is None else allowance.levels()
        steps, checker = self._within_bounds(checker, levels, allowance, whole)
        return None if _native(checker.is_valid, value) else self._explain(checker, value, levels, steps)

    def _explain(
        self, checker: jsonschema_rs.Validator, value: Any, levels: list[Level], steps: int | None
    ) -> Violation:
        if steps is None:
            steps, _ = self._within_bounds(checker, levels, None, whole=False)
        chars = sum(level.chars for level in levels)
        if steps <= MAX_EXPLAINED and chars <= MAX_EXPLAINED_CHARS:
            return explain(_native(checker.iter_errors, value), self._bare, value) or UNCLEAR
        return self._explain_large(checker, value)

    def _within_bounds(
        self,
        checker: jsonschema_rs.Validator,
        levels: list[Level],
        allowance: Allowance | None,
        whole: bool,
    ) -> tuple[int, jsonschema_rs.Validator]:
        cost = self._cost
        if cost is None:  # A boolean schema.
            return 1, checker
        if cost.in_place_depth * len(levels) > MAX_NESTED:
            raise NotCheckable("schema and input together are nested too deep")
        steps = extra = 0
        for depth, level in enumerate(levels):
            work = cost.at(depth)
            steps += work.steps * level.values
            extra += work.text * level.chars // _TEXT_DIVISOR + work.unique * level.squares * _PAIR_STEPS
        if steps > MAX_STEPS:
            raise NotCheckable("it could take too long")
        if steps + extra > MAX_STEPS:
            if self._strict or whole:
                raise NotCheckable("it could take too long")
            self._warn(f"long texts and arrays for {self._label} are not checked for patterns and uniqueness")
            if self._light is None:
                self._light = self._made(_COSTLY)
            checker, extra = self._light, 0
        if allowance is not None:
            allowance.take(steps + extra)
        return steps, checker

    def _explain_large(self, checker: jsonschema_rs.Validator, value: Any) -> Violation:
        """Looks for the place in an abridged copy, as collecting errors copies and repeats parts of the value."""
        cut: set[tuple[str | int, ...]] = set()
        short = abridged(value, (), cut)
        levels = measured(short)
        try:
            steps = sum(
                (self._cost.at(depth).steps if self._cost else 1) * level.values
                for depth, level in enumerate(levels)
            )
        except NotCheckable:
            return UNCLEAR
        if steps <= MAX_EXPLAINED and sum(level.chars for level in levels) <= MAX_EXPLAINED_CHARS:
            found = explain(
                _native(checker.iter_errors, short),
                self._bare,
                value,
                lambda path, keyword: path not in cut or keyword not in _SIZE_KEYWORDS,
            )
            if found is not None:
                return found
        if self._cost is not None and not self._cost.has_alternatives:
            # Without alternatives, the first error is found without collecting any other.
            try:
                _native(checker.validate, value)
            except jsonschema_rs.ValidationError as error:
                return explain([error], self._bare, value) or UNCLEAR
        return UNCLEAR

    # ---- compiling -------------------------------------------------------------------------------------

    def _compile(self) -> None:
        if self._compiled:
            return
        self._compiled = True
        schema = self._schema
        try:
            if isinstance(schema, bool):
                self._bare = schema
                self._full = jsonschema_rs.Draft202012Validator(schema)
            elif schema:
                root = schema if isinstance(schema, dict) else dict(schema)
                draft = draft_of(root)
                if draft is None:
                    raise NotCheckable("its $schema is no known draft")
                self._schema = root
                unstated = "$schema" not in root and not self._strict
                self._compile_as(root, (draft, *_UNSTATED) if unstated else (draft,))
                self._bare = root
        except (NotCheckable, ValueError) as error:
            reason = error.message if isinstance(error, jsonschema_rs.ValidationError) else str(error)
            self.why_not = reason[:300]
            self._warn(
                f"{self._subject} of {self._label} is never checked against its schema: {reason[:300]}"
            )
            self._full = self._cost = None
        self._flat_fits = self._full is not None and (self._cost is None or _fits_flat(self._cost))

    def _compile_as(self, root: dict[str, Any], drafts: tuple[Draft, ...]) -> None:
        """Compiles for the first draft in which the schema is valid; the error is that of the first of all."""
        refused: ValueError | None = None
        for draft in drafts:
            self._draft = draft
            self._cost = SchemaCost(root, draft4=draft is Draft.DRAFT_4)
            if self._strict and self._cost.unusable:
                raise NotCheckable("one of its patterns cannot be used")
            try:
                self._full = self._made(frozenset())
            except jsonschema_rs.ValidationError as error:
                refused = refused or error
            else:
                return
        if refused is not None:
            raise refused

    def _made(self, dropped: frozenset[str]) -> jsonschema_rs.Validator:
        """Compiles the schema without its annotations and some other keywords."""
        cost = self._cost
        assert cost is not None

        def copied(part: Any) -> Any:
            if is_array(part):
                return [copied(item) for item in part]
            if not is_object(part):
                return part
            items = part
            if not cost.is_schema(items):
                return {key: copied(item) for key, item in items.items()}
            kind = items.get("type")
            nullable = items.get("nullable") is True and not self._strict
            if nullable and isinstance(kind, str) and kind != "null":
                # OpenAPI's way; the declarations that agents are given say `| null` too.
                items = {**items, "type": [kind, "null"]}
            return {
                key: copied(item)
                for key, item in items.items()
                if key not in _IGNORED
                and key not in dropped
                and not (key == "pattern" and isinstance(item, str) and item in cost.unusable)
            }

        return _native(
            lambda: _CHECKERS[self._draft](
                copied(self._schema),
                validate_formats=False,
                pattern_options=patterns.OPTIONS,
                offline=True,
                mask="the value",
            )
        )

    def _warn(self, text: str) -> None:
        if not self._warned:
            self._warned = True
            logger.warning("%s", text)


def _fits_flat(cost: SchemaCost) -> bool:
    """Says whether no flat value is too much work: each need not be sized then."""
    try:
        root, member = cost.at(0), cost.at(1)
    except NotCheckable:
        return False
    chars = FLAT_MEMBERS * (FLAT_TEXT_CHARS + FLAT_KEY_CHARS)
    steps = root.steps + member.steps * FLAT_MEMBERS + (root.text + member.text) * chars // _TEXT_DIVISOR
    return steps <= MAX_STEPS and cost.in_place_depth * 2 <= MAX_NESTED


def _native(function: Callable[..., _T], *arguments: Any) -> _T:
    """Calls into the native library; its panic is not an `Exception` and must not end the broker's tasks."""
    try:
        return function(*arguments)
    except BaseException as error:
        if type(error).__name__ == "PanicException":
            raise NotCheckable("the checker failed") from None
        raise
