"""What is found where a daemon is or is to be, and what to do about it."""

from __future__ import annotations

import datetime
import socket
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cellblock.cli import checkups_daemon as checkups
from cellblock.config.settings import parse_settings
from certificates import certificate


def test_a_token_that_others_may_read(tmp_path: Path) -> None:
    settings = parse_settings({"cellblock": {"state_dir": str(tmp_path)}})
    assert checkups.token_trouble(settings.state_dir) is None
    token = tmp_path / "token"
    token.write_text("x" * 43)
    token.chmod(0o644)
    assert "chmod 600" in (checkups.token_trouble(settings.state_dir) or "")


class Living(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        self.send_response(200 if self.path == "/livez" else 503)
        self.send_header("content-length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Not to stderr."""


@pytest.fixture
def living() -> Iterator[str]:
    server = ThreadingHTTPServer(("127.0.0.1", 0), Living)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    yield f"127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    server.server_close()
    thread.join(10)


def test_what_is_at_the_daemons_address(living: str) -> None:
    assert checkups.daemon_state(living) == (f"one serves at {living}, not ready to run scripts", None)
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        threading.Thread(target=lambda: other.accept()[0].close(), daemon=True).start()
        state, warning = checkups.daemon_state(address)
        assert state.startswith("none: another program") and "Serve at another port" in (warning or "")
    assert checkups.daemon_state(address) == (f"none at {address}", None)


def test_a_daemon_over_tls_and_its_certificate(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path)
    server = ThreadingHTTPServer(("127.0.0.1", 0), Living)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        state, warning = checkups.daemon_state(f"127.0.0.1:{server.server_address[1]}")
    finally:
        server.shutdown()
        server.server_close()
        thread.join(10)
    assert "over TLS, not ready" in state
    assert "Renew it, and restart the daemon" in (warning or "")


def test_certificates(tmp_path: Path) -> None:
    for name in ("one", "other", "old", "new"):
        (tmp_path / name).mkdir()
    now, day = datetime.datetime.now(datetime.UTC), datetime.timedelta(days=1)
    cert, key = certificate(tmp_path / "one", end=now + 60 * day)
    assert checkups.certificate_state(None, None) == (None, None)
    assert checkups.certificate_state(cert, key) == (None, None)
    assert "belong together" in (checkups.certificate_state(cert, None)[0] or "")
    soon, of_soon = certificate(tmp_path / "other", end=now + day)
    assert checkups.certificate_state(soon, of_soon)[0] is None
    assert "Renew it, before that" in (checkups.certificate_state(soon, of_soon)[1] or "")
    assert "was made for" in (checkups.certificate_state(cert, of_soon)[0] or "")
    old = certificate(tmp_path / "old", begin=now - 2 * day, end=now - day)
    assert "expired at" in (checkups.certificate_state(*old)[0] or "")
    new = certificate(tmp_path / "new", begin=now + day, end=now + 2 * day)
    assert "clock" in (checkups.certificate_state(*new)[0] or "")
    assert "cannot be used" in (checkups.certificate_state(tmp_path / "gone", key)[0] or "")
