"""Says what is wrong with a line that is no message, as JSON-RPC 2.0 has it (section 5.1). Imports next to nothing, for
`connect`."""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

from cellblock.base.json import is_object

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
CONNECTION_CLOSED: Final = -32000

MAX_WHY_CHARS: Final = 300
"""Bounds the text that says what is wrong with a line."""

NO_UTF8: Final = "it is no UTF-8"

ID: Final = rb'(-?(?:0|[1-9]\d{0,17})|"[ !#-\[\]-~]{1,100}")'
"""Matches the id of a message, as nearly all clients write one."""

_AT_THE_START: Final = re.compile(rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"id"\s*:\s*' + ID + rb"\s*,")
_AT_THE_END: Final = re.compile(rb',\s*"id"\s*:\s*' + ID + rb"\s*\}\s*\Z")


AS_IT_IS_BYTES: Final = 16 * 1024
"""Bounds the messages that are taken as they are, as nearly all are."""


class Misread(NamedTuple):
    """Holds the error that answers a line."""

    code: int
    request_id: int | str | None
    why: str

    def answer(self) -> dict[str, Any]:
        """Returns the error as a message."""
        error = {"code": self.code, "message": self.why}
        return {"jsonrpc": "2.0", "id": self.request_id, "error": error}


class NotTaken(Exception):
    """Tells that a message is not decoded; `found` is what its sender is told.

    Args:
        why: In words.
        code: Of JSON-RPC.
        request_id: What it answers, if that is known.
    """

    def __init__(self, why: str, code: int = INVALID_REQUEST, request_id: int | str | None = None) -> None:
        super().__init__(why)
        self.found = Misread(code, request_id, why)


def misread_message(message: Any) -> Misread | None:
    """Says what is wrong with JSON data that is no message; None where nobody is to be told.

    Args:
        message: The data, which is held against the four kinds of messages already.
    """
    if not is_object(message):
        return Misread(INVALID_REQUEST, None, "A message is one JSON object.")
    request_id = id_of(message)
    if not isinstance(message.get("method"), str) and ("result" in message or "error" in message):
        return None
    if "method" not in message:
        return Misread(INVALID_REQUEST, request_id, "A request has a `method`.")
    if message.get("jsonrpc") != "2.0":
        return Misread(INVALID_REQUEST, request_id, '`jsonrpc` is not "2.0".')
    if not isinstance(message["method"], str):
        return Misread(INVALID_REQUEST, request_id, "`method` is no string.")
    # A notification is not answered, whatever is wrong with it.
    return None if "id" not in message else Misread(INVALID_PARAMS, request_id, "`params` is no object.")


def misread_line(line: str, why: str) -> Misread | None:
    """Says what is wrong with a line that a parser does not take; None where nobody is to be told.

    Args:
        line: As text, with something in the place of what is no text.
        why: What the parser says.
    """
    if not line.strip():
        return None
    try:
        # Takes what other parsers do not, such as half an emoji: the id at least is then known.
        data: object = json.loads(line)
    except (ValueError, RecursionError):
        data = None
    request_id = None
    if is_object(data):
        if "method" not in data and ("result" in data or "error" in data):
            return None
        request_id = id_of(data)
    return Misread(PARSE_ERROR, request_id, f"The line cannot be read: {why[:MAX_WHY_CHARS]}.")


def id_at_the_start(start: bytes) -> int | str | None:
    """Returns the id that stands at the start of a long message, before all that may be long: there it is nothing
    else's."""
    found = _AT_THE_START.match(start)
    return json.loads(found[1]) if found else None


def id_at_the_end(end: bytes) -> int | str | None:
    """Returns the id that stands at the end of a long message, behind all that may be long."""
    found = _AT_THE_END.search(end)
    return json.loads(found[1]) if found else None


def id_of(message: dict[str, Any]) -> int | str | None:
    """Returns the id of a message, if it is one."""
    return as_id(message.get("id"))


def as_id(given: object) -> int | str | None:
    """Returns JSON data as an id, if it is one."""
    return given if isinstance(given, int | str) and not isinstance(given, bool) else None
