"""A small HTTP server in a thread of its own."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ENDS_WITHIN_SECONDS = 20.0
POLL_SECONDS = 0.01
"""Passes before a server sees that it is to end."""


class Answering(BaseHTTPRequestHandler):
    """Gives whole answers, and says nothing of them."""

    def body(self) -> bytes:
        """What came with the request."""
        return self.rfile.read(int(self.headers.get("Content-Length", 0)))

    def answer(self, status: int, body: bytes = b"", **headers: str) -> None:
        """Writes an answer; a header's name has `_` for each hyphen."""
        self.send_response(status)
        for name, value in headers.items():
            self.send_header(name.replace("_", "-"), value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Not to stderr."""


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
        thread.join(ENDS_WITHIN_SECONDS)
