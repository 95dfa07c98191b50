"""Refusals are answers that no application gives. A stranger gets a bare status, or what to do, in words that are the
same for all; who has shown a token may be told more, as the JSON-RPC error that MCP clients look for."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Final

import mcp_types as types
from starlette.exceptions import HTTPException
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from cellblock.base.tasks import at_most

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

_NO_TOKEN_PAGE: Final = (
    '<!doctype html><html lang="en"><meta charset="utf-8"><title>Cellblock</title>'
    f"<p>{NO_TOKEN.replace('. ', '.<p>')}</p></html>"
)


class Refused(HTTPException):
    """Ends a request with this status; `why` is for clients with a token."""

    def __init__(self, status: int, headers: Mapping[str, str] | None = None, why: str | None = None) -> None:
        super().__init__(status, headers=headers)
        self.why = why


def busy(status: int, seconds: int, why: str | None = None) -> Refused:
    """Makes a refusal that says after how many seconds the client may ask again."""
    return Refused(status, {"retry-after": str(seconds)}, why)


def header(scope: Scope, name: bytes) -> bytes | None:
    """Returns a header of a request; one that is given twice is joined, as HTTP has it, and so decides for nobody."""
    found: list[bytes] = [value for key, value in scope["headers"] if key == name]
    return b", ".join(found) if found else None


class Refusals:
    """Answers what is refused behind it, and closes the connection: whoever is refused may still be sending."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        is_read = False

        async def reading() -> Message:
            nonlocal is_read
            message = await receive()
            is_read = not message.get("more_body", False)
            return message

        # Starlette's routes raise only inside of an application.
        scope["app"] = self
        try:
            await self.app(scope, reading, send)
        except HTTPException as refused:
            # Who expects a yes asks before it sends the body, and looking for that would be our yes.
            if not is_read and header(scope, b"expect") is None:
                await _discard(receive, DISCARD_LARGE_BYTES if refused.status_code == 413 else DISCARD_BYTES)
            wants_page = b"text/html" in (header(scope, b"accept") or b"")
            await _response(refused, wants_page)(scope, receive, send)


async def _discard(receive: Receive, left: int) -> None:
    async with at_most(DISCARD_SECONDS):
        while left > 0 and (message := await receive()).get("more_body", False):
            left -= len(message.get("body", b""))


def _response(refused: HTTPException, wants_page: bool) -> Response:
    headers = {**(refused.headers or {}), "connection": "close"}
    if not isinstance(refused, Refused) or refused.why is None:
        return Response(None, refused.status_code, headers)
    if refused.why is NO_TOKEN and wants_page:
        headers["content-security-policy"] = "default-src 'none'"
        return Response(_NO_TOKEN_PAGE, refused.status_code, headers, media_type="text/html")
    error = {"code": types.INVALID_REQUEST, "message": refused.why}
    body = json.dumps({"jsonrpc": "2.0", "id": None, "error": error})
    return Response(body, refused.status_code, headers, media_type="application/json")
