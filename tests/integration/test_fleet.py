"""The fleet that load tests, the soak and the demo are made of: parts die and come back, links do as they are told."""

import asyncio
import contextlib
import socket
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.fleet.fleet import Fleet
from support.fleet.network import Loopback
from support.fleet.parts import Part
from support.haproxy import needs_haproxy
from support.http_daemon import TOOL
from support.waits import until, within

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
SCRIPT = 'import { echo } from "@codemode/servers/plain"; globalThis.__codemode_result__ = await echo({ run: RUN });'


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
    try:
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
            link.settimeout(60)
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
    finally:
        echo.close()
    assert not echo.is_running


async def ran(fleet: Fleet, number: int) -> Any:
    """What a run through the balancer gives, on a connection of its own."""
    async with fleet.behind().client() as client:
        result: Any = await within(client.call_tool(TOOL, {"code": SCRIPT.replace("RUN", str(number))}))
    return result.structured_content


async def answers(fleet: Fleet, number: int) -> None:
    """Runs until one ends well."""

    async def tried() -> None:
        while True:
            with contextlib.suppress(Exception):
                if (await ran(fleet, number))["result"] == f'{{"run": {number}}}':
                    return
            await asyncio.sleep(0.1)

    await within(tried(), 120)


@pytest.mark.thorough
@needs_haproxy
async def test_parts_die_and_come_back(network: Loopback, tmp_path_factory: pytest.TempPathFactory) -> None:
    folder = tmp_path_factory.mktemp("f")
    off: dict[str, Any] = {"typecheck": "off"}
    do: Callable[..., Any] = asyncio.to_thread
    seen = set[psutil.Process]()
    with pytest.raises(ZeroDivisionError), Fleet(folder, network, hosts=2, settings=off) as fleet:
        await do(fleet.start)
        await answers(fleet, 1)
        for host in fleet.hosts:
            network.delay(host.place, 0.2)
        assert (await ran(fleet, 0))["usage"]["wallMs"] >= 400, "its call has gone to the broker and back"
        for host in fleet.hosts:
            network.delay(host.place)
        first, second = fleet.brokers
        seen.update(one for part in fleet.parts for one in part.family())
        await do(first.kill)
        await answers(fleet, 2)
        await do(first.start)
        await do(first.wait)
        fleet.balancer.enable(1, is_in=False)
        await do(second.stop)
        await answers(fleet, 3)
        await do(second.start)
        await do(second.wait)
        fleet.balancer.enable(1)
        for host in fleet.hosts:
            await do(host.kill)
        await until(lambda: first.probe() == 503, "a broker without hosts is not ready")
        await do(fleet.hosts[0].start)
        await answers(fleet, 4)
        fleet.database.stop()
        await until(lambda: b"away" in first.page("/readyz")[1], "a broker knows that PostgreSQL is away")
        await do(fleet.database.start)
        await until(lambda: first.page("/readyz")[1] == b"ok\n", "it is back")
        added = fleet.add_host()
        await do(added.start)
        await do(added.wait)
        seen.update(one for part in fleet.parts for one in part.family())
        made = [event["arguments"]["run"] for event in fleet.ledger() if event["event"] == "call"]
        assert {0, 1, 2, 3, 4} <= set(made)
        raise ZeroDivisionError
    left = psutil.wait_procs(list(seen), 60)[1]
    assert not [one for one in left if one.status() != psutil.STATUS_ZOMBIE]
