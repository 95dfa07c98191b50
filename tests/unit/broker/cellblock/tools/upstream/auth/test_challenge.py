"""`cellblock auth login` finds the challenge of servers that greet everybody and refuse only the list of tools."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cellblock.base.settings.auth import AuthSettings
from cellblock.base.settings.server import ServerConfig
from cellblock.base.store import LocalStore
from cellblock.tools.upstream.auth.errors import LoginError
from cellblock.tools.upstream.auth.login import log_in, place_of
from support.waits import within


class Greeting(BaseHTTPRequestHandler):
    """Answers `initialize`; the list of tools with the server's `status`; everything else with 404."""

    server: Server
    protocol_version = "HTTP/1.1"

    def do_POST(self) -> None:
        """One message."""
        message = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.server.seen.append((message["method"], self.headers.get("Mcp-Session-Id")))
        self.answer(200 if message["method"] == "initialize" else self.server.status)

    def do_GET(self) -> None:
        """A document that is not there."""
        self.server.seen.append((self.path, None))
        self.answer(404)

    def do_DELETE(self) -> None:
        """The end of a session."""
        self.server.seen.append(("DELETE", self.headers.get("Mcp-Session-Id")))
        self.answer(204)

    def answer(self, status: int) -> None:
        """An empty answer."""
        self.send_response(status)
        self.send_header("Mcp-Session-Id", "one")
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:
        """Nothing is logged."""


class Server(ThreadingHTTPServer):
    """What was asked, and how the list of tools is answered."""

    status = 401

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Greeting)
        self.seen: list[tuple[str, str | None]] = []


@pytest.fixture
def server() -> Iterator[Server]:
    with Server() as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield running
        running.shutdown()
        thread.join(20)


async def logged_in(server: Server, folder: Path) -> str:
    """What the command says."""
    url = f"http://127.0.0.1:{server.server_port}/mcp"
    servers = {"notes": ServerConfig(url=url)}
    place = place_of("notes", servers, AuthSettings(keyring="off"), LocalStore(folder))
    return await within(log_in(place, browser=False, bound=1, say=lambda _: None))


async def test_a_list_of_tools_that_is_refused_is_a_challenge(server: Server, tmp_path: Path) -> None:
    with pytest.raises(LoginError):
        await logged_in(server, tmp_path)
    assert server.seen[:3] == [("initialize", None), ("tools/list", "one"), ("DELETE", "one")]
    assert any("/.well-known/" in what for what, _ in server.seen), (
        "then it looks for the authorization server"
    )


@pytest.mark.parametrize("status", [200, 400, 404])
async def test_a_list_of_tools_that_is_not_refused_needs_no_login(
    server: Server, tmp_path: Path, status: int
) -> None:
    server.status = status
    assert await logged_in(server, tmp_path) == "notes asks for no login."
