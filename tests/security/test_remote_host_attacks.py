"""A worker host on the network whose key is allowed, and which attacks: it can spoil its own runs and no others."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import pytest
import zmq
from msgspec.structs import replace

from cellblock import RunResponse
from cellblock.app.assembly import host_terms
from cellblock.base.settings.settings import CellblockSettings
from cellblock.fleet.curve_link import PREFIX, CurveLink
from cellblock.fleet.remote_hosts import refusal
from cellblock.pool.pool import Pool
from cellblock.run.events import RunEvents
from cellblock.script.parsing import Parsers
from cellblock_worker.wire import protocol
from cellblock_worker.wire.keys import DialKeys, make_key_file, prepare_dialler
from cellblock_worker.wire.loop_socket import LoopSocket
from support.memory_host import FakeUpstreams, codes, echo, make_executor
from support.waits import until, within

MESSAGE_BYTES = 1 << 20


def hello(capacity: int = 1) -> protocol.Hello:
    return protocol.Hello(
        protocol=protocol.PROTOCOL_VERSION,
        pid=1,
        capacity=capacity,
        deno="deno",
        layers=["deno permissions"],
        message_bytes=1 << 30,
        heap_mb=1 << 20,
    )


class Peer:
    """A host that says what a test wants, over a real CURVE connection."""

    def __init__(self, world: "World", key: str, identity: bytes) -> None:
        self.identity = identity
        self.runs: list[bytes] = []
        self.heard: list[str] = []
        dealer = world.context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.IDENTITY, identity)
        prepare_dialler(dealer, "tcp://h:1", DialKeys(world.keys[key], world.keys["broker"].public_bytes))
        self.socket = LoopSocket(dealer, max_message_bytes=1 << 24, on_message=self._on_parts)
        self.socket.connect(world.link.endpoint)

    def _on_parts(self, parts: list[bytes]) -> None:
        message = protocol.parse_to_host(parts[1])
        self.heard.append(message.t)
        if isinstance(message, protocol.Run):
            self.runs.append(parts[0])
            self.say(protocol.Leased(wall_ms=0), token=parts[0])

    def say(self, message: protocol.Message, body: bytes = b"", *, token: bytes = b"") -> None:
        self.socket.send((token, message.packed(), body))

    def finish(self, body: bytes) -> None:
        self.say(protocol.Ended(reason="finished", outcome="done"), body, token=self.runs[-1])


class World:
    """A broker's parts from the executor to a listening CURVE socket, with two allowed keys."""

    def __init__(self, folder: Path) -> None:
        self.keys = {name: make_key_file(folder / name) for name in ("broker", "honest", "hostile")}
        self.settings = CellblockSettings.model_validate({"max_message_bytes": MESSAGE_BYTES})
        self.failed: list[bytes] = []
        self.calls: list[Any] = []
        self.pool = Pool(self.settings.pool, lambda identity, why: self.failed.append(identity))
        self.link = CurveLink(
            "tcp://127.0.0.1:*",
            own=self.keys["broker"],
            allowed={self.keys[name].public: name for name in ("honest", "hostile")},
            max_message_bytes=MESSAGE_BYTES,
            events=self.pool,
            judge=lambda said: refusal(said, host_terms(self.settings)),
            on_gone=self.pool.host_gone,
        )
        self.pool.use(self.link)
        upstreams = FakeUpstreams({"echo": self._echo})
        self.executor = make_executor(self.settings, self.pool, upstreams, Parsers(), RunEvents())
        self.context: Any = zmq.Context(io_threads=1)
        self.peers: list[Peer] = []

    async def _echo(self, arguments: dict[str, Any]) -> Any:
        self.calls.append(arguments)
        return await echo(arguments)

    def peer(self, key: str, identity: bytes) -> Peer:
        self.peers.append(Peer(self, key, identity))
        return self.peers[-1]

    async def joined(self, key: str, identity: bytes) -> Peer:
        peer = self.peer(key, identity)
        peer.say(hello())
        await until(lambda: self.link.reaches(PREFIX + identity), f"{key} has joined")
        return peer

    async def close(self) -> None:
        for peer in self.peers:
            peer.socket.close()
        await within(self.executor.close())
        self.pool.close()
        self.link.close()
        self.context.destroy(linger=0)


@pytest.fixture
async def world(tmp_path: Path) -> AsyncIterator[World]:
    made = World(tmp_path)
    yield made
    await made.close()


async def served_by(peer: Peer, world: World) -> asyncio.Task[RunResponse]:
    """A run that this host, the only one with a place, has."""
    task = asyncio.ensure_future(world.executor.run({"code": "1"}))
    await until(lambda: peer.runs, "the host has a run")
    return task


async def test_another_hosts_run_cannot_be_ended_or_answered_for(world: World) -> None:
    honest = await world.joined("honest", b"a" * 16)
    task = await served_by(honest, world)
    hostile = await world.joined("hostile", b"b" * 16)
    token = honest.runs[0]
    forged: list[tuple[protocol.Message, bytes]] = [
        (protocol.Log(level="log", ms=1), b"forged"),
        (protocol.Call(id=1, server="tools", tool="echo"), b'{"forged": true}'),
        (protocol.Notice(), b'{"code": "FORGED", "message": ""}'),
        (protocol.Ended(reason="finished", outcome="done"), b'"forged"'),
        (protocol.Ended(reason="timeout"), b""),
    ]
    for message, body in forged:
        hostile.say(message, body, token=token)
    hostile_task = await served_by(hostile, world)
    hostile.finish(b"2")
    assert (await within(hostile_task)).result == 2
    honest.finish(b"1")
    response = await within(task)
    assert response.result == 1 and response.logs == [] and response.diagnostics == []
    assert world.calls == [] and world.failed == []


async def test_another_hosts_identity_cannot_be_taken(world: World) -> None:
    honest = await world.joined("honest", b"a" * 16)
    task = await served_by(honest, world)
    thief = world.peer("hostile", honest.identity)
    thief.say(hello(capacity=60_000))
    thief.say(protocol.Ended(reason="finished", outcome="done"), b'"stolen"', token=honest.runs[0])
    other = await world.joined("hostile", b"b" * 16)
    honest.finish(b"1")
    assert (await within(task)).result == 1
    assert world.link.reaches(PREFIX + honest.identity) and thief.heard == [] and world.failed == []
    assert other.runs == []


async def test_what_is_said_of_an_ended_run_is_not_heard(world: World) -> None:
    hostile = await world.joined("hostile", b"b" * 16)
    first = await served_by(hostile, world)
    token = hostile.runs[0]
    hostile.finish(b"1")
    assert (await within(first)).result == 1
    second = asyncio.ensure_future(world.executor.run({"code": "1"}))
    await until(lambda: len(hostile.runs) == 2, "the next run")
    hostile.say(protocol.Call(id=1, server="tools", tool="echo"), b"{}", token=token)
    hostile.say(protocol.Log(level="log", ms=1), b"late", token=token)
    hostile.finish(b"2")
    response = await within(second)
    assert response.result == 2 and response.logs == [] and world.calls == []


BREACHES: dict[str, Callable[[Peer], None]] = {
    "a second hello": lambda peer: peer.say(hello()),
    "nonsense": lambda peer: peer.socket.send((b"", b"\xc1", b"")),
    "a body over its cap": lambda peer: peer.say(protocol.Notice(), b"x" * 65_537),
    "such a body of its run": lambda peer: peer.say(protocol.Notice(), b"x" * 65_537, token=peer.runs[0]),
}


@pytest.mark.parametrize("say", BREACHES.values(), ids=BREACHES)
async def test_a_breach_costs_a_host_its_own_runs_and_nobody_elses(
    world: World, say: Callable[[Peer], None]
) -> None:
    honest = await world.joined("honest", b"a" * 16)
    kept = await served_by(honest, world)
    hostile = await world.joined("hostile", b"b" * 16)
    lost = await served_by(hostile, world)
    say(hostile)
    assert codes(await within(lost)) == ["HOST_LOST"]
    assert world.failed == [PREFIX + hostile.identity]
    honest.finish(b"1")
    assert (await within(kept)).result == 1


async def test_a_flood_before_the_greeting_fills_no_log_and_holds_nobody(
    world: World, caplog: pytest.LogCaptureFixture
) -> None:
    honest = await world.joined("honest", b"a" * 16)
    hostile = world.peer("hostile", b"b" * 16)
    with caplog.at_level(logging.INFO, logger="cellblock.transport"):
        for _ in range(3_000):
            hostile.socket.send((b"", b"\xc1", b""))
            hostile.say(replace(hello(capacity=1), protocol=1))
        task = await served_by(honest, world)
        honest.finish(b"1")
        assert (await within(task)).result == 1
        await until(lambda: "shutdown" in hostile.heard, "it is told that it is not taken")
        # ZeroMQ hands a ROUTER its peers' messages in turn: by then, many of the flood have come.
        await world.joined("hostile", b"c" * 16)
    lines = [record for record in caplog.records if "not taken" in record.getMessage()]
    assert len(lines) == 1 and hostile.heard.count("shutdown") == 1
