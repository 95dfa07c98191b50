"""The fleet that load tests, the soak and the demo are made of: parts die and come back, links do as they are told."""

from __future__ import annotations

import asyncio
import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.fleet.fleet import Fleet
from support.fleet.network import Loopback, Namespaces, Network, can_namespaces, discipline, has_netem
from support.fleet.parts import Part
from support.http_daemon import TOOL
from support.waits import until, within

needs_namespaces = pytest.mark.skipif(not can_namespaces(), reason="network namespaces need root, ip and tc")
NETWORKS = [Loopback, pytest.param(lambda: Namespaces(relays=True), marks=needs_namespaces, id="Namespaces")]
needs_netem = pytest.mark.skipif(
    not (can_namespaces() and has_netem()),
    reason="this kernel has no netem, or this user no network namespaces",
)

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


@pytest.fixture(params=[*NETWORKS, pytest.param(Namespaces, marks=needs_netem, id="Namespaces with netem")])
def network(request: pytest.FixtureRequest) -> Iterator[Network]:
    with request.param() as made:
        yield made


def test_a_link_is_cut_mended_slowed_and_delayed(network: Network, tmp_path: Path) -> None:
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


@needs_namespaces
@pytest.mark.parametrize(
    "how",
    [
        {"seconds": 0.005},
        {"loss": 0.001},
        {"seconds": 0.2, "loss": 0.01, "rate": 60_000.0},
        {"rate": 60_000.0},
    ],
)
def test_what_tc_is_told_of_a_link_is_well_formed(how: dict[str, float]) -> None:
    words = ["unshare", "--net", "tc", "qdisc", "replace", "dev", "lo", "root", *discipline(**how).split()]
    told = subprocess.run(words, capture_output=True, text=True, check=False, timeout=60)
    # tc reads all of it before the kernel says that it has no netem.
    assert told.returncode == 0 or "qdisc kind is unknown" in told.stderr, told.stderr


@needs_netem
def test_packets_are_lost_where_the_kernel_can(tmp_path: Path) -> None:
    with Namespaces() as network:
        echo = Echo(network.place("echo"), tmp_path / "echo")
        try:
            echo.start()
            echo.wait()
            network.delay(echo.place, 0.001, loss=0.2)
            with socket.create_connection((echo.place.address, PORT), 60) as link:
                for _ in range(50):
                    link.sendall(b"x" * 1000)
                    assert link.recv(1000, socket.MSG_WAITALL) == b"x" * 1000
            assert lost_at(echo) > 0
            network.delay(echo.place)
            assert lost_at(echo) == 0, "nothing of it is left"
        finally:
            echo.close()


def lost_at(echo: Echo) -> int:
    """How many packets the kernel has thrown away that the part sent, of the discipline that its link has now."""
    show = ["tc", "-s", "-j", "qdisc", "show", "dev", "eth0"]
    said = echo.place.run(lambda: subprocess.run(show, capture_output=True, check=True, timeout=60).stdout)
    return json.loads(said)[0]["drops"]


def test_relays_lose_nothing() -> None:
    with Loopback() as network, pytest.raises(AssertionError, match="only netem loses packets"):
        network.delay(network.place("echo"), 0.001, loss=0.1)


@needs_namespaces
def test_nothing_of_namespaces_is_left_after_an_error(tmp_path: Path) -> None:
    before = namespace_of("self")
    links = Path("/proc/self/net/dev").read_text("ascii").count(":")
    with pytest.raises(ZeroDivisionError), Namespaces() as network:
        place = network.place("echo")
        echo = Echo(place, tmp_path / "echo")
        echo.start()
        echo.wait()
        inside = {namespace_of("self"), namespace_of(echo.pid)}
        assert len(inside) == 2 and before not in inside
        try:
            raise ZeroDivisionError
        finally:
            echo.close()
    assert namespace_of("self") == before
    assert Path("/proc/self/net/dev").read_text("ascii").count(":") == links
    assert not inside & namespaces_in_use()


def namespace_of(pid: int | str) -> int:
    return Path(f"/proc/{pid}/ns/net").stat().st_ino


def namespaces_in_use() -> set[int]:
    """The network namespaces of every thread of the machine."""
    found = set[int]()
    for thread in Path("/proc").glob("[0-9]*/task/*/ns/net"):
        with contextlib.suppress(OSError):
            found.add(thread.stat().st_ino)
    return found


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
@pytest.mark.parametrize("balancer", ["", None], ids=["the machine's balancer", "a relay"])
async def test_parts_die_and_come_back(
    network: Network, tmp_path_factory: pytest.TempPathFactory, balancer: str | None
) -> None:
    folder = tmp_path_factory.mktemp("f")
    dns = isinstance(network, Namespaces)
    off: dict[str, Any] = {"typecheck": "off"}
    do: Callable[..., Any] = asyncio.to_thread
    seen = set[psutil.Process]()
    with (
        pytest.raises(ZeroDivisionError),
        Fleet(folder, network, hosts=2, settings=off, dns=dns, balancer=balancer) as fleet,
    ):
        await do(fleet.start)
        await answers(fleet, 1)
        # Brokers', as hosts that know a name look it up.
        for broker in fleet.brokers:
            network.delay(broker.place, 0.2)
        assert (await ran(fleet, 0))["usage"]["wallMs"] >= 400, "its call has gone to the broker and back"
        for broker in fleet.brokers:
            network.delay(broker.place)
        first, second = fleet.brokers
        written = [url for (url,) in fleet.database.rows("SELECT url FROM cellblock.brokers")]
        assert {fleet.broker_at(url).name for url in written} == {first.name, second.name}
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
