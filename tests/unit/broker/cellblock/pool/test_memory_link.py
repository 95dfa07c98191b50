"""The in-memory wire: the same codec, the same errors, delivery in a later turn and in order."""

import pytest

from cellblock_worker.wire import protocol
from cellblock_worker.wire.frames import pack_header
from support.memory_host import turns
from support.memory_link import MemoryLink

MIB = 1024 * 1024
DONE = protocol.Ended(reason="finished", outcome="done")
DONE_HEADER = DONE.packed()
HELLO = protocol.Hello(protocol=1, pid=1, capacity=1, deno="", layers=[])


class Ears:
    """Both ends at once: records what either is told."""

    def __init__(self) -> None:
        self.from_host: list[tuple[bytes, bytes, protocol.FromHost, bytes]] = []
        self.broken: list[tuple[bytes, str]] = []
        self.from_broker: list[tuple[bytes, protocol.ToHost, bytes]] = []

    def host_says(self, host: bytes, token: bytes, message: protocol.FromHost, body: bytes) -> None:
        self.from_host.append((host, token, message, body))

    def host_broke_protocol(self, host: bytes, why: str) -> None:
        self.broken.append((host, why))

    def broker_says(self, token: bytes, message: protocol.ToHost, body: bytes) -> None:
        self.from_broker.append((token, message, body))


@pytest.fixture
def ears() -> Ears:
    return Ears()


@pytest.fixture
async def link(ears: Ears) -> MemoryLink:
    """One with the host `h`."""
    made = MemoryLink(ears, max_message_bytes=MIB)
    made.attach(b"h", ears)
    return made


async def test_messages_cross_in_order_and_not_at_once(ears: Ears, link: MemoryLink) -> None:
    for number in range(3):
        link.send(b"h", b"t", protocol.Demand(waiting=number), bytes([number]))
        link.deliver(b"h", b"t", DONE_HEADER, bytes([number]))
    assert ears.from_broker == [] and ears.from_host == []
    await turns()
    assert ears.from_broker == [
        (b"t", protocol.Demand(waiting=number), bytes([number])) for number in range(3)
    ]
    assert ears.from_host == [(b"h", b"t", DONE, bytes([number])) for number in range(3)]


async def test_an_unknown_host_cannot_be_reached_or_heard(ears: Ears, link: MemoryLink) -> None:
    with pytest.raises(ConnectionError):
        link.send(b"x", b"", protocol.Shutdown())
    link.deliver(b"x", b"", HELLO.packed())
    await turns()
    assert ears.from_host == [] and ears.broken == []


async def test_a_detached_host_is_cut_off_at_once(ears: Ears, link: MemoryLink) -> None:
    link.deliver(b"h", b"", HELLO.packed())
    link.detach(b"h")
    link.detach(b"h")
    with pytest.raises(OSError):
        link.send(b"h", b"", protocol.Shutdown())
    await turns()
    assert ears.from_host == []


@pytest.mark.parametrize(
    "raw", [b"", b"\xc1", pack_header({"t": "run"}), pack_header({"t": "done", "ms": -1})], ids=repr
)
async def test_what_is_no_message_of_a_host_is_reported(raw: bytes, ears: Ears, link: MemoryLink) -> None:
    link.deliver(b"h", b"t", raw)
    await turns()
    assert [host for host, _ in ears.broken] == [b"h"]
    assert ears.from_host == []


async def test_a_closed_link_is_silent(ears: Ears, link: MemoryLink) -> None:
    link.deliver(b"h", b"t", HELLO.packed())
    link.close()
    await turns()
    assert ears.from_host == []
    with pytest.raises(OSError):
        link.send(b"h", b"", protocol.Shutdown())
