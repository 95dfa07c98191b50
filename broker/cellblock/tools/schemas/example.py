"""Makes minimal example payloads for tool inputs: the schema's own examples first, else made up.

Code Mode specification, section 7.2: an error should show one. An example is only given if it fits its schema.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import Any, Final

from cellblock.base.kept import KeptByIdentity
from cellblock.tools.schemas.alternatives import (
    ALL_KINDS,
    Alternative,
    Alternatives,
    at_key,
    at_position,
    kinds_of,
    literals_of,
)
from cellblock.tools.schemas.cost import matches
from cellblock.tools.schemas.document import Document, Location, as_list
from cellblock.tools.schemas.validation import InputValidator

MAX_EXAMPLE_CHARS: Final = 2_000
"""Sets the longest example, in characters of JSON: it ends up in a model's context."""
MAX_DEPTH: Final = 12
"""Sets the deepest nesting of a made-up example, references included."""
MAX_WORK: Final = 1_000
"""Bounds the schema objects, alternatives and properties looked at for one attempt."""
ATTEMPTS: Final = 6
"""Bounds the ways tried: with and without the schema's hints, and with different alternatives."""

_FORMATS: Final = {
    "date": "2026-01-31",
    "time": "12:00:00Z",
    "date-time": "2026-01-31T12:00:00Z",
    "duration": "PT1H",
    "uuid": "123e4567-e89b-42d3-a456-426614174000",
    "email": "user@example.com",
    "idn-email": "user@example.com",
    "hostname": "example.com",
    "ipv4": "192.0.2.1",
    "ipv6": "2001:db8::1",
    "uri": "https://example.com/",
    "uri-reference": "https://example.com/",
    "iri": "https://example.com/",
    "url": "https://example.com/",
    "json-pointer": "/a",
    "regex": "a",
}
_WORDS = "text a A 1 12 123 a1 a_b a-b a/b /a a.b ABC-1 #1 1.0.0"
_TEXTS: Final = tuple(_WORDS.split())
_HEX: Final = "0123456789abcdef0123456789abcdef01234567"
_IMPLIED: Final = (
    (frozenset({"properties", "required"}), "object"),
    (frozenset({"items", "prefixItems", "minItems"}), "array"),
    (frozenset({"pattern", "minLength", "format"}), "string"),
    (frozenset({"minimum", "exclusiveMinimum", "maximum"}), "number"),
)
"""Maps keywords to the kind of value that they are about."""


def minimal_example(schema: Mapping[str, Any] | bool | None, validator: InputValidator) -> Any | None:
    """Finds a small payload that fits a schema, or None where none was found.

    `examples` of the schema come first, whole or put together from those of its required properties, along with
    `default`, `const` and `enum`; then values are made up. What is returned always passes `validator`.

    Args:
        schema: A JSON Schema; None and `{}` accept anything, for which `{}` is the example.
        validator: The schema's validator.
    """
    if not schema or schema is True:
        return None if schema is False else {}
    if not validator.is_checking:
        return None
    for candidate in _candidates(dict(schema)):
        try:
            text = json.dumps(candidate)
        except (TypeError, ValueError, RecursionError):
            continue
        if len(text) <= MAX_EXAMPLE_CHARS and validator.check(candidate) is None:
            return json.loads(text)  # A copy: the schema's own values must not be handed out.
    return None


class CheckedSchema:
    """Holds one schema with its validator and its example."""

    def __init__(self, schema: Mapping[str, Any] | bool | None, label: str = "a tool") -> None:
        self.schema = schema
        self.validator = InputValidator(schema, label=label)

    @cached_property
    def example(self) -> Any | None:
        """Gives a minimal payload that fits the schema, or None."""
        return minimal_example(self.schema, self.validator)


class ValidatorCache(KeptByIdentity["Mapping[str, Any] | bool | None", CheckedSchema]):
    """Keeps what was made for the schemas used last, by the identity of the schema object."""

    def __init__(self, maximum: int = 1_000) -> None:
        super().__init__(CheckedSchema, maximum)


class _Impossible(Exception):
    """Tells that this attempt at an example leads nowhere."""


def _candidates(schema: dict[str, Any]) -> Iterator[Any]:
    yield from as_list(schema.get("examples"))[:ATTEMPTS]
    document = Document(schema)
    for attempt in range(ATTEMPTS):
        try:
            maker = _Maker(document, hints=attempt == 0, alternative=max(0, attempt - 1))
            yield maker.make([document.root])
        except _Impossible:
            continue


class _Followed(Alternatives):
    """Gives no alternatives of what is not known."""

    def target(self, reference: str, here: Location) -> Location:
        found = super().target(reference, here)
        if found is None:
            raise _Impossible
        return found


class _Maker:
    """Makes one attempt at an example.

    Args:
        document: The schema.
        hints: Whether `examples` and `default` of the parts are used.
        alternative: Which of the alternatives is taken, counted from the first that is not null.
    """

    def __init__(self, document: Document, *, hints: bool, alternative: int) -> None:
        self._hints = hints
        self._alternative = alternative
        self._left = MAX_WORK
        self._alternatives = _Followed(document, self._spend, lambda message, at: None)

    def make(self, locations: list[Location], depth: int = 0, variant: int = 0) -> Any:
        """Makes a value that fits all of some schemas; different ones for different variants, where that is easy."""
        self._spend(2)
        found = sorted(self._alternatives.expand(locations), key=lambda one: kinds_of(one) == ["null"])
        self._spend(sum(map(len, found)))
        if depth > MAX_DEPTH or not found:
            raise _Impossible
        rules = found[self._alternative % len(found)]
        part = {key: value for rule in reversed(rules) for key, value in rule.schema.items()}
        choices = literals_of(rules)
        if choices is None and self._hints:
            choices = as_list(part.get("examples"))
        if choices:
            return choices[variant % len(choices)]
        if self._hints and part.get("default") is not None:
            return part["default"]
        match _kind(rules, part):
            case "object":
                objects = [rule.objects for rule in rules if rule.objects is not None]
                names = [name for one in objects for name in one.required]
                self._spend(len(names))
                return {name: self.make(at_key(objects, name), depth + 1) for name in names}
            case "array":
                arrays = [rule.arrays for rule in rules if rule.arrays is not None]
                count = max((one.minimum for one in arrays), default=0)
                return [self.make(at_position(arrays, at), depth + 1, at) for at in range(count)]
            case "string":
                return _string(part, variant)
            case "number":
                return _number(part, variant, whole=any(rule.integers_only for rule in rules))
            case "boolean":
                return variant % 2 == 0
            case "null":
                return None
            case _:
                return "text" if depth else {}

    def _spend(self, amount: int) -> bool:
        self._left -= amount
        if self._left < 0:
            raise _Impossible
        return True


def _kind(rules: Alternative, part: dict[str, Any]) -> str | None:
    """Gives the kind that is made of those which rules allow; what a schema is about, where all are."""
    kinds = kinds_of(rules)
    if len(kinds) < len(ALL_KINDS):
        return kinds[0]
    return next((implied for keywords, implied in _IMPLIED if not keywords.isdisjoint(part)), None)


def _string(part: dict[str, Any], variant: int) -> str:
    least = int(_limit(part, "minLength", 0))
    most = int(_limit(part, "maxLength", MAX_EXAMPLE_CHARS))
    if least > MAX_EXAMPLE_CHARS:
        raise _Impossible
    known = _FORMATS.get(str(part.get("format")))
    pattern = part.get("pattern")
    if isinstance(pattern, str):
        fixed = pattern.removeprefix("^").removesuffix("$").replace("\\", "")
        hexes = [_HEX[:length] for length in (6, 8, 24, 32, 40)]
        letters = [letter * max(least, 1) for letter in "aA1"]
        tried = [known or "text", *_TEXTS, *_FORMATS.values(), *hexes, fixed, *letters]
        texts = [text for text in tried if matches(pattern, text)]
    else:
        texts = [(known or f"text{variant + 1 if variant else ''}").ljust(least, "a")[:most]]
    for text in texts:
        if least <= len(text) <= most:
            return text
    raise _Impossible


def _number(part: dict[str, Any], variant: int, *, whole: bool) -> int | float:
    low, above = (_limit(part, keyword, -math.inf) for keyword in ("minimum", "exclusiveMinimum"))
    high, below = (_limit(part, keyword, math.inf) for keyword in ("maximum", "exclusiveMaximum"))
    tried = [1 + variant, 0]
    tried += [number + more for number in (low, above) for more in (0, 1 + variant)]
    tried += [number - less for number in (high, below) for less in (0, 1 + variant)]
    for number in tried:
        value = math.ceil(number) if whole and math.isfinite(number) else number
        if low <= value <= high and above < value < below and math.isfinite(value):
            return value
    raise _Impossible


def _limit(part: dict[str, Any], keyword: str, absent: float) -> int | float:
    value = part.get(keyword)
    if isinstance(value, int | float) and not isinstance(value, bool) and abs(value) < 1e15:
        return value
    return absent
