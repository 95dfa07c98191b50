"""A small HTTP server in a thread of its own."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Callable, Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue

POLL_SECONDS = 0.01
"""Passes before a server sees that it is to end."""


class Answering(BaseHTTPRequestHandler):
    """Gives whole answers, and says nothing of them."""

    def body(self) -> bytes:
        """What came with the request."""
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        """Writes an answer; a header's name has `_` for each hyphen. Of as many bytes as `x_more` says its end does not
        come."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body) + int(headers.get("x_more", "0"))))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Not to stderr."""


class OverHttp(Answering):
    """MCP over HTTP, to the standard: streamable, with answers in the form `json` or `events`, or the older `sse`."""

    protocol_version = "HTTP/1.1"
    form = "json"
    stream: SimpleQueue[bytes] = SimpleQueue()
    """What is on its way to who listens, with `sse`."""

    def __init_subclass__(cls) -> None:
        cls.stream = SimpleQueue()

    def do_GET(self) -> None:
        if self.form != "sse":
            self.answer(405)
            return
        self.send_response(200)
        self.send_header("content-type", "text/event-stream")
        self.send_header("connection", "close")
        self.end_headers()
        self.wfile.write(b"event: endpoint\ndata: /messages?session=1\n\n")
        while True:
            self.wfile.write(b"event: message\ndata: " + self.stream.get() + b"\n\n")

    def give(self, message: bytes, **headers: str) -> None:
        """Answers a request with a message, in the form that the server has."""
        if self.form == "sse":
            self.stream.put(message)
            self.answer(202)
        elif self.form == "events":
            event = b"event: message\r\ndata: " + message + b"\r\n\r\n"
            self.answer(200, event, content_type="text/event-stream", **headers)
        else:
            self.answer(200, message, content_type="application/json", **headers)


def mcp_over_http(in_form: str, answered: Callable[[bytes], bytes | None]) -> type[OverHttp]:
    """What answers each request with a message in a form, and notifications with none."""

    class Made(OverHttp):
        form = in_form

        def do_POST(self) -> None:
            message = answered(self.body())
            if message is None:
                self.answer(202)
            else:
                self.give(message)

    return Made


def free_port(host: str = "127.0.0.1") -> int:
    """A port that nobody has; with an empty host, at no address of the machine."""
    with socket.socket() as found:
        found.bind((host, 0))
        return found.getsockname()[1]


@contextlib.contextmanager
def serving(
    handler: type[BaseHTTPRequestHandler] | ThreadingHTTPServer, tls: ssl.SSLContext | None = None
) -> Generator[str]:
    """Gives the host and port at which a handler, or a server that is made already, answers within the block."""
    server = (
        handler
        if isinstance(handler, ThreadingHTTPServer)
        else ThreadingHTTPServer(("127.0.0.1", 0), handler)
    )
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(POLL_SECONDS,), daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(20.0)
