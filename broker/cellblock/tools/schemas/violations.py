"""A violation says why a value does not fit a schema, in words, and the one corrective action for it (Code Mode
specification, sections 7.2 and 7.3)."""

from __future__ import annotations

import json
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, Final

from cellblock.base.errors import counted, shorten
from cellblock.base.json import is_array, is_object
from cellblock.base.suggest import nearest_names

MAX_CHARS: Final = 120
"""Sets the longest `expected` or `received`, in characters."""
_TEXT: Final = 60
_KEYS: Final = 5
_CHOICES: Final = 12
MAX_POINTER_CHARS: Final = 500
MAX_CANDIDATES: Final = 5_000


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


UNCLEAR: Final = Violation(
    path="",
    message="The input does not fit the schema of the tool.",
    expected="what the tool's inputSchema describes",
    received="a value too large to say where it differs",
    keyword="",
)
"""Stands for a violation whose place would take too long to find."""


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
