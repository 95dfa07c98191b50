"""Requests to an ASGI application without a connection."""

from typing import Any

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp

from cellblock.serve.http.caller import Caller

ADA = Caller("ada", "editor", "http ada", "ada")


async def ask(
    app: ASGIApp,
    method: str = "GET",
    path: str = "/mcp",
    *,
    body: bytes = b"",
    caller: Caller | None = ADA,
    **named: str,
) -> Response:
    """One request's answer. Underscores of the names of headers stand for hyphens."""
    headers: dict[str, str] = {}
    found = Response()
    found.body = b""
    pieces = [{"type": "http.request", "body": body, "more_body": False}]

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            found.status_code = message["status"]
            headers.update(Headers(raw=message["headers"]))
        else:
            found.body = bytes(found.body) + message.get("body", b"")

    async def receive() -> Any:
        return pieces.pop() if pieces else {"type": "http.disconnect"}

    target, _, query = path.partition("?")
    scope: dict[str, Any] = {
        "type": "http",
        "http_version": "1.1",
        "method": method,
        "path": target,
        "query_string": query.encode(),
        "headers": [
            (name.replace("_", "-").encode(), value.encode("latin-1")) for name, value in named.items()
        ],
        "client": ("127.0.0.1", 2),
        "state": {},
    }
    if caller is not None:
        caller.put(scope)
    await app(scope, receive, send)
    found.init_headers(headers)
    return found
