"""Takes messages of clients before the SDK decodes them: what nobody needs of a message is cut off before anything
waits with it, and one of too many values is refused. Nothing is decoded for that: native code looks at the bytes."""

from __future__ import annotations

from typing import Final, NamedTuple

import mcp_types as types
import msgspec
from msgspec import Raw

from cellblock.base.raw_json import LIGHT_BYTES, containers_in, step_for
from cellblock.serve.misread import AS_IT_IS_BYTES, PARSE_ERROR, NotTaken, as_id

MAX_VALUES: Final = 50_000
"""Bounds the values of a message, however long the texts among them are. A request has a dozen; an answer of a client
to a server's question has few, and at times an image."""

MAX_REST_BYTES: Final = 256 * 1024
"""Bounds a message beside its long texts."""

LONG_BYTES: Final = 16 * 1024
"""Sets from where on a text is long: a script, or an image. The loop decodes it in one piece."""

MAX_ESCAPES: Final = 2 * 1024 * 1024
"""Bounds the escapes of a message: two for each character of the largest script. They take most of the time of a long
text."""

CONTAINER_BYTES: Final = 256
"""Estimates what an object or an array takes beside its text: an object with one key has 184 to 232 bytes in Python."""

COPIES: Final = 3
"""Counts the copies of a message's text, in the web server, the SDK and the run."""

_META: Final = ("progressToken", "traceparent", "tracestate")
_PROTOCOL: Final = "io.modelcontextprotocol/"


class _Message(msgspec.Struct, omit_defaults=True):
    """Has the members of a message that somebody reads."""

    jsonrpc: Raw | msgspec.UnsetType = msgspec.UNSET
    id: Raw | msgspec.UnsetType = msgspec.UNSET
    method: Raw | msgspec.UnsetType = msgspec.UNSET
    params: Raw | msgspec.UnsetType = msgspec.UNSET
    result: Raw | msgspec.UnsetType = msgspec.UNSET
    error: Raw | msgspec.UnsetType = msgspec.UNSET


class _Call(msgspec.Struct, omit_defaults=True, rename="camel"):
    """Has the parameters of `tools/call` that somebody reads."""

    name: Raw | msgspec.UnsetType = msgspec.UNSET
    arguments: Raw | msgspec.UnsetType = msgspec.UNSET
    meta: Raw | msgspec.UnsetType = msgspec.field(default=msgspec.UNSET, name="_meta")
    task: Raw | msgspec.UnsetType = msgspec.UNSET
    input_responses: Raw | msgspec.UnsetType = msgspec.UNSET
    request_state: Raw | msgspec.UnsetType = msgspec.UNSET


class Taken(NamedTuple):
    """Holds a message that the loop may decode."""

    body: bytes
    weight: int
    """Estimates how many bytes the message takes with what it is decoded to."""


async def take(raw: bytes) -> Taken:
    """Returns what is to be decoded of a client's message, a large one in steps.

    Raises:
        NotTaken: It is too large or no JSON.
    """
    if len(raw) <= AS_IT_IS_BYTES:
        return Taken(raw, _weight(raw, containers_in(raw)))
    await step_for(raw)
    try:
        message = _envelope(raw)
    except (msgspec.DecodeError, RecursionError) as error:
        if len(raw) <= LIGHT_BYTES:
            # Whoever decodes it says what is wrong.
            return Taken(raw, _weight(raw, containers_in(raw)))
        raise NotTaken(f"This message is no JSON that can be read: {error}.", PARSE_ERROR) from None
    if message is not None:
        if isinstance(message.params, Raw) and message.method == Raw(b'"tools/call"'):
            await step_for(raw)
            message.params = await _picked(message.params)
        raw = msgspec.json.encode(message)
    await step_for(raw)
    values, much = _measured(raw)
    if much is not None:
        raise NotTaken(
            f"This message has over {much}. Send less: let the script get its data through tools.",
            request_id=_id(message),
        )
    # Whoever gets it decodes it at once.
    await step_for(raw)
    return Taken(raw, _weight(raw, values))


def _envelope(raw: bytes) -> _Message | None:
    """Takes a message apart; None for JSON that is no object. Raises DecodeError, RecursionError: It is no JSON."""
    try:
        return msgspec.json.decode(raw, type=_Message)
    except msgspec.ValidationError:
        msgspec.json.decode(raw, type=Raw)
        return None


async def _picked(params: Raw) -> Raw:
    """Returns the parameters of a call without unknown members, and of `_meta` what is the protocol's or about progress
    and traces."""
    try:
        call = msgspec.json.decode(params, type=_Call)
        await step_for(bytes(params))
        if isinstance(call.meta, Raw):
            # One of very many texts is nothing that a client needs.
            few = bytes(call.meta).count(b'"') <= 4 * MAX_VALUES
            meta = msgspec.json.decode(call.meta, type=dict[str, Raw]) if few else {}
            kept = {key: value for key, value in meta.items() if key in _META or key.startswith(_PROTOCOL)}
            call.meta = Raw(msgspec.json.encode(kept))
    except msgspec.DecodeError:
        return params
    return Raw(msgspec.json.encode(call))


def _measured(raw: bytes) -> tuple[int, str | None]:
    """Returns how many values JSON has, and what it has too much of."""
    escapes = raw.count(b"\\")
    if escapes > MAX_ESCAPES:
        return 0, f"{MAX_ESCAPES} escaped characters"
    # Without escapes, each quote is the beginning or the end of a text.
    bare = raw.replace(b"\\\\", b"").replace(b'\\"', b"") if escapes else raw
    if bare.count(b'"') > 4 * MAX_VALUES:
        return 0, f"{MAX_VALUES} values"
    parts = bare.split(b'"')
    rest = len(bare) - sum(len(text) for text in parts[1::2] if len(text) >= LONG_BYTES)
    outside = b"".join(parts[::2])[:MAX_REST_BYTES]
    values = 1 + outside.count(b",") + containers_in(outside)
    if values > MAX_VALUES:
        return values, f"{MAX_VALUES} values"
    return values, f"{MAX_REST_BYTES} bytes beside its long texts" if rest > MAX_REST_BYTES else None


def _id(message: _Message | None) -> types.RequestId | None:
    if message is None or not isinstance(message.id, Raw) or len(bytes(message.id)) > LONG_BYTES:
        return None
    return as_id(msgspec.json.decode(message.id))


def _weight(body: bytes, containers: int) -> int:
    return COPIES * len(body) + CONTAINER_BYTES * containers
