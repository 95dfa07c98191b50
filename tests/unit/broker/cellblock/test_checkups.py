"""The usual troubles are found, and each comes with what to do."""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest

from cellblock import checkups
from cellblock.config import ServerConfig, parse_settings


@pytest.mark.parametrize(
    ("entry", "word"),
    [
        ({"command": "npx", "env": {"PATH": "/nonexistent"}}, "Node.js"),
        ({"command": "uvx", "env": {"PATH": "/nonexistent"}}, "docs.astral.sh/uv"),
        ({"command": "no-such-program-9"}, "not on PATH. Install it, or write its whole path."),
        ({"command": "/no/such/file"}, "/no/such/file does not exist"),
        ({"command": "/etc"}, "no program that may be started"),
        ({"command": "./x", "cwd": "/no/such/folder"}, "/no/such/folder/x does not exist"),
    ],
)
def test_a_command_that_is_not_there(entry: dict[str, object], word: str) -> None:
    assert word in (checkups.missing_command(ServerConfig.model_validate(entry)) or "")


def test_commands_that_are_there() -> None:
    for entry in (
        {"command": "sh"},
        {"command": "/bin/sh"},
        {"command": "./sh", "cwd": "/bin"},
        {"url": "http://x"},
    ):
        assert checkups.missing_command(ServerConfig.model_validate(entry)) is None


@pytest.mark.parametrize(
    ("reason", "word"),
    [
        ("the server refused the connection: HTTP 401", "credentials"),
        ("HTTP 404", "/mcp"),
        ("no tool list within 30 s", "connect_timeout_ms"),
        ("All connection attempts failed", "URL"),
        ("the connection was closed by the server", "upstream-x.log"),
        ("something else", "by hand"),
    ],
)
def test_the_reason_says_what_to_do(reason: str, word: str, tmp_path: Path) -> None:
    config = ServerConfig(url="http://x/mcp")
    assert word in checkups.fix_of(config, reason, tmp_path / "upstream-x.log")
    gone = ServerConfig(command="sh", cwd=tmp_path / "gone")
    assert "is no folder" in checkups.fix_of(gone, reason, tmp_path)


def test_a_state_directory_that_cannot_be_used(tmp_path: Path) -> None:
    assert checkups.state_dir_trouble(tmp_path / "new" / "state") is None
    (tmp_path / "file").write_text("")
    assert "cannot be written" in (checkups.state_dir_trouble(tmp_path / "file" / "state") or "")
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    assert "chmod 700" in (checkups.state_dir_trouble(shared) or "")


def test_a_token_that_others_may_read(tmp_path: Path) -> None:
    settings = parse_settings({"cellblock": {"state_dir": str(tmp_path)}})
    assert checkups.token_trouble(settings) is None
    token = tmp_path / "token"
    token.write_text("x" * 43)
    token.chmod(0o644)
    assert "chmod 600" in (checkups.token_trouble(settings) or "")


def test_a_missing_deno(monkeypatch: pytest.MonkeyPatch) -> None:
    assert checkups.deno_trouble() is None

    def nowhere() -> str:
        raise FileNotFoundError("no deno here")

    monkeypatch.setattr(checkups, "deno_binary", nowhere)
    assert "--force-reinstall" in (checkups.deno_trouble() or "")


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
