"""Makes an observation of the bytes that a script was given, under a guard: nothing deep is parsed."""

from __future__ import annotations

import json
from contextlib import suppress
from typing import Any, Final, NamedTuple, NoReturn

import msgspec
from msgspec import Raw
from pydantic_core import from_json

from cellblock.base.raw_json import is_deeper
from cellblock.tools.catalog.model import ResultKind
from cellblock.tools.schemas.validation import InputValidator
from cellblock.types.learning.observation import (
    MAX_DISAGREEMENT_CHARS,
    NOT_GIVEN,
    Forms,
    GivenCheck,
    Observation,
)
from cellblock.types.learning.shape import NAME, shape_of

MAX_DOCUMENT_DEPTH: Final = 512
"""Sets the deepest JSON that is parsed, for scripts and for what is learnt; Python's parser takes some 900 levels."""

MAX_SAMPLE_CHARS: Final = 2_000
"""Bounds the characters of a sample that is kept, where that is asked for: it is shown to agents."""

LEARNT_BYTES: Final = 128 * 1024
"""Bounds the part of one result that is looked at."""

SHOWN_CHARS: Final = 200
"""Sets what is left of a text that is over its share."""

_items: Final = msgspec.json.Decoder(list[Raw])
_fields: Final = msgspec.json.Decoder(dict[str, Raw])


class TooDeep(Exception):
    """Tells that a text seems to be JSON, and nests too deeply to be parsed."""


class GivenOutput(NamedTuple):
    """Holds the output schema that the user gives: its fingerprint, its validator, and whether it is of the JSON in a
    text, where a script gets a text."""

    of: str
    validator: InputValidator
    json_text: bool


def parse_document(text: str) -> Any | None:
    """Parses a text that is a JSON object or array, as `JSON.parse` reads it; None when it is anything else.

    A text that is only a number or a word could be JSON by chance, and counts as text.

    Raises:
        TooDeep: It nests deeper than `MAX_DOCUMENT_DEPTH`.
    """
    if text.lstrip(" \t\r\n")[:1] not in ("{", "["):
        return None
    try:
        return _parsed(text)
    except ValueError:
        return None


def _parsed(text: str) -> Any:
    """Parses JSON. Raises ValueError, TooDeep."""
    try:
        # The same names come again and again, the same texts do not: caching those too takes twice as long.
        return from_json(text, allow_inf_nan=False, cache_strings="keys")
    except ValueError:
        # The fast parser refuses lone surrogates, nesting over 200, and integers of thousands of digits.
        return _parsed_slowly(text)


def _parsed_slowly(text: str) -> Any:
    with suppress(RecursionError):
        value = json.loads(text, parse_constant=_refuse, parse_int=float)
        if not is_deeper(text.encode("utf-8", "surrogatepass"), MAX_DOCUMENT_DEPTH):
            return value
    raise TooDeep(f"its text nests deeper than {MAX_DOCUMENT_DEPTH} levels")


def _refuse(name: str) -> NoReturn:
    raise ValueError(name)


def observe(
    kind: ResultKind,
    body: bytes,
    now: float,
    *,
    declared: InputValidator | None = None,
    given: GivenOutput | None = None,
    keep_sample: bool = False,
    by: str = "",
) -> Observation:
    """Makes one result an observation of one sample.

    Args:
        kind: What the script got; `text` is searched for JSON here.
        body: The JSON that it got; of a large one, a part is looked at.
        now: Seconds since the epoch.
        declared: The validator of the declared output schema.
        given: What the user gives.
        keep_sample: Whether a small result is kept with it.
        by: Whose it is, as in `shape.Property`.
    """
    part = part_of(kind, body) or b""
    try:
        value = _parsed(part.decode())
        document = parse_document(value) if kind == "text" else value
    except (ValueError, TooDeep):
        return Observation(skipped=1, first_seen=now, last_seen=now, by=by)
    is_whole = part is body
    misfit = ""
    if declared is not None and kind != "value":
        misfit = "the result has no structured content"
    elif declared is not None and is_whole:
        # A part need not fit what the whole fits.
        misfit = _misfit(value, declared, "declared")
    sample = part.decode() if keep_sample and len(part) <= MAX_SAMPLE_CHARS else None
    match kind:
        case "result":
            # Its type is known from the protocol.
            shape, sample = Forms(results=True), None
        case "value":
            shape = Forms(shape_of([value], by=by))
        case _ if document is None:
            shape = Forms(texts=True)
        case _:
            shape = Forms(document=shape_of([document], by=by))
            sample = value if kind == "text" and sample is not None else sample
    return Observation(
        shape,
        samples=1,
        by=by,
        first_seen=now,
        last_seen=now,
        disagreements=int(bool(misfit)),
        disagreement=misfit,
        sample=sample,
        given=_held_against(given, kind, value, document) if given is not None and is_whole else NOT_GIVEN,
    )


def _held_against(given: GivenOutput, kind: ResultKind, value: Any, document: Any) -> GivenCheck:
    if given.json_text and kind != "json":
        if kind != "text" or document is None:
            return GivenCheck(given.of, 1, 1, "the result is no JSON text")
        value = document
    misfit = _misfit(value, given.validator, "given")
    return GivenCheck(given.of, 1, int(bool(misfit)), misfit)


def _misfit(value: Any, validator: InputValidator, by: str) -> str:
    """Says how a value does not fit; empty when it does."""
    violation = validator.check(value)
    if violation is None:
        return ""
    # The path comes from the result: names that are no identifiers could say anything.
    steps = [step if step.isdigit() or NAME.match(step) else "*" for step in violation.path.split("/")[1:]]
    place = "/" + "/".join(steps) if steps else "the root"
    return f"at {place}: {by} {violation.expected}"[:MAX_DISAGREEMENT_CHARS]


def bounded_part(body: bytes, most: int = LEARNT_BYTES) -> bytes | None:
    """Returns JSON of about `most` bytes; None where an object has too many members for that.

    Args:
        body: JSON that is known to be well-formed.
        most: Bytes.
    """
    if len(body) <= most:
        return body
    first = body[:1]
    if first == b'"':
        text: str = msgspec.json.decode(body)
        return msgspec.json.encode(text[:SHOWN_CHARS])
    if first == b"[":
        taken: list[Raw] = []
        left = most
        for item in _items.decode(body):
            part = bounded_part(bytes(item), most // 4)
            if part is None or len(part) > left:
                break
            taken.append(Raw(part))
            left -= len(part)
        return msgspec.json.encode(taken) if taken else None
    if first != b"{":
        return None
    fields = _fields.decode(body)
    share = most // max(1, len(fields))
    parts = {name: bounded_part(bytes(value), max(share, SHOWN_CHARS)) for name, value in fields.items()}
    if len(fields) > most // SHOWN_CHARS or None in parts.values():
        return None
    return msgspec.json.encode({name: Raw(part) for name, part in parts.items() if part is not None})


def part_of(kind: ResultKind, body: bytes) -> bytes | None:
    """Returns the part of a result that is looked at, the very bytes where that is all of it; None for none."""
    if len(body) <= LEARNT_BYTES:
        return body
    try:
        # Of a text it is the JSON in it, if any.
        inner: bytes = msgspec.json.decode(body).strip().encode() if kind == "text" else b""
        if inner[:1] not in (b"[", b"{"):
            return bounded_part(body)
        part = bounded_part(inner)
    except (msgspec.DecodeError, RecursionError):
        return None
    return None if part is None else msgspec.json.encode(part.decode())
