"""Makes an observation of the bytes that a script was given, under guards: nothing large or deep is parsed."""

from __future__ import annotations

import json
import re
from itertools import accumulate
from typing import Any, Final, NoReturn

from pydantic_core import from_json

from cellblock.tools.catalog.outputs import ResultKind
from cellblock.tools.schemas.validation import InputValidator
from cellblock.types.learning.infer import NOTHING, Shape, shape_of
from cellblock.types.learning.infer.fits import Fits
from cellblock.types.learning.infer.shape import NAME
from cellblock.types.learning.observation import (
    MAX_DISAGREEMENT_CHARS,
    GivenCheck,
    Observation,
    fingerprint,
)

MAX_SAMPLE_BYTES: Final = 4 * 1024 * 1024
"""Sets the largest result that is looked at: parsing it takes about 20 ms of the learner's thread."""

MAX_DOCUMENT_DEPTH: Final = 512
"""Sets the deepest JSON in a text that is parsed, for scripts and for what is learnt; Python's parser takes some 900
levels."""

MAX_KEPT_CHARS: Final = 2_000
"""Bounds the characters of a sample that is kept, where that is asked for: it is shown to agents."""

# To the end of the text where none ends it: else each quote in it would be tried as a beginning.
_STRING: Final = re.compile(r'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)', re.DOTALL)
_NOT_BRACKET: Final = re.compile(r"[^][{}]+")
_STEP: Final = {"[": 1, "{": 1, "]": -1, "}": -1}

UNREAD: Final = object()
"""Stands for a value that has not been kept."""


class TooDeep(ValueError):
    """Tells that a text seems to be JSON, and nests too deeply to be parsed."""


def too_deep(text: str) -> bool:
    """Says whether JSON text nests deeper than `MAX_DOCUMENT_DEPTH`, without parsing it."""
    if text.count("[") + text.count("{") <= MAX_DOCUMENT_DEPTH:
        return False
    brackets = _NOT_BRACKET.sub("", _STRING.sub("", text))
    return max(accumulate(map(_STEP.__getitem__, brackets)), default=0) > MAX_DOCUMENT_DEPTH


def parse_document(text: str) -> Any | None:
    """Parses a text that is a JSON object or array, as `JSON.parse` reads it; None when it is anything else.

    A text that is only a number or a word could be JSON by chance, and counts as text.

    Raises:
        TooDeep: It nests deeper than `MAX_DOCUMENT_DEPTH`.
    """
    if text.lstrip(" \t\r\n")[:1] not in ("{", "["):
        return None
    try:
        # The same names come again and again, the same texts do not: caching those too takes twice as long.
        return from_json(text, allow_inf_nan=False, cache_strings="keys")
    except ValueError:
        pass
    # The fast parser refuses lone surrogates, nesting over 200, and integers of thousands of digits.
    if too_deep(text):
        raise TooDeep(f"its text nests deeper than {MAX_DOCUMENT_DEPTH} levels")
    try:
        return json.loads(text, parse_constant=_refuse, parse_int=float)
    except ValueError:
        return None


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)


def observe(
    kind: ResultKind,
    body: bytes,
    now: float,
    *,
    declared: Any = None,
    validator: InputValidator | None = None,
    keep_sample: bool = False,
    value: Any = UNREAD,
    known: Fits | None = None,
    known_document: Fits | None = None,
) -> Observation:
    """Makes one result an observation of one sample; its shape is `NOTHING` when that adds nothing to what is known.

    Args:
        kind: What the script got; `text` is searched for JSON here.
        body: The JSON that it got.
        now: Seconds since the epoch.
        declared: The declared output schema, or None.
        validator: The validator of `declared`.
        keep_sample: Whether a small result is kept with it.
        value: What `body` was made from, if it is still there: then it need not be parsed.
        known: What is known of structured results.
        known_document: The same of JSON in texts.
    """
    skipped = Observation(skipped=1, first_seen=now, last_seen=now)
    if len(body) > MAX_SAMPLE_BYTES:
        return skipped
    if kind == "result":
        # Its type is known from the protocol; content of a tool that declares an output is a disagreement.
        return _seen(now, results=True, **_missing(declared))
    sample = body.decode() if keep_sample and len(body) <= MAX_KEPT_CHARS else None
    fits = known if kind == "value" else known_document
    if kind != "text" and value is not UNREAD and fits is not None and fits(value):
        misfit = _misfit(value, validator) if kind == "value" else _missing(declared)
        return _seen(now, sample=sample, **misfit)
    try:
        if kind == "json":
            value = parse_document(body.decode())
        elif kind == "value" or not isinstance(value, str):
            value = from_json(body, allow_inf_nan=False, cache_strings="keys")
        document = parse_document(value) if kind == "text" else value
    except ValueError:
        return skipped
    if kind == "value":
        return _seen(now, value=_shape(value, fits), sample=sample, **_misfit(value, validator))
    if kind == "text":
        if document is None:
            return _seen(now, texts=True, sample=sample, **_missing(declared))
        if sample is not None:
            sample = value
    return _seen(now, document=_shape(document, fits), sample=sample, **_missing(declared))


def _shape(value: Any, fits: Fits | None) -> Shape:
    return NOTHING if fits is not None and fits(value) else shape_of([value])


def _seen(now: float, **fields: Any) -> Observation:
    return Observation(samples=1, first_seen=now, last_seen=now, **fields)


def _missing(declared: Any) -> dict[str, Any]:
    if declared is None:
        return {}
    return {"disagreements": 1, "disagreement": "the result has no structured content"}


def check_given(
    kind: ResultKind, body: bytes, value: Any, schema: Any, validator: InputValidator, *, json_text: bool
) -> GivenCheck:
    """Holds one result against the output schema that the user gives.

    Args:
        kind: What the script got.
        body: The JSON that it got.
        value: What `body` was made from, or `UNREAD`.
        schema: What is given.
        validator: The validator of `schema`.
        json_text: Whether it is of the JSON in a text, where a script gets a text.
    """
    of = fingerprint(schema, json_text)
    try:
        plain = from_json(body) if value is UNREAD else value
        if json_text and kind != "json":
            plain = parse_document(plain) if kind == "text" else None
            if plain is None:
                return GivenCheck(of, 1, 1, "the result is no JSON text")
    except ValueError:
        return GivenCheck(of)
    misfit = _misfit_text(plain, validator, "given")
    return GivenCheck(of, 1, int(bool(misfit)), misfit)


def _misfit(value: Any, validator: InputValidator | None) -> dict[str, Any]:
    misfit = _misfit_text(value, validator, "declared") if validator is not None else ""
    return {"disagreements": 1, "disagreement": misfit} if misfit else {}


def _misfit_text(value: Any, validator: InputValidator, by: str) -> str:
    """Says how a value does not fit; empty when it does."""
    violation = validator.check(value)
    if violation is None:
        return ""
    # The path comes from the result: names that are no identifiers could say anything.
    steps = [step if step.isdigit() or NAME.match(step) else "*" for step in violation.path.split("/")[1:]]
    place = "/" + "/".join(steps) if steps else "the root"
    return f"at {place}: {by} {violation.expected}"[:MAX_DISAGREEMENT_CHARS]
