"""An MCP server without the SDK that sends what no honest one would, over stdio, streamable HTTP or SSE.

    python hostile_server.py stdio|http|sse [--bytes N] [--flood-while FILE] [--most N] [--tools N]

`results` answers with `--bytes` bytes of small arrays; `take` has a typed input. While the file of `--flood-while` is
there, notifications of that size are sent that nobody has asked for, `--most` of them. Over HTTP and SSE it listens on
a free port of the loopback and writes `port N` as its first line on stdout. It ends with its stdin.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Final

POLL_SECONDS: Final = 0.05
PAUSE_SECONDS: Final = 0.1
"""Between two notifications."""

ENDPOINT: Final = "/messages"
SESSION: Final = "hostile"

Say = Callable[[bytes], None]


def boxes(size: int) -> str:
    """A JSON array of about `size` bytes, of as many small arrays as fit."""
    return "[" + ",".join(["[]"] * (size // 3)) + "]"


class Server:
    """Answers one message at a time; pure but for the files that it is told by."""

    def __init__(self, options: argparse.Namespace) -> None:
        self._options = options
        self._large = boxes(options.bytes)

    def answer(self, message: dict[str, Any]) -> bytes | None:
        """The answer to a message as JSON; None for what wants none."""
        if "id" not in message or "method" not in message:
            return None
        number, method = json.dumps(message["id"]), message["method"]
        if method == "initialize":
            return _result(number, json.dumps(self._greeting(message["params"]["protocolVersion"])))
        if method == "tools/list":
            return _result(number, json.dumps({"tools": self._tools()}))
        if method == "tools/call" and message["params"]["name"] == "results":
            return _result(number, f'{{"content": [], "structuredContent": {{"rows": {self._large}}}}}')
        if method == "tools/call":
            return _result(number, '{"content": [{"type": "text", "text": "taken"}]}')
        return (
            f'{{"jsonrpc":"2.0","id":{number},"error":{{"code":-32601,"message":"no such method"}}}}'.encode()
        )

    def flood(self, say: Say) -> None:
        """Sends the notifications; returns when all are sent, or never."""
        file: str | None = self._options.flood_while
        notification = (
            '{"jsonrpc":"2.0","method":"notifications/message","params":{"level":"info","data":'
            f"{self._large}}}}}"
        ).encode()
        left: int = self._options.most
        while file is not None and left > 0:
            if Path(file).exists():
                say(notification)
                left -= 1
                time.sleep(PAUSE_SECONDS)
            else:
                time.sleep(POLL_SECONDS)

    def _greeting(self, version: str) -> dict[str, Any]:
        capabilities = {"tools": {"listChanged": True}, "logging": {}}
        info = {"name": "hostile", "version": "1"}
        return {"protocolVersion": version, "capabilities": capabilities, "serverInfo": info}

    def _tools(self) -> list[dict[str, Any]]:
        integers = {"type": "array", "items": {"type": "integer", "minimum": 0}}
        typed = {"type": "object", "properties": {"values": integers}, "required": ["values"]}
        many = [
            {"name": f"tool_{number:03}", "description": "Does nothing. " * 20, "inputSchema": typed}
            for number in range(self._options.tools)
        ]
        return [
            {"name": "take", "description": "Takes numbers", "inputSchema": typed},
            {"name": "results", "description": "Gives much", "inputSchema": {"type": "object"}},
            *many,
        ]


def _result(number: str, result: str) -> bytes:
    return f'{{"jsonrpc":"2.0","id":{number},"result":{result}}}'.encode()


def over_stdio(server: Server) -> None:
    """Serves stdin and stdout."""
    lock = threading.Lock()

    def say(message: bytes) -> None:
        with lock:
            sys.stdout.buffer.write(message + b"\n")
            sys.stdout.buffer.flush()

    threading.Thread(target=server.flood, args=(say,), daemon=True).start()
    for line in sys.stdin:
        if (answer := server.answer(json.loads(line))) is not None:
            say(answer)


def over_http(server: Server, *, sse: bool) -> None:
    """Serves a free port of the loopback until stdin ends."""
    streams: list[SimpleQueue[bytes]] = []
    """Of the connections that listen; what is answered goes to the last."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            """The stream: of everything for SSE, of notifications for streamable HTTP."""
            self.send_response(200)
            self.send_header("Content-Type", "text/event-stream")
            self.send_header("Connection", "close")
            self.end_headers()
            lock = threading.Lock()
            answers: SimpleQueue[bytes] = SimpleQueue()
            streams.append(answers)

            def say(message: bytes) -> None:
                with lock:
                    self.wfile.write(b"event: message\ndata: " + message + b"\n\n")
                    self.wfile.flush()

            if sse:
                self.wfile.write(f"event: endpoint\ndata: {ENDPOINT}\n\n".encode())
                self.wfile.flush()
            threading.Thread(target=_until_gone, args=(server.flood, say), daemon=True).start()
            while True:
                say(answers.get())

        def do_POST(self) -> None:
            """A message of the client's."""
            body = self.rfile.read(int(self.headers["Content-Length"]))
            answer = server.answer(json.loads(body))
            if sse and answer is not None:
                streams[-1].put(answer)
                answer = None
            self.send_response(202 if answer is None else 200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Mcp-Session-Id", SESSION)
            self.send_header("Content-Length", str(len(answer or b"")))
            self.end_headers()
            self.wfile.write(answer or b"")

        def do_DELETE(self) -> None:
            """The end of a session."""
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            """Says nothing."""

    class Listening(ThreadingHTTPServer):
        daemon_threads = True

        def handle_error(self, request: Any, client_address: Any) -> None:
            """Says nothing of a client that has hung up."""

    listening = Listening(("127.0.0.1", 0), Handler)
    print(f"port {listening.server_port}", flush=True)
    threading.Thread(target=listening.serve_forever, daemon=True).start()
    sys.stdin.read()
    os._exit(0)


def _until_gone(flood: Callable[[Say], None], say: Say) -> None:
    try:
        flood(say)
    except OSError:
        return


def main() -> None:
    """Serves until stdin ends."""
    parser = argparse.ArgumentParser()
    parser.add_argument("transport", choices=("stdio", "http", "sse"))
    parser.add_argument("--bytes", type=int, default=12_000_000)
    parser.add_argument("--flood-while", metavar="FILE")
    parser.add_argument("--most", type=int, default=100)
    parser.add_argument("--tools", type=int, default=0)
    options = parser.parse_args()
    server = Server(options)
    if options.transport == "stdio":
        over_stdio(server)
    else:
        over_http(server, sse=options.transport == "sse")


if __name__ == "__main__":
    main()
