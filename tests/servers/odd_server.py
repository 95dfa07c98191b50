"""A server of the standard library that is odd in one way: `odd_server.py WAY [PORTFILE]`, over stdio or HTTP.

Ways over stdio: `answers` ends after each answer to a call; `closes` when it has refused `server/discover`; `crash`
says why, and dies in a call; `sleepy` is slow with what is not `initialize`, `blocked` reads nothing after it;
`newer` is slow with `server/discover`, and knows no other greeting; `both` begins late, and keeps to `initialize`;
`mute` welcomes one, and introduces itself with what is no text or object; `loop` announces changes of its tools
without end; `changed` announces one at a call, and is slow with the next list; `busy` reports progress past a call's
bound; `nan` answers with what is no JSON; `pages` refuses its second page; `tasks` has a tool that must be called as
a task, `stuck` one whose task never ends, `lost` one whose task it forgets; `letters` has one whose name is not
ASCII.
Over HTTP: `moved` redirects to `/mcp/`; `elsewhere` to another origin; `gone` forgets each session with 410, `anew`
with what the SDK of TypeScript says after a start; `sse` and `get` know the older transport alone, and say 405 or 404
to others; `page` sends a page where an answer belongs.
"""

import json
import os
import queue
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

WAY = sys.argv[1]
SSE = WAY in ("sse", "get")
UNINITIALIZED = b'{"error": {"code": -32000, "message": "Bad Request: Server not initialized"}}'
MUTE = {
    "capabilities": {"tools": [], "prompts": "no", "logging": None},
    "serverInfo": {"version": 1},
    "instructions": ["Be", "brief."],
}
LOCK = threading.Lock()
TOOL: dict[str, Any] = {"name": "hello", "inputSchema": {"type": "object"}}
CAPABLE = {"tools": {}, "tasks": {"requests": {"tools": {"call": {}}}, "cancel": {}}}
if WAY == "letters":
    TOOL |= {"name": "créer_é", "annotations": {"other": 1, "readOnlyHint": True}}
if WAY in ("tasks", "stuck", "lost"):
    TOOL["execution"] = {"taskSupport": "required"}
GREETING = {
    "protocolVersion": "2025-06-18",
    "capabilities": CAPABLE if WAY in ("tasks", "stuck", "lost") else {"tools": {"listChanged": True}},
    "serverInfo": {"name": "odd", "version": "1"},
}
MARKS = {"resultType": "complete", "ttlMs": 0, "cacheScope": "private"} if WAY == "newer" else {}
NEWER = {"supportedVersions": ["2026-07-28"], "capabilities": {"tools": {}}, **MARKS}


def say(text: str) -> None:
    with LOCK:
        print(text, flush=True)


def tell(message: dict[str, Any]) -> None:
    say(json.dumps({"jsonrpc": "2.0", **message}))


def loop() -> None:
    while True:
        tell({"method": "notifications/tools/list_changed"})
        time.sleep(0.002)


def call(number: object, params: dict[str, Any]) -> None:
    if WAY == "crash":
        sys.stderr.write("Error: the licence has expired\n")
        sys.stderr.flush()
        os._exit(3)
    if WAY == "nan":
        tell({"id": number, "result": {"structuredContent": {"a": float("nan"), "b": 1.5}}})
        return
    if WAY == "changed":
        tell({"method": "notifications/tools/list_changed"})
    if WAY == "busy":
        for step in range(8):
            time.sleep(0.2)
            token = params["_meta"]["progressToken"]
            tell({"method": "notifications/progress", "params": {"progressToken": token, "progress": step}})
    tell({"id": number, "result": {"content": [{"type": "text", "text": "hi"}]}})
    if WAY == "answers":
        os._exit(0)


def task(status: str) -> dict[str, Any]:
    times = {"createdAt": "2026-01-01T00:00:00Z", "lastUpdatedAt": "2026-01-01T00:00:00Z", "ttl": None}
    return {"taskId": "t1", "status": status, "pollInterval": 60, **times}


def tasks(method: str, params: dict[str, Any]) -> dict[str, Any]:
    """Answers what is of tasks; the third look at one finds it done."""
    LOOKS.append(method)
    if method == "tools/call":
        known = {"result": {"task": task("working")}}
        return known if "task" in params else {"error": {"code": -32601, "message": "call it as a task"}}
    assert params["taskId"] == "t1"
    if method == "tasks/result":
        return {"result": {"content": [{"type": "text", "text": f"hi {len(LOOKS)}"}]}}
    done = WAY == "tasks" and LOOKS.count("tasks/get") > 2
    if method == "tasks/get" and WAY == "lost":
        return {"error": {"code": -32601, "message": "no such task"}}
    return {"result": task("completed" if done else "working")}


LOOKS: list[str] = []


def stdio() -> None:
    lists = 0
    if WAY == "both":
        time.sleep(2)
    if WAY == "mute":
        say("Welcome!")
    for line in sys.stdin:
        asked = json.loads(line)
        method, number = asked.get("method"), asked.get("id")
        if method == "initialize" and WAY == "newer":
            tell({"id": number, "error": {"code": -32600, "message": "no such request"}})
        elif method == "initialize" and WAY == "both":
            threading.Timer(1, tell, [{"id": number, "result": GREETING}]).start()
        elif method == "initialize":
            tell({"id": number, "result": MUTE if WAY == "mute" else GREETING})
        elif WAY == "newer" and method == "server/discover":
            threading.Timer(1.5, tell, [{"id": number, "result": NEWER}]).start()
        elif WAY == "both" and method == "server/discover":
            tell({"id": number, "result": NEWER})
        elif WAY == "both" and "2026-07-28" in line:
            tell({"id": number, "error": {"code": -32600, "message": "this session is of 2025"}})
        elif WAY in ("tasks", "stuck", "lost") and (method.startswith("tasks/") or "hello" in line):
            tell({"id": number, **tasks(method, asked["params"])})
        elif WAY == "sleepy" and method == "server/discover":
            threading.Timer(3, tell, [{"id": number, "error": {"code": -32601, "message": "what?"}}]).start()
        elif WAY == "blocked" and method == "server/discover":
            time.sleep(600)
        elif WAY == "closes" and method == "server/discover":
            os.close(0)
            tell({"id": number, "error": {"code": -32601, "message": "what?"}})
            os._exit(0)
        elif method == "tools/list":
            lists += 1
            if WAY == "changed" and lists == 2:
                time.sleep(8)
            cursor = (asked.get("params") or {}).get("cursor")
            if WAY == "pages" and cursor:
                tell({"id": number, "error": {"code": -32602, "message": "no such cursor"}})
                continue
            more = {"nextCursor": "b"} if WAY == "pages" else {}
            tell({"id": number, "result": {"tools": [TOOL, {"name": "lists"}], **more, **MARKS}})
            if WAY == "loop" and lists == 1:
                threading.Thread(target=loop, daemon=True).start()
        elif method == "tools/call" and asked["params"]["name"] == "lists":
            tell({"id": number, "result": {"structuredContent": LOOKS or lists}})
        elif method == "tools/call":
            call(number, asked["params"])
        elif number is not None:
            tell({"id": number, "error": {"code": -32601, "message": "no such method"}})


STREAMS: list[queue.Queue[bytes]] = []
SESSIONS: set[str] = set()


class Odd(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        self.send_response(status)
        for name, value in {"content_type": "application/json", **headers}.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("content-length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_GET(self) -> None:
        if not SSE:
            self.answer(405)
            return
        stream: queue.Queue[bytes] = queue.Queue()
        STREAMS.append(stream)
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(b"event: endpoint\ndata: /messages?session=1\n\n")
        while True:
            self.wfile.write(b"event: message\ndata: " + stream.get() + b"\n\n")

    def do_DELETE(self) -> None:
        self.answer(200)

    def do_POST(self) -> None:
        asked = json.loads(self.rfile.read(int(self.headers["content-length"])))
        method, number = asked.get("method"), asked.get("id")
        session = self.headers.get("mcp-session-id")
        if WAY == "moved" and self.path == "/mcp":
            self.answer(307, location="/mcp/")
        elif WAY == "elsewhere":
            self.answer(308, location="http://127.0.0.2:9/mcp")
        elif SSE and self.path == "/mcp":
            self.answer(405 if WAY == "sse" else 404)
        elif number is None:
            self.answer(202)
        elif method == "initialize":
            SESSIONS.add(f"s{len(SESSIONS)}")
            self.reply(number, {"result": GREETING}, mcp_session_id=max(SESSIONS))
        elif method == "tools/list":
            self.reply(number, {"result": {"tools": [TOOL]}})
        elif method == "tools/call" and WAY in ("gone", "anew") and session not in SESSIONS:
            self.answer(*((410,) if WAY == "gone" else (400, UNINITIALIZED)))
        elif method == "tools/call" and WAY == "page":
            self.answer(200, b"<html><h1>Log in</h1></html>", content_type="text/html")
        elif method == "tools/call":
            auth = self.headers.get("authorization")
            self.reply(number, {"result": {"content": [{"type": "text", "text": f"hi {auth}"}]}})
            SESSIONS.clear()
        else:
            self.reply(number, {"error": {"code": -32601, "message": "no such method"}})

    def reply(self, number: object, body: dict[str, Any], **headers: str) -> None:
        data = json.dumps({"jsonrpc": "2.0", "id": number, **body}).encode()
        if SSE:
            STREAMS[-1].put(data)
            self.answer(202)
        else:
            self.answer(200, data, **headers)

    def log_message(self, format: str, *args: object) -> None:
        """Not to stderr."""


if len(sys.argv) > 2:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Odd)
    server.daemon_threads = True
    print(server.server_address[1], flush=True)
    server.serve_forever()
else:
    stdio()
