"""Servers over HTTP that are odd in one way, in the process of a test.

`moved` redirects to `/mcp/`; `elsewhere` to another origin; `gone` forgets each session with 410, `anew` with what the
SDK of TypeScript says after a start; `sse` and `get` know the older transport alone, and say 405 or 404 to others;
`page` sends a page where an answer belongs.
"""

import json
from typing import Any

from support.http_server import OverHttp

REFUSED: dict[str, tuple[int, dict[str, str]]] = {
    "moved": (307, {"location": "/mcp/"}),
    "elsewhere": (308, {"location": "http://127.0.0.2:9/mcp"}),
    "sse": (405, {}),
    "get": (404, {}),
}
"""The status and the headers with which whatever is posted to `/mcp` is answered."""

FORGOTTEN = {
    "gone": (410, b""),
    "anew": (400, b'{"error": {"code": -32000, "message": "Bad Request: Server not initialized"}}'),
}
"""The answer to who calls in a session that is over."""

GREETING = {
    "protocolVersion": "2025-06-18",
    "capabilities": {"tools": {}},
    "serverInfo": {"name": "odd", "version": "1"},
}


def odd_http(way: str) -> type[OverHttp]:
    """What answers requests in one of the ways."""
    sessions: set[str] = set()

    class Odd(OverHttp):
        form = "sse" if way in ("sse", "get") else "json"

        def do_DELETE(self) -> None:
            self.answer(200)

        def do_POST(self) -> None:
            asked = json.loads(self.body())
            method = asked["method"]
            if way in REFUSED and self.path == "/mcp":
                status, headers = REFUSED[way]
                self.answer(status, **headers)
            elif "id" not in asked:
                self.answer(202)
            elif method == "initialize":
                sessions.add(f"s{len(sessions)}")
                self.reply(asked, {"result": GREETING}, mcp_session_id=max(sessions))
            elif method == "tools/list":
                self.reply(
                    asked, {"result": {"tools": [{"name": "hello", "inputSchema": {"type": "object"}}]}}
                )
            elif method != "tools/call":
                self.reply(asked, {"error": {"code": -32601, "message": "no such method"}})
            elif way in FORGOTTEN and self.headers.get("mcp-session-id") not in sessions:
                self.answer(*FORGOTTEN[way])
            elif way == "page":
                self.answer(200, b"<html><h1>Log in</h1></html>", content_type="text/html")
            else:
                text = f"hi {self.headers.get('authorization')}"
                self.reply(asked, {"result": {"content": [{"type": "text", "text": text}]}})
                sessions.clear()

        def reply(self, asked: dict[str, Any], body: dict[str, Any], **headers: str) -> None:
            self.give(json.dumps({"jsonrpc": "2.0", "id": asked["id"], **body}).encode(), **headers)

    return Odd
