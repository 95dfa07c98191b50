"""Finds the one violation among the checker's errors that helps most, and the one corrective action for it (Code Mode
specification, sections 7.2 and 7.3)."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import reduce
from itertools import islice
from typing import Any, Final

from jsonschema_rs import ValidationError, ValidationErrorKind

from cellblock.base.errors import counted, shorten
from cellblock.base.json import inside, is_array, is_object, pointer_of
from cellblock.base.suggest import nearest_names

MAX_CHARS: Final = 120
"""Sets the longest `expected` or `received`, in characters."""
_TEXT: Final = 60
_KEYS: Final = 5
_CHOICES: Final = 12
MAX_POINTER_CHARS: Final = 500
MAX_CANDIDATES: Final = 5_000
_CONSIDERED: Final = 200


@dataclass(frozen=True, slots=True)
class Violation:
    """A violation says why a value does not fit a schema.

    Attributes:
        path: JSON Pointer to the failing property; of a missing or an unexpected one, its own pointer. The
            empty text is the whole input.
        message: One sentence.
        expected: What the schema asks for there, at most 120 characters.
        received: Type and abbreviated value, at most 120 characters; `undefined` for a missing property.
        keyword: The JSON Schema keyword that failed, such as `required`.
        name: The name or text that may be a slip: the unexpected property, the missing one, or a text that is
            none of the allowed ones.
        candidates: What `name` may have been meant to be: the known properties; for a missing property the
            unknown ones that were given instead; the allowed texts.
    """

    path: str
    message: str
    expected: str
    received: str
    keyword: str
    name: str | None = None
    candidates: tuple[str, ...] = ()

    @property
    def sentence(self) -> str:
        """Joins the place, where it is not the whole, and the sentence."""
        return f"{self.path}: {self.message}" if self.path else self.message


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


UNCLEAR: Final = Violation(
    path="",
    message="The input does not fit the schema of the tool.",
    expected="what the tool's inputSchema describes",
    received="a value too large to say where it differs",
    keyword="",
)
"""Stands for a violation whose place would take too long to find."""

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


def corrective_hint(violation: Violation) -> str:
    """Gives one sentence that says what to change; names the near miss where there is one."""
    name, path = violation.name, violation.path
    likely = nearest_names(name, violation.candidates) if name is not None and violation.candidates else ()
    if violation.keyword in ("required", "dependentRequired"):
        if likely:
            return f"Rename {literal(likely[0])} to {literal(name or '')}."
        return f"Add {path}: {violation.expected}."
    if likely:
        return f"Did you mean {either(map(literal, likely))}?"
    if violation.keyword in ("additionalProperties", "unevaluatedProperties"):
        return f"Leave {path} out."
    if violation.keyword == "propertyNames":
        return f"Rename {path}: the name must be {violation.expected}."
    if not violation.keyword:
        return "Compare the input with the tool's inputSchema."
    return f"Change {path or 'the input'}: it must be {violation.expected}."


def received(value: Any) -> str:
    """Describes a value by its type as JavaScript names it, and abbreviated: `string "abc"`, `object with the
    properties a, b`."""
    if is_object(value):
        if not value:
            return "empty object"
        names = ", ".join(shorten(key, 20) for key in islice(value, _KEYS))
        return shorten(f"object with the properties {names}{', …' if len(value) > _KEYS else ''}", MAX_CHARS)
    if is_array(value):
        return f"array of {counted(len(value), 'item')}" if value else "empty array"
    if value is None:
        return "null"
    if isinstance(value, str) and len(value) > _TEXT:
        return f"string {literal(value)} of {len(value)} characters"
    kind = "boolean" if isinstance(value, bool) else "string" if isinstance(value, str) else "number"
    return f"{kind} {literal(value)}"


def literal(value: Any) -> str:
    """Gives a JSON value as JSON text, abbreviated."""
    if isinstance(value, str):
        return json.dumps(shorten(value, _TEXT), ensure_ascii=False)
    if isinstance(value, dict | list):
        return "{…}" if isinstance(value, dict) else "[…]"
    if isinstance(value, int) and not isinstance(value, bool) and value.bit_length() > 256:
        return "of many digits"  # int to text is quadratic, and refused over 4300 digits
    return shorten(json.dumps(value, default=str), _TEXT)


def either(choices: Iterable[str]) -> str:
    """Joins choices as `a`, `a or b`, `a, b or c`; each once, in order, cut where there are many."""
    seen = list(dict.fromkeys(islice(choices, 1000)))
    if len(seen) > _CHOICES:
        return ", ".join(seen[:_CHOICES]) + f" or {len(seen) - _CHOICES} more"
    return seen[0] if len(seen) == 1 else ", ".join(seen[:-1]) + " or " + seen[-1] if seen else "nothing"


def expected_of(schema: Any) -> str:
    """Gives what a schema asks for, by its `const`, `enum`, or `type` and `format`; else the root of its
    alternatives."""
    if not is_object(schema):
        return "nothing" if schema is False else "any value"
    if "const" in schema:
        return shorten(literal(schema["const"]), MAX_CHARS)
    options = schema.get("enum")
    if is_array(options) and options:
        return shorten(one_of(options))
    kinds = schema.get("type")
    if isinstance(kinds, str):
        form = schema.get("format")
        if kinds == "string" and isinstance(form, str) and form:
            return f"string of the format {shorten(form, _TEXT)}"
        return shorten(kinds)
    if is_array(kinds):
        return shorten(either(str(kind) for kind in kinds))
    for keyword in ("anyOf", "oneOf"):
        branches = schema.get(keyword)
        if is_array(branches) and branches:
            simple = [
                "any value" if _has_alternatives(branch) else expected_of(branch) for branch in branches
            ]
            return "any value" if "any value" in simple else shorten(either(simple))
    return "object" if "properties" in schema else "array" if "items" in schema else "any value"


def one_of(options: list[Any]) -> str:
    """Writes choices as `one of "a", "b"`, or the only one there is."""
    texts = [literal(option) for option in options[:1000]]
    return texts[0] if len(texts) == 1 else f"one of {either(texts)}"


def _has_alternatives(schema: Any) -> bool:
    return is_object(schema) and ("anyOf" in schema or "oneOf" in schema)
