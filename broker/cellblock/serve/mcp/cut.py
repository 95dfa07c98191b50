"""Cuts away the parts of a message that nobody here needs. Runs on the loop for small messages, and in a
process apart for the others, so it imports next to nothing."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from cellblock.base.json import is_array, is_object

MAX_VALUES: Final = 50_000
"""Bounds the values of a message, counted one by one: so many the loop decodes in some milliseconds, however long the
texts among them are. A request has a dozen; an answer of a client to a server's question has few, and at times an
image."""

MAX_REST_BYTES: Final = 256 * 1024
"""Bounds a message beside its long texts."""

LONG_CHARS: Final = 16 * 1024
"""Sets from where on a text is long: a script, or an image. The loop decodes it in one piece."""

MAX_ESCAPES: Final = 1024 * 1024
"""Bounds the escapes of a message: one for each character of the largest script. They take most of the time of a long
text."""

MAX_ID_CHARS: Final = 1_000
"""Bounds the id of a message that is refused."""

_MESSAGE: Final = ("jsonrpc", "id", "method", "params", "result", "error")
_CALL: Final = ("name", "arguments", "_meta", "task", "inputResponses", "requestState")
_META: Final = ("progressToken", "traceparent", "tracestate")
_PROTOCOL: Final = "io.modelcontextprotocol/"


def cut(body: bytes) -> tuple[bytes, Any]:
    """Returns a message without what nobody needs of it: unknown members, and all of `_meta` that is neither the
    protocol's nor about progress and traces.

    Returns:
        The message, and what it is as Python data.

    Raises:
        ValueError: It is no JSON.
        RecursionError: It is nested too deep.
    """
    message: Any = json.loads(body)
    if is_object(message):
        message = _picked(message, _MESSAGE)
        params: Any = message.get("params")
        if is_object(params):
            if message.get("method") == "tools/call":
                params = _picked(params, _CALL)
            meta: Any = params.get("_meta")
            if is_object(meta):
                params["_meta"] = {
                    key: value for key, value in meta.items() if key in _META or key.startswith(_PROTOCOL)
                }
            message["params"] = params
    return _encoded(message), message


def cut_apart(_: Mapping[str, Any], body: bytes) -> tuple[dict[str, Any], Sequence[bytes]]:
    """Cuts a message as a task (`base.offload`): tells what is wrong with it or too much in it, and gives it back if
    the loop may decode it."""
    try:
        short, message = cut(body)
    except (ValueError, RecursionError) as error:
        return {"wrong": f"{type(error).__name__}: {error}"[:MAX_ID_CHARS]}, ()
    known = message.get("id") if is_object(message) else None
    facts: dict[str, Any] = {"id": known if _is_id(known) else None}
    values, long = measured(message, MAX_VALUES)
    escapes = short.count(b"\\")
    for found, most, what in (
        (values, MAX_VALUES, "values"),
        (len(short) - escapes - long, MAX_REST_BYTES, "bytes beside its long texts"),
        (escapes, MAX_ESCAPES, "escaped characters"),
    ):
        if found > most:
            return {**facts, "much": f"over {most} {what}"}, ()
    return {**facts, "values": values}, (short,)


def measured(data: object, bound: int) -> tuple[int, int]:
    """Counts the values in JSON data, and the bytes of their long texts; over `bound` values, some number that is over
    it."""
    count, long, waiting = 0, 0, [data]
    while waiting and count <= bound:
        item = waiting.pop()
        count += 1
        if is_object(item):
            waiting.extend(item.values())
        elif is_array(item):
            waiting.extend(item)
        elif isinstance(item, str) and len(item) >= LONG_CHARS:
            long += len(item.encode("utf-8", "surrogatepass"))
    return count, long


def _picked(given: dict[str, Any], keys: Sequence[str]) -> dict[str, Any]:
    return {key: given[key] for key in keys if key in given}


def _is_id(value: object) -> bool:
    return (isinstance(value, str) and len(value) <= MAX_ID_CHARS) or (
        isinstance(value, int) and not isinstance(value, bool) and abs(value) < 2**63
    )


def _encoded(message: Any) -> bytes:
    try:
        return json.dumps(message, ensure_ascii=False, separators=(",", ":")).encode()
    except UnicodeEncodeError:
        # Half an emoji has no UTF-8, but an escape.
        return json.dumps(message, separators=(",", ":")).encode()
