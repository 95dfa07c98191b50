"""Makes a message of the SDK of a line of a stdio server: one that cannot be read fails at once what it answers."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any, Final

import mcp_types as types
from pydantic import ValidationError

from cellblock.base.json import is_array, is_object
from cellblock.tools.upstream.lines import answered_id

if TYPE_CHECKING:
    from mcp.shared.message import SessionMessage

NO_ANSWER: Final = "cellblock: the answer is no JSON-RPC response"
"""Words the error that a request is failed with whose answer cannot be read."""

VALUE_KEY: Final = "cellblock/value"
"""Names the place, in the `_meta` of a small result, of the value that belongs to it."""

TOO_LARGE_START: Final = "cellblock: the message "
"""Begins the error that a request fails with whose answer is too large to be read, or could not be."""

NO_PLACE: Final = "is larger than it may be for what was asked"
ASKS_TOO_MUCH: Final = "asks for input, and is too large to be passed on"
"""Words the reason why a message could not be read."""

PASSED_ON: Final = {"resources/read": "contents", "prompts/get": "messages"}
"""Maps the requests whose results may be large, and reach a client as they are, to what is large in them."""

MAX_DEPTH: Final = 200
"""Bounds the nesting of a message, as the fast parser does; the SDK cannot handle much more."""


def read_message(line: bytes) -> SessionMessage | Exception:
    """Returns the message, or what was wrong with the line where it answers nothing that is known."""
    from mcp.shared.message import SessionMessage

    message = parse_message(line)
    return message if isinstance(message, Exception) else SessionMessage(message)


def parse_message(line: bytes) -> types.JSONRPCMessage | Exception:
    """Reads a message without the SDK around it, whose import takes long."""
    try:
        return types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    except ValueError as error:
        return _second_look(line, error)


def _second_look(line: bytes, why: ValueError) -> types.JSONRPCMessage | Exception:
    """Reads a line that the fast parser refuses: JSON allows lone surrogates, which half of a cut emoji is, and that
    parser does not: they become U+FFFD."""
    answers: object = answered_id(line, line)
    try:
        data: object = _well_formed(json.loads(line))
        if is_object(data):
            answers = None if "method" in data else data.get("id")
        return types.jsonrpc_message_adapter.validate_python(data, by_name=False)
    except (ValidationError, ValueError, RecursionError):
        pass
    if not isinstance(answers, int | str) or isinstance(answers, bool):
        return why
    error = types.ErrorData(code=types.INTERNAL_ERROR, message=NO_ANSWER)
    return types.JSONRPCError(jsonrpc="2.0", id=answers, error=error)


def _well_formed(value: Any, depth: int = 0) -> Any:
    """Returns a value as it is, with well-formed texts; raises ValueError where it is nested too deep."""
    if depth > MAX_DEPTH:
        raise ValueError("nested too deep")
    if isinstance(value, str):
        return value.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    if is_object(value):
        items = value.items()
        return {_well_formed(key): _well_formed(item, depth + 1) for key, item in items}
    if is_array(value):
        return [_well_formed(item, depth + 1) for item in value]
    return value
