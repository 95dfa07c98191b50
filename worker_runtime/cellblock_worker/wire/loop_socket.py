"""A ZeroMQ socket is driven by the asyncio loop without futures: it receives by callback and sends at once.

`zmq.asyncio` makes a future and several loop turns per message, about a quarter more per round trip,
and lets a send wait without bound. This is the documented way to put a socket into
another event loop: its edge-triggered FD says "look again", and after every look and every send ZMQ_EVENTS must be
read until nothing is left.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import struct
import time
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final

import zmq

from cellblock_worker.wire.outflow import GATHERING

SEND_HIGH_WATER_MARK: Final = 10_000
"""Caps the messages that ZeroMQ queues for one peer before a send would block."""

BACKLOG_CAP: Final = 50_000
"""Caps the messages kept here past the high-water mark; a peer that slow is gone."""

DRAIN_BATCH: Final = 256
"""Caps the messages taken in one turn of the loop: a peer that floods must not keep timers and other sockets
waiting."""

DRAIN_SECONDS: Final = 0.01
"""Bounds the time of one turn, for messages that take long."""

# Plain numbers: an operation on pyzmq's enums costs as much as the call that it is for.
_EVENTS: Final = int(zmq.EVENTS)
_POLLIN: Final = int(zmq.POLLIN)
_POLLOUT: Final = int(zmq.POLLOUT)
_NOBLOCK: Final = int(zmq.NOBLOCK)
_MORE: Final = int(zmq.SNDMORE | zmq.NOBLOCK)

HEARTBEAT_INTERVAL_MS: Final = 1_000
HEARTBEAT_TIMEOUT_MS: Final = 10_000


class PeerUnreachable(OSError):
    """Tells that a message could not be given to ZeroMQ: no such peer, or it has stopped reading."""


class LoopSocket:
    """Owns one ZeroMQ socket; only it closes it.

    Args:
        socket: Not yet bound or connected; the safe options are set here.
        max_message_bytes: ZMQ_MAXMSGSIZE; a peer that sends more is disconnected by ZeroMQ.
        on_message: Called with the parts of each message, from the loop.
    """

    def __init__(
        self,
        socket: zmq.Socket[bytes],
        *,
        max_message_bytes: int,
        on_message: Callable[[list[bytes]], None],
    ) -> None:
        self._socket = socket
        # The native ones: what pyzmq has around them is for options that are not used here.
        self._send = super(zmq.Socket, socket).send
        self._on_message = on_message
        # By peer, whom the first part names at a ROUTER: one that does not read must not hold up others.
        self._is_router = int(socket.get(zmq.TYPE)) == int(zmq.ROUTER)
        self._backlog: dict[bytes, deque[Sequence[bytes]]] = {}
        self._scheduled = False
        for option, value in (
            (zmq.LINGER, 0),
            (zmq.MAXMSGSIZE, max_message_bytes),
            (zmq.SNDHWM, SEND_HIGH_WATER_MARK),
            (zmq.RCVHWM, SEND_HIGH_WATER_MARK),
            (zmq.HEARTBEAT_IVL, HEARTBEAT_INTERVAL_MS),
            (zmq.HEARTBEAT_TIMEOUT, HEARTBEAT_TIMEOUT_MS),
        ):
            socket.setsockopt(option, value)
        self._loop = asyncio.get_running_loop()
        self._fd = int(socket.getsockopt(zmq.FD))
        self._loop.add_reader(self._fd, self._drain)
        # A pipe signals only to a reader that has once found it empty.
        self._drain_soon()

    def bind(self, endpoint: str) -> None:
        """Binds the socket to an endpoint. Raises zmq.ZMQError."""
        self._socket.bind(endpoint)
        self._drain_soon()

    def unbind(self, endpoint: str) -> None:
        """Stops listening at an endpoint. Harmless when it does not."""
        with contextlib.suppress(zmq.ZMQError):
            self._socket.unbind(endpoint)
        self._drain_soon()

    def connect(self, endpoint: str) -> None:
        """Connects the socket to an endpoint. Raises zmq.ZMQError."""
        self._socket.connect(endpoint)
        self._drain_soon()

    def send(self, parts: Sequence[bytes]) -> None:
        """Sends now, or keeps the message until the peer takes more.

        Raises:
            PeerUnreachable: No such peer (ROUTER), or the backlog is over its cap.
        """
        peer = parts[0] if self._is_router else b""
        if peer in self._backlog or not self._try_send(parts):
            self._keep(peer, parts)
        # A send may have taken the signal for what has come meanwhile.
        if self._backlog or int(self._socket.get(_EVENTS)) & _POLLIN:
            self._drain_soon()

    def close(self, *, linger_ms: int = 0) -> None:
        """Closes the socket. What ZeroMQ has not sent yet is lost after `linger_ms` milliseconds."""
        if not self._socket.closed:
            self._loop.remove_reader(self._fd)
            self._socket.close(linger=linger_ms)

    def _keep(self, peer: bytes, parts: Sequence[bytes]) -> None:
        waiting = self._backlog.setdefault(peer, deque())
        if len(waiting) >= BACKLOG_CAP:
            raise PeerUnreachable(f"over {BACKLOG_CAP} messages wait for a peer that does not read")
        waiting.append(parts)

    def _try_send(self, parts: Sequence[bytes]) -> bool:
        send = self._send
        try:
            for part in parts[:-1]:
                send(part, _MORE)
            send(parts[-1], _NOBLOCK)
        except zmq.Again:
            return False
        except zmq.ZMQError as error:
            raise PeerUnreachable(str(error)) from None
        return True

    def _drain_soon(self) -> None:
        if not self._scheduled:
            self._scheduled = True
            self._loop.call_soon(self._drain)

    def _drain(self) -> None:
        with GATHERING:
            self._take()

    def _take(self) -> None:
        self._scheduled = False
        socket = self._socket
        until = time.monotonic() + DRAIN_SECONDS
        # As a rule something has come: taking it tells so, too, and saves a question.
        readable, sent = not self._backlog, False
        for _ in range(DRAIN_BATCH):
            if socket.closed:
                return
            if not readable:
                events = int(socket.get(_EVENTS))
                # A ROUTER can send as long as any peer takes something: only what has gone is progress.
                sent = bool(self._backlog) and bool(events & _POLLOUT) and self._flush()
                readable = bool(events & _POLLIN)
            if readable:
                readable = False
                try:
                    parts = self._receive()
                except zmq.Again:
                    continue
                try:
                    self._on_message(parts)
                except Exception:
                    # The FD is edge-triggered: without another look, what is queued would wait for the next edge.
                    self._drain_soon()
                    raise
                if time.monotonic() > until:
                    break
            elif not sent:
                return
        self._drain_soon()

    def _receive(self) -> list[bytes]:
        receive = self._socket.recv
        # As a frame, each part tells whether another follows; asking the socket is dearer.
        frame = receive(_NOBLOCK, copy=False)
        parts = [frame.bytes]
        while frame.more:
            frame = receive(_NOBLOCK, copy=False)
            parts.append(frame.bytes)
        return parts

    def _flush(self) -> bool:
        """Sends one message to each peer that takes one; whether any has gone."""
        gone = False
        for peer, waiting in list(self._backlog.items()):
            try:
                if not self._try_send(waiting[0]):
                    continue
            except PeerUnreachable:
                # The peer went while its message waited; whoever watches the peer ends its runs.
                pass
            waiting.popleft()
            gone = True
            if not waiting:
                del self._backlog[peer]
        return gone


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
