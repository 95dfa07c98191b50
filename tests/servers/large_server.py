"""An MCP server whose messages are large, by hand: over stdio, over HTTP as JSON or as events, or over the older SSE.

`large_server.py [stdio|json|events|sse] [notices|lists]`: with `notices` it sends large ones without end, with `lists`
its list of tools is large. Over HTTP it prints its port first.
"""

import hashlib
import json
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue
from typing import Any

NOTICE = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":['
MANY = b"[]," * 400_000 + b"[]"
TOOLS: list[dict[str, Any]] = [
    {"name": "seen", "inputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}}},
    {"name": "give", "inputSchema": {"type": "object"}},
]


def result_of(line: bytes) -> bytes:
    """The result of a request, as JSON."""
    asked: dict[str, Any] = json.loads(line)
    method, params = asked["method"], asked.get("params") or {}
    if method == "initialize":
        info = {"name": "large", "version": "1"}
        version = params["protocolVersion"]
        return json.dumps(
            {"protocolVersion": version, "capabilities": {"tools": {}}, "serverInfo": info}
        ).encode()
    if method == "tools/list":
        more: list[dict[str, Any]] = []
        if "lists" in sys.argv:
            more = [{**TOOLS[1], "name": f"tool_{number}", "description": "d" * 400} for number in range(800)]
            more += [{**TOOLS[1], "name": "huge", "description": "d" * 300_000}]
        return json.dumps({"tools": TOOLS + more}).encode()
    if params["name"] == "seen":
        body = json.dumps(params["arguments"], sort_keys=True, ensure_ascii=False).encode("utf-8", "replace")
        said = {"bytes": len(line), "sha": hashlib.sha256(body).hexdigest()}
        return json.dumps({"content": [], "structuredContent": said}).encode()
    text: str | None = params["arguments"].get("text")
    if text is not None:
        return json.dumps(
            {
                "content": [{"type": "text", "text": text * params["arguments"]["times"]}],
                **params["arguments"]["with"],
            }
        ).encode()
    return b'{"content":[],"structuredContent":{"many":[' + b"[1]," * params["arguments"]["n"] + b"[2]]}}"


def answer(line: bytes) -> bytes | None:
    """The message that answers a request; None to a notification."""
    asked = json.loads(line)
    if "id" not in asked:
        return None
    start = b'{"jsonrpc":"2.0","id":' + json.dumps(asked["id"]).encode()
    if asked["method"] not in ("initialize", "tools/list", "tools/call"):
        return start + b',"error":{"code":-32601,"message":"unknown"}}'
    return start + b',"result":' + result_of(line) + b"}"


class Http(BaseHTTPRequestHandler):
    """Streamable HTTP without sessions, or SSE with one."""

    protocol_version = "HTTP/1.1"
    answers: SimpleQueue[bytes] = SimpleQueue()
    """Go into the stream of SSE."""

    def do_POST(self) -> None:
        said = answer(self.rfile.read(int(self.headers["content-length"])))
        if said is not None and sys.argv[1] == "sse":
            self.answers.put(said)
            said = None
        if said is None:
            self.give(202, "text/plain", b"")
        elif sys.argv[1] == "json":
            self.give(200, "application/json", said)
        else:
            self.give(200, "text/event-stream", b"event: message\r\ndata: " + said + b"\r\n\r\n")

    def do_GET(self) -> None:
        if sys.argv[1] != "sse":
            self.give(405, "text/plain", b"")
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.end_headers()
        self.wfile.write(b"event: endpoint\ndata: /messages\n\n")
        while True:
            self.wfile.write(b"event: message\ndata: " + self.answers.get() + b"\n\n")

    def give(self, status: int, kind: str, body: bytes) -> None:
        self.send_response(status)
        self.send_header("content-type", kind)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Not to stderr."""


def main() -> None:
    """Serves until stdin ends, or for ever."""
    if sys.argv[1] != "stdio":
        server = ThreadingHTTPServer(("127.0.0.1", 0), Http)
        print(server.server_address[1], flush=True)
        server.serve_forever()
    turn = threading.Lock()

    def write(message: bytes) -> None:
        with turn:
            sys.stdout.buffer.write(message + b"\n")
            sys.stdout.buffer.flush()

    def notify() -> None:
        # As most servers write it, and as none does.
        for number in range(1_000_000):
            write(NOTICE + MANY + b"]}}" if number % 2 else b'{"x":[' + MANY + b"]," + NOTICE[1:] + b"]}}")

    for line in sys.stdin.buffer:
        said = answer(line)
        if said is not None:
            write(said)
        if "notices" in sys.argv and b'"tools/list"' in line:
            threading.Thread(target=notify, daemon=True).start()


if __name__ == "__main__":
    main()
