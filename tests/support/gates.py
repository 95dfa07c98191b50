"""A gate in front of an application, and requests to it without a connection."""

from __future__ import annotations

from typing import Any, cast

from starlette.types import ASGIApp

from cellblock.config.http import HttpSettings
from cellblock.frontend.http.gate import Gate
from cellblock.frontend.http.places import Places

HOST = "127.0.0.1:1"


def gate_of(app: ASGIApp) -> Gate:
    """A gate without tokens."""
    return Gate(
        app,
        HttpSettings(),
        apart=cast(Any, None),
        places=Places(8, 8),
        share_of=lambda total: total,
        hosts=[HOST],
        origins=[],
        verifier=None,
        ready=lambda busy: True,
        pages=None,
        config="mark",
    )


async def ask(gate: Gate, method: str, path: str, **more: str) -> list[int]:
    """The status of one request, with more headers."""
    seen: list[int] = []

    async def send(message: Any) -> None:
        seen.extend([message["status"]] if "status" in message else [])

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    named = {"host": HOST, "mcp_protocol_version": "2026-07-28", **more}
    headers = [(name.replace("_", "-").encode(), value.encode()) for name, value in named.items()]
    scope = {"type": "http", "method": method, "path": path, "headers": headers, "client": ("127.0.0.1", 2)}
    await gate({**scope, "query_string": b""}, receive, send)
    return seen
