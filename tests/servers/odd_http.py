"""Servers over HTTP that are odd in one way, in the process of a test.

`moved` redirects to `/mcp/`; `elsewhere` to another origin; `gone` forgets each session with 410, `anew` with what the
SDK of TypeScript says after a start; `sse` and `get` know the older transport
alone, and say 405 or 404 to others; `away` wants its messages at another origin; `page` sends a page where an answer
belongs; `dated` refuses revisions that it does not know; those of `WRITTEN` write their answers in another form.
"""

import json
from typing import Any

from support.http_server import OverHttp

REFUSED: dict[str, tuple[int, dict[str, str]]] = {
    "moved": (307, {"location": "/mcp/"}),
    "elsewhere": (308, {"location": "http://127.0.0.2:9/mcp"}),
    "sse": (405, {}),
    "get": (404, {}),
    "away": (405, {}),
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


UNKNOWN = b"Bad Request: Unsupported protocol version (supported versions: 2025-06-18, 2024-11-05)"

EVENTS = {"content_type": "text/event-stream"}
WRITTEN: dict[str, tuple[int, dict[str, str], bytes]] = {
    "bom": (200, {"content_type": "text/html"}, b"\xef\xbb\xbf%s"),
    "warned": (200, {"content_type": "text/html"}, b"<br />\n<b>Warning</b>: no such key\n%s"),
    "accepted": (202, {"content_type": "application/json"}, b"%s"),
    "characters": (200, {"content_type": "application/json", "content_encoding": "UTF-8"}, b"%s"),
    "lines": (
        200,
        {"content_type": "application/x-ndjson"},
        b'{"jsonrpc":"2.0","method":"notifications/x"}\n%s\n',
    ),
    # The length is of more than comes, so that the stream stays open.
    "unended": (200, EVENTS | {"x_more": "2"}, b"data: %s"),
    "alive": (
        200,
        EVENTS,
        b"\xef\xbb\xbf: hello\n\ndata: ping\n\nevent: error\ndata: busy\n\nevent:\ndata: %s\n\n",
    ),
    "unlike": (200, EVENTS, b"%s\n\n"),
}
"""The status, the headers and the body, around the message, of each answer."""


def odd_http(way: str) -> type[OverHttp]:
    """What answers requests in one of the ways."""
    sessions: set[str] = set()

    class Odd(OverHttp):
        form = "sse" if way in ("sse", "get") else "json"

        def do_DELETE(self) -> None:
            self.answer(200)

        def do_GET(self) -> None:
            if way == "away":
                self.answer(200, b"event: endpoint\ndata: http://127.0.0.2:9/post\n\n", **EVENTS)
            else:
                super().do_GET()

        def do_POST(self) -> None:
            asked = json.loads(self.body())
            method = asked["method"]
            if way in REFUSED and self.path == "/mcp":
                status, headers = REFUSED[way]
                self.answer(status, **headers)
            elif way == "dated" and method == "initialize" and "2025-06-18" not in str(asked):
                self.answer(400, UNKNOWN, content_type="text/plain")
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
                self.answer(*FORGOTTEN[way], content_type="application/json")
            elif way == "page":
                self.answer(200, b"<html><h1>Log in</h1></html>", content_type="text/html")
            else:
                text = f"hi {self.headers.get('authorization')}"
                self.reply(asked, {"result": {"content": [{"type": "text", "text": text}]}})
                sessions.clear()

        def reply(self, asked: dict[str, Any], body: dict[str, Any], **headers: str) -> None:
            message = json.dumps({"jsonrpc": "2.0", "id": asked["id"], **body}).encode()
            if way in WRITTEN:
                status, own, form = WRITTEN[way]
                self.answer(status, form % message, **own, **headers)
                return
            self.give(message, **headers)

    return Odd
