"""Finds the one violation among the checker's errors that helps most."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import reduce
from itertools import islice
from typing import Any, Final

from jsonschema_rs import ValidationError, ValidationErrorKind

from cellblock.base.errors import shorten
from cellblock.base.json import inside, is_object, pointer_of
from cellblock.tools.schemas.violations import (
    MAX_CANDIDATES,
    MAX_CHARS,
    MAX_POINTER_CHARS,
    Violation,
    either,
    expected_of,
    literal,
    one_of,
    received,
)

_CONSIDERED: Final = 200


@dataclass(frozen=True, slots=True)
class _Found:
    """Holds a violation in the making; `at` is the path of the value that was judged, `path` of what is to blame."""

    at: tuple[str | int, ...]
    path: tuple[str | int, ...]
    keyword: str
    expected: str
    received: str
    verb: str = "must be"
    name: str | None = None
    candidates: tuple[str, ...] = ()


_RANK: Final = {
    "additionalProperties": 0,
    "unevaluatedProperties": 0,
    "required": 1,
    "type": 2,
    "const": 3,
    "enum": 3,
    "not": 5,
    "oneOf": 5,
}
_PHRASES: Final = {
    "minimum": "at least",
    "maximum": "at most",
    "exclusiveMinimum": "more than",
    "exclusiveMaximum": "less than",
    "minLength": "a string of at least",
    "maxLength": "a string of at most",
    "minItems": "an array of at least",
    "maxItems": "an array of at most",
    "additionalItems": "an array of at most",
    "minProperties": "an object with at least",
    "maxProperties": "an object with at most",
    "uniqueItems": "an array whose items all differ",
    "contains": "an array with items that fit `contains`",
    "unevaluatedItems": "an array without the items that are too many",
    "falseSchema": "left out",
    "not": "other than what the schema excludes",
}
_UNITS: Final = {
    "Length": ("character", "characters"),
    "Items": ("item", "items"),
    "Properties": ("property", "properties"),
}
"""Maps the end of a keyword to what it counts."""
_ROOT_MISMATCH: Final = (
    ValidationErrorKind.Type,
    ValidationErrorKind.Constant,
    ValidationErrorKind.Enum,
    ValidationErrorKind.FalseSchema,
)


def explain(
    errors: Iterable[ValidationError],
    schema: Any,
    value: Any,
    trusted: Callable[[tuple[str | int, ...], str], bool] = lambda path, keyword: True,
) -> Violation | None:
    """Finds the most helpful violation among `errors`, or None where there is none to trust.

    Args:
        errors: What the checker found wrong.
        schema: The schema that was compiled; to name the properties that it knows.
        value: The value as the caller gave it; to describe what was received.
        trusted: Whether a failed keyword at a path is to be believed.
    """
    found = [_leaf(error, schema, value) for error in islice(errors, _CONSIDERED)]
    found = [one for one in found if trusted(one.at, one.keyword)]
    return _violation(min(found, key=_order)) if found else None


def _order(found: _Found) -> tuple[int, int]:
    return len(found.at), _RANK.get(found.keyword, 4)


def _violation(found: _Found) -> Violation:
    path = shorten(pointer_of(list(found.path)), MAX_POINTER_CHARS)
    expected = shorten(found.expected, MAX_CHARS)
    what = path or "The input"
    if found.keyword in ("required", "dependentRequired"):
        message = f"{what} is required, but is missing."
    elif found.verb:
        message = f"{what} {found.verb} {expected}, but is {found.received}."
    else:
        message = f"{what} is not a property that is known here."
    return Violation(
        path, message, expected, found.received, found.keyword, found.name, found.candidates[:MAX_CANDIDATES]
    )


def _leaf(error: ValidationError, schema: Any, value: Any) -> _Found:
    kind = error.kind
    if isinstance(kind, ValidationErrorKind.AnyOf | ValidationErrorKind.OneOfNotValid):
        inner = _best_branch(kind.context, len(error.instance_path), schema, value)
        if inner is not None:
            return inner
    return _describe(error, schema, value)


def _best_branch(branches: list[list[ValidationError]], depth: int, schema: Any, value: Any) -> _Found | None:
    """Gives the violation of the branch that was most likely meant; where none was, of all of them together."""
    rated: list[tuple[tuple[int, int], list[_Found]]] = []
    for errors in branches[:_CONSIDERED]:
        considered = errors[:_CONSIDERED]
        if not considered:
            continue
        mismatch, blamed = 0, considered
        for error in considered:
            how = _mismatch(error, depth)
            if how > mismatch:
                mismatch, blamed = how, [error]
        found = [_leaf(error, schema, value) for error in blamed]
        rated.append(((mismatch, len(considered)), found))
    if not rated:
        return None
    score, found = min(rated, key=lambda one: one[0])
    best = min(found, key=_order)
    if score[0] == 0 or len(rated) == 1:
        return best
    alike = [min(each, key=_order) for (mismatch, _), each in rated if mismatch == score[0]]
    if any(one.path != best.path or not one.verb or one.keyword == "required" for one in alike):
        return best
    candidates = tuple(name for one in alike for name in one.candidates)
    name = next((one.name for one in alike if one.name is not None), None)
    expected = either(one.expected for one in alike)
    return replace(best, keyword="anyOf", expected=expected, name=name, candidates=candidates)


def _mismatch(error: ValidationError, depth: int) -> int:
    """Says how surely an error in a branch says that the branch was not meant: 2 surely, 1 probably, 0 not at all."""
    below = len(error.instance_path) - depth
    if below == 0 and isinstance(error.kind, _ROOT_MISMATCH):
        return 2  # Another kind of value altogether.
    discriminators = ValidationErrorKind.Constant | ValidationErrorKind.Enum
    # Probably `"type": "circle"` or the like.
    return 1 if below == 1 and isinstance(error.kind, discriminators) else 0


def _describe(error: ValidationError, schema: Any, value: Any) -> _Found:
    at = tuple(error.instance_path)
    here = _at(value, at)
    kind = error.kind
    found = _Found(at, at, kind.name, _limit(kind) or "what its schema describes", received(here))
    match kind:
        case ValidationErrorKind.Required(property=name):
            known = _known(_at(schema, error.schema_path[:-1]))
            given = here if is_object(here) else {}
            return replace(
                found,
                path=(*at, name),
                keyword="required",
                expected=expected_of(known.get(name, True)),
                received="undefined",
                name=name,
                candidates=tuple(other for other in islice(given, MAX_CANDIDATES) if other not in known),
            )
        case (
            ValidationErrorKind.AdditionalProperties(unexpected=names)
            | ValidationErrorKind.UnevaluatedProperties(unexpected=names)
        ) if names:
            known = _known(_at(schema, error.schema_path[:-1]))
            given = here if is_object(here) else {}
            return replace(
                found,
                path=(*at, names[0]),
                expected="no property of this name",
                received=received(given.get(names[0])),
                verb="",
                name=names[0],
                candidates=tuple(other for other in islice(known, MAX_CANDIDATES) if other not in given),
            )
        case ValidationErrorKind.PropertyNames(error=inner):
            name = str(inner.instance)
            wanted = _limit(inner.kind) or "an allowed name"
            return replace(
                found,
                path=(*at, name),
                expected=wanted,
                received=received(name),
                verb="must be named",
            )
        case ValidationErrorKind.Enum(options=options) if isinstance(here, str):
            texts = tuple(option for option in options[:MAX_CANDIDATES] if isinstance(option, str))
            return replace(found, name=here, candidates=texts)
        case ValidationErrorKind.Constant(expected_value=str(text)) if isinstance(here, str):
            return replace(found, name=here, candidates=(text,))
        case _:
            return found


def _limit(kind: ValidationErrorKind) -> str | None:
    """Gives what a keyword asks for, in words."""
    match kind:
        case ValidationErrorKind.Type(types=types):
            return either(sorted(types, key=lambda name: name == "null"))
        case ValidationErrorKind.Enum(options=options):
            return one_of(list(options)) if options else "nothing"
        case ValidationErrorKind.Constant(expected_value=expected):
            return literal(expected)
        case ValidationErrorKind.MultipleOf(multiple_of=step):
            return f"a multiple of {literal(step)}"
        case ValidationErrorKind.Pattern(pattern=pattern):
            return f"a string that matches the pattern {shorten(pattern, 80)}"
        case ValidationErrorKind.OneOfMultipleValid():
            return "of only one of the alternatives"
        case (
            ValidationErrorKind.Minimum(limit=limit)
            | ValidationErrorKind.Maximum(limit=limit)
            | ValidationErrorKind.ExclusiveMinimum(limit=limit)
            | ValidationErrorKind.ExclusiveMaximum(limit=limit)
        ):
            return f"{_PHRASES[kind.name]} {literal(limit)}"
        case (
            ValidationErrorKind.MinLength(limit=limit)
            | ValidationErrorKind.MaxLength(limit=limit)
            | ValidationErrorKind.MinItems(limit=limit)
            | ValidationErrorKind.MaxItems(limit=limit)
            | ValidationErrorKind.AdditionalItems(limit=limit)
            | ValidationErrorKind.MinProperties(limit=limit)
            | ValidationErrorKind.MaxProperties(limit=limit)
        ):
            one, many = next(unit for ending, unit in _UNITS.items() if kind.name.endswith(ending))
            return f"{_PHRASES[kind.name]} {limit} {one if limit == 1 else many}"
        case _:
            return _PHRASES.get(kind.name)


def _known(schema: Any) -> dict[str, Any]:
    """Gives the properties that a schema object names, itself or in its `allOf`."""
    known: dict[str, Any] = {}
    if is_object(schema):
        parts: list[Any] = [schema, *(schema.get("allOf") or [])]
        for one in parts:
            named = one.get("properties") if is_object(one) else None
            known.update(named if is_object(named) else {})
    return known


def _at(value: Any, path: Iterable[str | int]) -> Any:
    """Gives the part of a JSON value at a path; None where the path leads nowhere."""
    try:
        return reduce(inside, path, value)
    except LookupError:
        return None
