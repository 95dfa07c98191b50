"""What is told of a socket's connections, and what the end of that does to others."""

from __future__ import annotations

import asyncio
from typing import Any

import zmq

from cellblock_worker.wire.loop_socket import LoopSocket
from cellblock_worker.wire.wire_events import Watch
from support.waits import within

CAP = 1024


async def test_a_socket_that_is_watched_no_more_holds_up_no_other_of_its_context() -> None:
    """The thread that all sockets of a context share tells an event that comes after the end of the watch."""
    peer: Any = zmq.Context(io_threads=1)
    context: Any = zmq.Context(io_threads=1)
    connected = asyncio.Event()
    arrived = asyncio.Event()

    def on_event(event: zmq.Event, _: int) -> None:
        if event is zmq.Event.HANDSHAKE_SUCCEEDED:
            connected.set()

    listening = peer.socket(zmq.ROUTER)
    port = listening.bind_to_random_port("tcp://127.0.0.1")
    dealer = context.socket(zmq.DEALER)
    watch = Watch(dealer, on_event)
    dealer.connect(f"tcp://127.0.0.1:{port}")
    await within(connected.wait())
    watch.close()
    peer.destroy(linger=0)

    pull = context.socket(zmq.PULL)
    port = pull.bind_to_random_port("tcp://127.0.0.1")
    heard = LoopSocket(pull, max_message_bytes=CAP, on_message=lambda _: arrived.set())
    push = context.socket(zmq.PUSH)
    push.connect(f"tcp://127.0.0.1:{port}")
    push.send(b"x", zmq.NOBLOCK)
    # Not destroyed otherwise: that waits for the thread, too.
    await within(arrived.wait(), 20.0)
    heard.close()
    context.destroy(linger=0)
