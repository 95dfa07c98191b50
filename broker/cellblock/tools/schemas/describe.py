"""Describes values in short English and for what a schema asks of them; hostile and huge data stays short."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import islice
from typing import Any, Final

from cellblock.base.errors import shorten
from cellblock.base.json import is_array, is_object

MAX_CHARS: Final = 120
"""Sets the longest `expected` or `received`, in characters."""
_TEXT: Final = 60
_KEYS: Final = 5
_CHOICES: Final = 12


def received(value: Any) -> str:
    """Describes a value by its type as JavaScript names it, and abbreviated: `string "abc"`, `object with the
    properties a, b`."""
    if is_object(value):
        if not value:
            return "empty object"
        names = ", ".join(shorten(key, 20) for key in islice(value, _KEYS))
        return shorten(f"object with the properties {names}{', …' if len(value) > _KEYS else ''}", MAX_CHARS)
    if is_array(value):
        count = len(value)
        return "empty array" if count == 0 else f"array of {count} item{'' if count == 1 else 's'}"
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
