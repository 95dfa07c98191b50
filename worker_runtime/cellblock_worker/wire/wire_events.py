"""Tells what becomes of a ZeroMQ socket's connections, as callbacks on the loop."""

from __future__ import annotations

import errno
import struct
from collections.abc import Callable
from typing import Final

import zmq

from cellblock_worker.wire.loop_socket import LoopSocket

WATCHED: Final = (
    zmq.Event.HANDSHAKE_SUCCEEDED
    | zmq.Event.HANDSHAKE_FAILED_NO_DETAIL
    | zmq.Event.HANDSHAKE_FAILED_PROTOCOL
    | zmq.Event.HANDSHAKE_FAILED_AUTH
    | zmq.Event.DISCONNECTED
    | zmq.Event.CONNECT_RETRIED
)

EVENT_CAP_BYTES: Final = 1024

_event = struct.Struct("=Hi")


class Watch:
    """Tells `on_event` the kind and value of each watched event, until it is closed.

    Args:
        socket: Not yet bound or connected. Close this first, and then the socket.
        on_event: Called from the loop; the value's meaning depends on the event (`zmq_socket_monitor`).
    """

    def __init__(self, socket: zmq.Socket[bytes], on_event: Callable[[zmq.Event, int], None]) -> None:
        def on_message(parts: list[bytes]) -> None:
            number, value = _event.unpack(parts[0])
            if number & WATCHED:
                on_event(zmq.Event(number), value & 0xFFFFFFFF)

        self._watched = socket
        monitor = socket.get_monitor_socket(int(WATCHED))
        self._events = LoopSocket(monitor, max_message_bytes=EVENT_CAP_BYTES, on_message=on_message)

    def close(self) -> None:
        """Ends the watch. ZeroMQ is told first: its thread tells each event without a bound, and waits for ever for a
        listener that has gone, and with it all sockets of the context."""
        if not self._watched.closed:
            self._watched.disable_monitor()
        self._events.close()


def explain(event: zmq.Event, value: int) -> str:
    """Says why a handshake failed, as far as ZeroMQ says; "it" is the other side."""
    match event, value:
        case zmq.Event.HANDSHAKE_FAILED_AUTH, _:
            return f"the host's key is not allowed (status {value})"
        case zmq.Event.HANDSHAKE_FAILED_PROTOCOL, 0x11000001:  # ZMQ_PROTOCOL_ERROR_ZMTP_CRYPTOGRAPHIC
            return "it sent what cannot be decrypted: it was given another server key"
        case zmq.Event.HANDSHAKE_FAILED_PROTOCOL, 0x11000002:  # ZMQ_PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH
            return "it does not use CURVE"
        case zmq.Event.HANDSHAKE_FAILED_PROTOCOL, _:
            return f"it broke the protocol (0x{value:08x})"
        case _, errno.EAGAIN:
            return "its handshake took too long"
        case _:
            # Which side is first to give up is a race, and the other learns no more than this.
            return "it broke the handshake off: it has another mechanism than CURVE, or another server key"
