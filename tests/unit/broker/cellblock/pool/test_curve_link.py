"""The wire for hosts on other machines, over real TCP: who gets in, who does not, and what the log says of it."""

import asyncio
import contextlib
import itertools
import logging
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import msgspec
import pytest
import zmq
from msgspec.structs import replace

from cellblock.app.assembly import host_terms
from cellblock.base.settings.settings import CellblockSettings
from cellblock.fleet import curve_link
from cellblock.fleet.curve_link import PREFIX, CurveLink
from cellblock.fleet.remote_hosts import refusal
from cellblock_worker.wire import keys, protocol
from cellblock_worker.wire.frames import pack_header
from cellblock_worker.wire.keys import DialKeys, KeyPair, make_key_file, prepare_dialler
from cellblock_worker.wire.loop_socket import LoopSocket
from support.waits import until

HELLO = protocol.Hello(
    protocol=protocol.PROTOCOL_VERSION,
    pid=1,
    capacity=2,
    deno="",
    layers=[],
    message_bytes=1 << 24,
    heap_mb=256,
)
STATUS = protocol.Status(warm=0, booting=0, running=0, wanted=1)


class Ears:
    """What the pool is told."""

    def __init__(self) -> None:
        self.heard: list[tuple[bytes, protocol.FromHost]] = []
        self.broken: list[tuple[bytes, str]] = []
        self.gone: list[bytes] = []

    def host_says(self, host: bytes, token: bytes, message: protocol.FromHost, body: bytes) -> None:
        self.heard.append((host, message))

    def host_broke_protocol(self, host: bytes, why: str) -> None:
        self.broken.append((host, why))


class Peer:
    """A DEALER, prepared as a test wants."""

    def __init__(self, context: Any, endpoint: str, prepare: Callable[[Any], None], identity: bytes) -> None:
        dealer = context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.IDENTITY, identity)
        prepare(dealer)
        self.heard: list[protocol.ToHost] = []
        self.socket = LoopSocket(dealer, max_message_bytes=1 << 20, on_message=self._on_parts)
        self.socket.connect(endpoint)

    def _on_parts(self, parts: list[bytes]) -> None:
        message = protocol.parse_to_host(parts[1])
        if not isinstance(message, protocol.Cancel):
            self.heard.append(message)

    def say(self, message: protocol.Message | dict[str, Any]) -> None:
        header = message if isinstance(message, dict) else msgspec.to_builtins(message)
        self.socket.send((b"", pack_header(header), b""))


class Scene:
    """A listening link with one allowed key, and peers."""

    def __init__(self, folder: Path) -> None:
        self.server, self.host, self.stranger = (make_key_file(folder / name) for name in ("s", "h", "x"))
        self.ears = Ears()
        self.context: Any = zmq.Context(io_threads=1)
        self.peers: list[Peer] = []
        self.link = self.listen("tcp://127.0.0.1:*")

    def listen(self, endpoint: str) -> CurveLink:
        return CurveLink(
            endpoint,
            own=self.server,
            allowed={self.host.public: "box"},
            max_message_bytes=1 << 20,
            events=self.ears,
            judge=lambda hello: refusal(hello, host_terms(CellblockSettings())),
            on_gone=lambda host, _: self.ears.gone.append(host),
        )

    def peer(self, prepare: Callable[[Any], None], identity: bytes = b"i" * 16) -> Peer:
        peer = Peer(self.context, self.link.endpoint, prepare, identity)
        self.peers.append(peer)
        return peer

    def keyed(self, own: KeyPair, server: KeyPair | None = None, identity: bytes = b"i" * 16) -> Peer:
        keys = DialKeys(own, (server or self.server).public_bytes)
        return self.peer(lambda socket: prepare_dialler(socket, "tcp://h:1", keys), identity)

    async def joined(self, identity: bytes = b"good") -> Peer:
        peer = self.keyed(self.host, identity=identity)
        peer.say(HELLO)
        await until(lambda: (PREFIX + identity, HELLO) in self.ears.heard, "the host has joined")
        return peer

    def close(self) -> None:
        for peer in self.peers:
            peer.socket.close()
        self.link.close()
        self.context.destroy(linger=0)


@pytest.fixture
async def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Scene]:
    monkeypatch.setattr(curve_link, "LOG_INTERVAL_SECONDS", 0.0)
    # A peer whose handshake takes longer tries again, so a slow machine fails nothing.
    monkeypatch.setattr(keys, "HANDSHAKE_BOUND_MS", 1500)
    made = Scene(tmp_path)
    yield made
    made.close()


def plain(socket: Any) -> None:
    socket.setsockopt(zmq.PLAIN_USERNAME, b"root")
    socket.setsockopt(zmq.PLAIN_PASSWORD, b"root")


@pytest.mark.parametrize(
    ("intrudes", "said"),
    [
        (lambda scene: scene.keyed(scene.stranger), "is not in cellblock.hosts.allowed_keys"),
        (lambda scene: scene.keyed(scene.host, server=scene.stranger), "another server key"),
        # No keys at all: the NULL mechanism.
        (lambda scene: scene.peer(lambda _: None), "CURVE"),
        (lambda scene: scene.peer(plain), "CURVE"),
    ],
    ids=["unknown key", "wrong server key", "null", "plain"],
)
async def test_who_has_not_the_right_keys_is_not_heard_and_disturbs_nobody(
    intrudes: Callable[[Scene], Peer], said: str, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "cellblock")
    good = await scene.joined()
    before = len(scene.ears.heard)
    intruder = intrudes(scene)
    intruder.say(HELLO)
    await until(lambda: any(said in record.getMessage() for record in caplog.records), f"the log says {said}")
    good.say(STATUS)
    await until(lambda: len(scene.ears.heard) > before, "the other host is heard all the while")
    assert [host for host, _ in scene.ears.heard[before:]] == [PREFIX + b"good"]
    assert not scene.ears.gone and not intruder.heard
    if "allowed_keys" in said:
        assert scene.stranger.public in caplog.text and "127.0.0.1" in caplog.text
    assert scene.host.secret.hex() not in caplog.text and scene.server.secret.hex() not in caplog.text


async def test_many_unknown_keys_do_not_fill_the_log(
    scene: Scene, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(curve_link, "LOG_INTERVAL_SECONDS", 1.0)
    began, numbers = time.monotonic(), itertools.count()

    def knocks() -> bool:
        scene.keyed(scene.stranger, identity=b"%d" % next(numbers)).say(HELLO)
        return "more were not logged" in caplog.text

    await until(knocks, "the log says how many more there were")
    said = sum("refused" in one.getMessage() for one in caplog.records)
    assert 2 <= said <= 2 * (time.monotonic() - began + 2), "of two kinds, one a second"


async def test_strangers_that_talk_nonsense_or_nothing_are_cut_off(
    scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    good = await scene.joined()
    port = int(scene.link.endpoint.rpartition(":")[2])
    loud, quiet = [await asyncio.open_connection("127.0.0.1", port) for _ in range(2)]
    loud[1].write(b"GET / HTTP/1.1\r\n\r\n" * 1000)
    # ZMTP's greeting with CURVE, and then never another byte.
    quiet[1].write(b"\xff" + bytes(8) + b"\x7f\x03\x00" + b"CURVE".ljust(20, b"\0") + bytes(32))
    for reader, writer in (loud, quiet):
        async with asyncio.timeout(30):
            with contextlib.suppress(ConnectionResetError):
                await reader.read()
        writer.close()
    await until(lambda: "took too long" in caplog.text, "the log says who was too slow")
    await until(
        lambda: "without having become a worker host" in caplog.text, "the log says who spoke nonsense"
    )
    before = len(scene.ears.heard)
    good.say(STATUS)
    await until(lambda: len(scene.ears.heard) > before, "the host is heard all the while")
    assert not scene.ears.gone


async def test_without_its_guard_nobody_gets_in(scene: Scene, caplog: pytest.LogCaptureFixture) -> None:
    """ZAP_ENFORCE_DOMAIN: libzmq would otherwise let in every key when no authenticator answers."""
    scene.link._guard.close()
    scene.keyed(scene.host).say(HELLO)
    await until(lambda: "refused a connection" in caplog.text, "the log says that it was refused")
    assert scene.ears.heard == []


async def test_a_connection_that_ends_is_known_at_once(scene: Scene) -> None:
    peer, other = await scene.joined(b"one"), await scene.joined(b"two")
    peer.socket.close()
    await until(lambda: scene.ears.gone == [PREFIX + b"one"], "the one that ended is known")
    assert not scene.link.reaches(PREFIX + b"one") and scene.link.reaches(PREFIX + b"two")
    with pytest.raises(OSError):
        scene.link.send(PREFIX + b"one", b"", protocol.Demand(waiting=1))
    assert other.heard == []


OTHER = protocol.PROTOCOL_VERSION + 1


@pytest.mark.parametrize(
    ("hello", "said"),
    [
        (
            replace(HELLO, protocol=OTHER),
            f"it speaks protocol {OTHER}, this broker {protocol.PROTOCOL_VERSION}",
        ),
        (
            {**msgspec.to_builtins(HELLO), "protocol": OTHER, "news": True},
            f"it speaks protocol {OTHER}, this broker {protocol.PROTOCOL_VERSION}",
        ),
        ({**msgspec.to_builtins(HELLO), "capacity": -1}, "malformed"),
        (replace(HELLO, message_bytes=5000), "--max-message-bytes 16777216"),
        (replace(HELLO, heap_mb=64), "--max-memory-mb 256"),
    ],
)
async def test_a_host_that_does_not_fit_is_told_why_and_not_used(
    hello: Any, said: str, scene: Scene, caplog: pytest.LogCaptureFixture
) -> None:
    peer = scene.keyed(scene.host)
    peer.say(hello)
    await until(lambda: peer.heard, "the host is told")
    (told,) = peer.heard
    # The successor of this broker may take one of another version.
    assert isinstance(told, protocol.Shutdown) and told.final == ("speaks" not in said) and said in told.why
    assert said in caplog.text
    peer.say(STATUS)
    await scene.joined()
    assert scene.ears.heard == [(PREFIX + b"good", HELLO)] and not scene.link.reaches(PREFIX + b"i" * 16)


def test_required_isolation_is_required_of_every_host() -> None:
    section = CellblockSettings.model_validate({"isolation": "required"})
    bare = replace(HELLO, missing=["namespaces: the kernel refuses"])
    required, default = host_terms(section), host_terms(CellblockSettings())
    assert "isolation" in refusal(bare, required)
    assert refusal(HELLO, required) is None and refusal(bare, default) is None


async def test_nonsense_of_a_joined_host_is_told_to_the_pool(scene: Scene) -> None:
    peer = await scene.joined()
    peer.socket.send((b"", b"\xc1", b""))
    await until(lambda: scene.ears.broken, "the pool is told")
    assert scene.ears.broken[0][0] == PREFIX + b"good"
    scene.link.dismiss(PREFIX + b"good", "x" * 5000)
    await until(lambda: peer.heard, "the host is told")
    (told,) = peer.heard
    assert isinstance(told, protocol.Shutdown) and not told.final


async def test_an_address_that_is_taken_leaves_nothing_open(scene: Scene) -> None:
    with pytest.raises(zmq.ZMQError, match="in use"):
        scene.listen(scene.link.endpoint)
    await scene.joined()
