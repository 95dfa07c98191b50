"""An MCP server whose messages are large, by hand, over stdio; `answer` is for those over HTTP.

`large_server.py [notices|lists]`: with `notices` it sends large ones without end, with `lists` its list of tools is
large.
"""

import hashlib
import json
import sys
import threading
from typing import Any

NOTICE = b'{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":['
MANY = b"[]," * 400_000 + b"[]"
TOOLS: list[dict[str, Any]] = [
    {"name": "seen", "inputSchema": {"type": "object", "properties": {"n": {"type": "integer"}}}},
    {"name": "give", "inputSchema": {"type": "object"}},
]


def result_of(line: bytes, method: str, params: dict[str, Any]) -> bytes:
    """The result of a request, as JSON."""
    if method == "initialize":
        said = {
            "capabilities": {"tools": {}},
            "serverInfo": {"name": "large", "version": "1"},
            "protocolVersion": params["protocolVersion"],
        }
        return json.dumps(said).encode()
    if method == "tools/list":
        more: list[dict[str, Any]] = []
        if "lists" in sys.argv:
            more = [{**TOOLS[1], "name": f"tool_{number}", "description": "d" * 400} for number in range(800)]
            more += [{**TOOLS[1], "name": "huge", "description": "d" * 300_000}]
        return json.dumps({"tools": TOOLS + more}).encode()
    given = params["arguments"]
    if params["name"] == "seen":
        body = json.dumps(given, sort_keys=True, ensure_ascii=False).encode("utf-8", "replace")
        said = {"bytes": len(line), "sha": hashlib.sha256(body).hexdigest()}
        return json.dumps({"content": [], "structuredContent": said}).encode()
    if "text" in given:
        content = [{"type": "text", "text": given["text"] * given["times"]}]
        return json.dumps({"content": content, **given["with"]}).encode()
    return b'{"content":[],"structuredContent":{"many":[' + b"[1]," * given["n"] + b"[2]]}}"


def answer(line: bytes) -> bytes | None:
    """The message that answers a request; None to a notification."""
    asked = json.loads(line)
    if "id" not in asked:
        return None
    said = b'"error":{"code":-32601,"message":"unknown"}'
    if asked["method"] in ("initialize", "tools/list", "tools/call"):
        said = b'"result":' + result_of(line, asked["method"], asked.get("params") or {})
    return b'{"jsonrpc":"2.0","id":' + json.dumps(asked["id"]).encode() + b"," + said + b"}"


def main() -> None:
    """Serves until stdin ends."""
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
