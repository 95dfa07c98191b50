"""A scripted broker for a worker host of this process, over real ZeroMQ."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest
import zmq

from cellblock_worker.host import host as host_module
from cellblock_worker.host.host import Host
from cellblock_worker.host.host_config import HostConfig
from cellblock_worker.wire import protocol
from cellblock_worker.wire.loop_socket import LoopSocket
from support.processes import name_of
from support.waits import until, within

BOUND = 60.0
IDENTITY = "ab" * 16


class Broker:
    """The other end: a ROUTER that records what the host says."""

    def __init__(self, context: Any, endpoint: str) -> None:
        self.heard: list[tuple[bytes, protocol.FromHost, bytes]] = []
        router = context.socket(zmq.ROUTER)
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self.socket = LoopSocket(router, max_message_bytes=1 << 24, on_message=self._on_parts)
        self.socket.bind(endpoint)

    def _on_parts(self, parts: list[bytes]) -> None:
        identity, token, header, body = parts
        assert identity == bytes.fromhex(IDENTITY)
        self.heard.append((token, protocol.parse_from_host(header), body))

    def say(self, message: protocol.Message, token: bytes = b"", body: bytes = b"") -> None:
        self.raw(token, message.packed(), body)

    def raw(self, *parts: bytes) -> None:
        self.socket.send([bytes.fromhex(IDENTITY), *parts])

    async def until(self, holds: Callable[[], bool]) -> None:
        await until(holds, "the host says so", BOUND, pause=0.002)

    async def status(self, **wanted: int) -> None:
        """Waits for a status that says this."""
        await self.until(
            lambda: any(
                msgspec.structs.asdict(said).items() >= wanted.items() for said in self.of(protocol.Status)
            )
        )
        self.heard = [entry for entry in self.heard if not isinstance(entry[1], protocol.Status)]

    def of(self, kind: type[protocol.Message]) -> list[Any]:
        return [said for _, said, _ in self.heard if isinstance(said, kind)]

    def run_of(self, token: bytes) -> list[str]:
        return [said.t for heard, said, _ in self.heard if heard == token]

    def results(self) -> list[bytes]:
        return [
            body
            for _, said, body in self.heard
            if isinstance(said, protocol.Ended) and said.outcome == "done"
        ]

    async def end_of(self, token: bytes) -> protocol.Ended:
        await self.until(lambda: "ended" in self.run_of(token))
        (ended,) = [s for heard, s, _ in self.heard if heard == token and isinstance(s, protocol.Ended)]
        return ended


def config(endpoint: str, **changes: Any) -> HostConfig:
    values = {
        "connect": endpoint,
        "identity": IDENTITY,
        "capacity": 4,
        "warm": 1,
        "boot_parallel": 2,
        "max_message_bytes": 1 << 20,
        "max_old_space_mb": 64,
        **changes,
    }
    return msgspec.convert(values, HostConfig)


@pytest.fixture
def zmq_context() -> Iterator[Any]:
    made: Any = zmq.Context(io_threads=1)
    yield made
    made.destroy(linger=0)


StartHost = Callable[..., Awaitable[tuple[Host, Broker]]]


@pytest.fixture
async def start_host(
    zmq_context: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[StartHost]:
    monkeypatch.setattr(host_module, "STATUS_INTERVAL_SECONDS", 0.02)
    monkeypatch.setattr(host_module, "BOOT_RETRY_SECONDS", 0.05)
    started: list[tuple[Host, Broker]] = []

    async def start(**changes: Any) -> tuple[Host, Broker]:
        endpoint = f"ipc://{tmp_path}/host{len(started)}"
        broker = Broker(zmq_context, endpoint)
        host = Host(config(endpoint, **changes), zmq_context)
        started.append((host, broker))
        host.warm_up()
        host.announce()
        # A ROUTER knows nobody who has not spoken.
        await broker.until(lambda: bool(broker.heard))
        return host, broker

    yield start
    for host, broker in started:
        await within(host.stop())
        broker.socket.close()
    assert [child for child in psutil.Process().children() if name_of(child) == "deno"] == []


RUN = protocol.Run(
    timeout_ms=10_000, cpu_ms=10_000, memory_bytes=1 << 26, log_bytes=1000, message_bytes=1 << 20
)
