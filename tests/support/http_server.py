"""A small HTTP server in a thread of its own."""

import contextlib
import ssl
import threading
from collections.abc import Generator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

ENDS_WITHIN_SECONDS = 20.0


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
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"127.0.0.1:{server.server_port}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join(ENDS_WITHIN_SECONDS)
