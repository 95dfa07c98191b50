"""The links and parts of fleets under test: each fault does what it says."""

import contextlib
import socket
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.fleet.fleet import Part
from support.fleet.network import Loopback

PORT = 7000
ECHO = """
import socketserver, sys
class Echo(socketserver.BaseRequestHandler):
    def handle(self):
        while data := self.request.recv(65536):
            self.request.sendall(data)
socketserver.ThreadingTCPServer.allow_reuse_address = True
socketserver.ThreadingTCPServer((sys.argv[1], 7000), Echo).serve_forever()
"""


class Echo(Part):
    """Sends back what it gets."""

    def command(self) -> list[str]:
        return [sys.executable, "-IS", "-c", ECHO, self.place.address]

    def is_ready(self) -> bool:
        with contextlib.suppress(OSError), socket.create_connection((self.place.address, PORT)):
            return True
        return False


@pytest.fixture
def network() -> Iterator[Loopback]:
    with Loopback() as made:
        yield made


def test_a_link_is_cut_mended_slowed_and_delayed(network: Loopback, tmp_path: Path) -> None:
    echo = Echo(network.place("echo"), tmp_path / "echo")
    address, _, port = network.way(None, echo.place, PORT).rpartition(":")
    with contextlib.closing(echo):
        echo.start()
        echo.wait()
        with socket.create_connection((address, int(port)), 60) as link:

            def answered(data: bytes) -> float:
                began = time.monotonic()
                link.sendall(data)
                found = b""
                while len(found) < len(data):
                    found += link.recv(65536)
                assert found == data
                return time.monotonic() - began

            answered(b"there")
            network.cut(echo.place)
            link.sendall(b"waits")
            link.settimeout(0.3)
            with pytest.raises(TimeoutError):
                link.recv(1)
            link.settimeout(120)
            network.cut(echo.place, is_cut=False)
            assert link.recv(5) == b"waits"
            network.delay(echo.place, 0.2)
            assert answered(b"late") >= 0.4
            network.delay(echo.place)
            network.slow(echo.place, 200_000)
            assert answered(b"x" * 100_000) >= 0.3
            network.slow(echo.place)
            # Its process as a whole, with what it has open.
            echo.pause()
            link.sendall(b"frozen")
            echo.resume()
            assert link.recv(6) == b"frozen"
            echo.kill()
            assert link.recv(1) == b""
        assert not echo.is_ready()
        echo.start()
        echo.wait()
    assert not echo.is_running
