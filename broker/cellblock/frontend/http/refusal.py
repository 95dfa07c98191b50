"""Refusal holds the answers that the gate gives by itself. To strangers a refusal is a bare status, but for the one
without a token, who is told what to do in words that are the same for all; who has shown a token may be told more, as
the JSON-RPC error that MCP clients look for in such an answer."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Mapping
from typing import Final

import mcp_types as types
from starlette.types import Receive, Send

DISCARD_BYTES: Final = 64 * 1024
DISCARD_SECONDS: Final = 1.0
"""Bounds what is read of a refused request's body, so that a client that is still sending it gets to read the
refusal."""

DISCARD_LARGE_BYTES: Final = 32 * 1024 * 1024
"""Bounds what is read of a body that is too large, from somebody with a token; most clients read nothing before all is
sent."""

NO_TOKEN: Final = (
    "This is Cellblock, an MCP server. It wants a token that it knows, in the header `Authorization: Bearer TOKEN`. "
    "Whoever runs it has one, in the file `token` of its state directory; `cellblock connect` is the stdio end that "
    "sends it, and `cellblock dashboard` opens the page."
)
"""Tells everybody without a token what to do."""

_NO_TOKEN_PAGE: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>Cellblock</title>'
    f"<p>{NO_TOKEN.replace('. ', '.<p>')}</p></html>"
).encode()

Header = tuple[bytes, bytes]


class Refused(Exception):
    """Tells that a request ends with this status and nothing else.

    Args:
        status: Of HTTP.
        headers: Beside the length.
        why: What a client with a token is told.
    """

    def __init__(self, status: int, *headers: Header, why: str | None = None) -> None:
        super().__init__(status)
        self.status = status
        self.headers = headers
        self.why = why


def busy(status: int, seconds: int, why: str | None = None) -> Refused:
    """Makes a refusal that says after how many seconds the client may ask again."""
    return Refused(status, (b"retry-after", b"%d" % seconds), why=why)


async def refuse(refused: Refused, headers: Mapping[bytes, bytes], receive: Receive, send: Send) -> None:
    """Answers a request with these `headers` by a refusal; the connection is closed behind it."""
    left = DISCARD_LARGE_BYTES if refused.status == 413 else DISCARD_BYTES
    if b"expect" in headers:
        # It asks before it sends the body, and looking for that would be our yes.
        left = 0
    try:
        async with asyncio.timeout(DISCARD_SECONDS):
            while left > 0:
                message = await receive()
                if not message.get("more_body", False):
                    break
                left -= len(message.get("body", b""))
    except TimeoutError:
        pass
    body: bytes = b""
    kind: tuple[Header, ...] = ()
    if refused.why is NO_TOKEN and b"text/html" in headers.get(b"accept", b""):
        body = _NO_TOKEN_PAGE
        kind = (
            (b"content-type", b"text/html; charset=utf-8"),
            (b"content-security-policy", b"default-src 'none'"),
        )
    elif refused.why is not None:
        error = {"code": types.INVALID_REQUEST, "message": refused.why}
        body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error}).encode()
        kind = ((b"content-type", b"application/json"),)
    # Whoever is refused may still be sending: the connection is not used again.
    await respond(send, refused.status, body, *kind, *refused.headers, (b"connection", b"close"))


async def respond(send: Send, status: int, body: bytes, *headers: Header) -> None:
    """Sends a whole answer."""
    length = (b"content-length", b"%d" % len(body))
    await send({"type": "http.response.start", "status": status, "headers": [length, *headers]})
    await send({"type": "http.response.body", "body": body})
