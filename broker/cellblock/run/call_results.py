"""Makes of a tool's result what a script gets, as JSON, and says which number it does not get with its digits; and of a
failure a hint that is safe: never to repeat what may have been done."""

from __future__ import annotations

import json
import math
import re
from typing import Final, NamedTuple

import msgspec

from cellblock.base import payload
from cellblock.base.errors import Certainty, ToolCallError
from cellblock.base.raw_json import RawJson, step_for
from cellblock.run.policy.grants import effect_of
from cellblock.tools.catalog.model import ResultKind, ToolEntry
from cellblock.tools.python.tool_results import no_form, too_large
from cellblock.tools.upstream.wire.messages import decoded, member_alone, quoted
from cellblock.tools.upstream.wire.results import ResourceResult, ToolResult
from cellblock.types.learning.sample import TooDeep, parse_document

MAX_ERROR_TEXT = 2_000

READ_BYTES = 256 * 1024
"""Bounds what is decoded here: the result of an error that a script is given whole, and a text that may be JSON."""


LOOK_FIRST: Final = "Look whether the call took effect before you repeat it."
REPEAT: Final = "Nothing was changed, as the tool only reads: call it again, or ask for less."
UNCHANGED: Final = "Nothing was changed, as the tool only reads."

MAX_SEARCHED_CHARS: Final = 2_000
"""Bounds the part of a message where it would say that the outcome is open."""

_OPEN: Final = re.compile(
    r"\btime[ds]?[ -]?out\b|\bdeadline exceeded|\b(?:may|might|could)(?: \w+)? have\b|\bdid not answer\b"
    r"|\bno response\b|\bconnection (?:was )?(?:reset|lost|closed|aborted)|\bbad gateway|\bgateway time|\b50[234]\b"
    r"|\b(?:unconfirmed|not (?:yet )?confirmed|unknown (?:whether|state|status|outcome|result))\b"
    r"|\b(?:still|already) (?:running|processing|pending)\b|\bin progress\b|\bpartial(?:ly)?\b",
    re.IGNORECASE,
)
"""Matches what tools say when they do not know themselves whether they did something, or how much of it."""

MOST_EXACT: Final = 2**53 - 1
"""Is the largest integer up to which JavaScript tells each one from its neighbours."""

SCANNED_BYTES: Final = 1024 * 1024
SCANNED_NUMBERS: Final = 2_000
"""Bound what is looked through of a value on the loop, and the long numbers in it; together they take some 8 ms."""

# As zeros, so that one search finds any digits, with a sign too: a regular expression takes a hundred times as long.
_ZEROS: Final = bytes.maketrans(b"123456789+E", b"0000000000e")
_LONG: Final = b"0" * 16
_FAR: Final = b"0e000"
_LIKE_JSON: Final = re.compile(rb'"(?:\s|\\[nrt])*(?:\{|\[(?:\s|\\[nrt])*(?:[\[{\d-]|\\"))')
_SIGNS: Final = b"0123456789.eE+-"
_NUMBER: Final = re.compile(rb'(?<![\w.+"-])-?\d{1,4000}(\.\d+)?([eE]\+?\d{3,9})?(?=[\s,\]}]|\Z)')


class Unwrapped(NamedTuple):
    """Holds what the script gets, as JSON, and which rule gave it."""

    body: bytes
    kind: ResultKind


def unwrap(
    result: ToolResult, *, server: str, tool: str, parse_text: bool = False, box: str | None = None
) -> Unwrapped:
    """Applies the rules in order: structured content, a single text block, else the full result.

    Args:
        result: What the server answered.
        server: For the error.
        tool: For the error.
        parse_text: Gives what a single text block says when it is a JSON object or array (a setting; section 5.3.2
            has the text itself). The text is the JSON of it.
        box: Gives this property of structured content that has no other (a setting).

    Raises:
        ToolCallError: The result is an error (`isError`).
        PayloadError: The text is JSON that is nested too deeply to be parsed, or the result is.
    """
    try:
        if result.is_error:
            raise _tool_error(result, server, tool)
        structured = result.structured
        if structured is not None:
            inner = member_alone(structured, box) if box is not None else None
            return Unwrapped(inner or structured, "value")
        text = result.only_text
        if text is None:
            return Unwrapped(result.whole(), "result")
        if parse_text and text[1:2] in (b"{", b"[", b" ", b"\\"):
            said: str = decoded(text)
            if _is_document(said):
                return Unwrapped(said.encode(), "json")
        return Unwrapped(text, "text")
    except TooDeep as error:
        raise payload.PayloadError(str(error)) from None
    except RecursionError:
        raise payload.PayloadError("it nests too deeply") from None


def _is_document(said: str) -> bool:
    """Says whether a text is a JSON object or array. Raises TooDeep or RecursionError."""
    if len(said) <= READ_BYTES:
        return parse_document(said) is not None
    if said.lstrip(" \t\r\n")[:1] not in ("{", "["):
        return False
    try:
        msgspec.json.decode(said, type=msgspec.Raw)
    except msgspec.DecodeError:
        return False
    return True


def _tool_error(result: ToolResult, server: str, tool: str) -> ToolCallError:
    text = result.said() or "no message"
    if len(text) > MAX_ERROR_TEXT:
        text = text[:MAX_ERROR_TEXT] + "…"
    whole = {"result": result.plain()} if len(result.body) <= READ_BYTES else {}
    return ToolCallError(
        text,
        hint="Read the tool's message and correct the call.",
        certainty=Certainty.COMPLETED,
        summary="the tool answered with an error",
        serverId=server,
        toolName=tool,
        **whole,
    )


async def result_of(
    result: ToolResult | ResourceResult | RawJson, server: str, tool: ToolEntry, max_bytes: int
) -> Unwrapped:
    """Makes the JSON for the script.

    Args:
        result: What the tool gave.
        server: The server's id.
        tool: The tool.
        max_bytes: Cap of the JSON.

    Raises:
        ToolCallError: The result is an error, has no JSON form, or is over the cap.
    """
    kind: ResultKind = "value"
    if isinstance(result, RawJson):
        body = result.raw
    elif isinstance(result, ResourceResult):
        body, is_text = result.for_script()
        kind = "text" if is_text else kind
    else:
        await step_for(result.body)
        try:
            body, kind = unwrap(
                result, server=server, tool=tool.tool_name, parse_text=tool.parse_text, box=tool.box
            )
        except payload.PayloadError as error:
            raise no_form(tool.tool_name, str(error)) from None
    if len(body) > max_bytes:
        raise too_large(tool.tool_name, len(body), max_bytes)
    return Unwrapped(body, kind)


def fit_hint(error: ToolCallError, tool: ToolEntry) -> None:
    """Has the hint of a call that was made say what is safe: to correct a call means to repeat it."""
    if error.certainty is Certainty.NOT_STARTED:
        return
    reads = effect_of(tool) == "read"
    if _OPEN.search(error.message[:MAX_SEARCHED_CHARS]):
        error.hint = REPEAT if reads else LOOK_FIRST
    elif reads and error.certainty is Certainty.COMPLETED:
        error.hint = f"{error.hint} {UNCHANGED}"


def inexact(body: bytes, server: str | None, *, exact: bool) -> str | None:
    """Returns a sentence on a number of a value, or of a text that is JSON, that a script does not get with its digits;
    None for none. Of a large value the beginning is looked through. Nothing is decoded.

    Args:
        body: The value as JSON.
        server: Its server's name in the configuration; None where that cannot have it exact.
        exact: Whether the script gets such integers as bigints.
    """
    is_text, is_json = body.startswith(b'"'), _LIKE_JSON.match(body) is not None
    if is_text and not (is_json and body[-64:].rstrip(b' \\nrt"').endswith((b"}", b"]"))):
        return None
    if len(body) > SCANNED_BYTES:
        body = body[:SCANNED_BYTES].rstrip(_SIGNS)
    if is_text:
        # As it is decoded, but for what is no number in either.
        body = body[1:].replace(b"\\\\", b"\0").replace(b'\\"', b'"').replace(b"\0", b"\\")
    zeros = body.translate(_ZEROS)
    for mark in (_FAR,) if exact else (_FAR, _LONG):
        if mark not in zeros or (found := _first(body, zeros, mark)) is None:
            continue
        number, place = found
        if isinstance(number, float):
            sign = "-" if number < 0 else ""
            return f"The number {place} is past the range of numbers, and is {sign}Infinity."
        said = f"The integer {place} is beyond 2^53, and rounded as a number: it is {str(number)[:40]}."
        if server is None:
            return said
        setting = json.dumps({server: "bigint"}, ensure_ascii=False)
        return f"{said} With `schemas.unwrap` at {setting} scripts get it as a BigInt."
    return None


def _first(body: bytes, zeros: bytes, mark: bytes) -> tuple[int | float, str] | None:
    """Finds the first number at a mark that JavaScript does not have, and says where."""
    at, counted, is_in_text = 0, 0, False
    for _ in range(SCANNED_NUMBERS):
        if (at := zeros.find(mark, at)) < 0:
            break
        head = body[max(0, at - 400) : at]
        begin = at - len(head) + len(head.rstrip(_SIGNS))
        found = _NUMBER.match(body, begin)
        at = max(at + len(mark), 0 if found is None else found.end())
        if found is None or (found[1] and not found[2]):
            continue
        number = float(found[0]) if found[2] else int(found[0])
        if math.isinf(number) if isinstance(number, float) else abs(number) > MOST_EXACT:
            between = body[counted:begin].replace(b"\\\\", b"").replace(b'\\"', b"")
            counted, is_in_text = begin, is_in_text != (between.count(b'"') % 2 == 1)
            if not is_in_text:
                name = quoted(head.rpartition(b'":')[0].rpartition(b'"')[2])
                behind = f', behind "{name}",' if name else ""
                return number, f"at byte {begin:,}{behind}"
    return None
