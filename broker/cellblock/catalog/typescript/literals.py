"""Makes shapes of `const` and `enum` values: a literal object is a closed object of literals, an array a tuple."""

from __future__ import annotations

import math
from typing import Any

from cellblock.catalog.typescript.budget import Budget
from cellblock.catalog.typescript.document import Location
from cellblock.catalog.typescript.keywords import kind_of
from cellblock.catalog.typescript.limits import MAX_DEPTH, MAX_KEY_CHARS, MAX_LITERAL_CHARS, MAX_LITERAL_NODES
from cellblock.catalog.typescript.shapes import (
    ANY_ARRAY,
    OPEN_OBJECT,
    Array,
    Keyword,
    Literal,
    Object,
    Property,
    Shape,
)

_MAX_EXACT = 2**53


def widened(value: object) -> Shape:
    """Gives the kind of a JSON value alone."""
    kind = kind_of(value)
    if kind == "object":
        return OPEN_OBJECT
    return ANY_ARRAY if kind == "array" else Keyword(kind)


def literal_shape(value: object, budget: Budget, where: Location) -> Shape:
    """Gives the shape of exactly one JSON value, or of its kind (with a warning) when that is too large."""
    left = [MAX_LITERAL_NODES]
    shape = _shape(value, left, 0)
    if left[0] < 0:
        budget.warn("A literal value is too large to declare; only its kind is.", where)
        return widened(value)
    return shape


def _shape(value: Any, left: list[int], depth: int) -> Shape:
    left[0] -= 1
    if depth > MAX_DEPTH:
        left[0] = -1
    if left[0] < 0:
        return widened(value)
    kind = kind_of(value)
    if kind == "null":
        return Keyword("null")
    if kind == "boolean":
        return Literal(bool(value))
    if kind == "number":
        # JavaScript holds no other number past this size exactly, so nothing narrower is certain.
        exact = abs(value) <= _MAX_EXACT and math.isfinite(value)
        return Literal(value) if exact else Keyword("number")
    if kind == "string":
        if len(value) > MAX_LITERAL_CHARS:
            left[0] = -1
        return Literal(value)
    if kind == "array":
        return Array(tuple(_shape(item, left, depth + 1) for item in value), len(value))
    if any(len(str(key)) > MAX_KEY_CHARS for key in value):
        left[0] = -1
    return Object(
        tuple(Property(str(key), _shape(item, left, depth + 1), True) for key, item in value.items())
    )
