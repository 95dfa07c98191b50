"""The in-memory carrier has hosts in the same process, the same messages, and no sockets.

Messages still pass through the header codec both ways, so what cannot cross a wire cannot cross here.
"""

import asyncio
from typing import Protocol

from cellblock.pool.router import LinkEvents
from cellblock_worker.wire import protocol
from cellblock_worker.wire.frames import FrameError


class MemoryHost(Protocol):
    """A host is at the other end of a `MemoryLink`."""

    def broker_says(self, token: bytes, message: protocol.ToHost, body: bytes) -> None:
        """Takes a message of the broker, delivered from the event loop."""
        ...


class MemoryLink:
    """Implements `router.HostLink` for hosts that live in this process.

    Args:
        events: Told what hosts say.
        max_message_bytes: Cap of one body from a host.
    """

    def __init__(self, events: LinkEvents, *, max_message_bytes: int) -> None:
        self._events = events
        self._max_message_bytes = max_message_bytes
        self._hosts: dict[bytes, MemoryHost] = {}
        self._loop = asyncio.get_running_loop()
        self._closed = False

    def attach(self, identity: bytes, host: MemoryHost) -> None:
        """Connects a host."""
        self._hosts[identity] = host

    def detach(self, identity: bytes) -> None:
        """Cuts a host off: sends to it fail from now on, and what it says is dropped."""
        self._hosts.pop(identity, None)

    def send(self, host: bytes, token: bytes, message: protocol.ToHost, body: bytes = b"") -> None:
        """Delivers in a later turn of the loop. Raises ConnectionError for an unknown host."""
        target = self._hosts.get(host)
        if target is None or self._closed:
            raise ConnectionError("no such host")
        copy = protocol.parse_to_host(message.packed())
        self._loop.call_soon(target.broker_says, token, copy, body)

    def reaches(self, host: bytes) -> bool:
        """Says whether a host is attached."""
        return host in self._hosts

    def deliver(self, host: bytes, token: bytes, raw_header: bytes, body: bytes = b"") -> None:
        """Delivers what a host says, as encoded header and body, in a later turn of the loop."""
        self._loop.call_soon(self._deliver_now, host, token, raw_header, body)

    def close(self) -> None:
        """Drops every host."""
        self._closed = True
        self._hosts.clear()

    def _deliver_now(self, host: bytes, token: bytes, raw_header: bytes, body: bytes) -> None:
        if self._closed or host not in self._hosts:
            return
        try:
            message = protocol.parse_from_host(raw_header)
            protocol.check_body(message, len(body), self._max_message_bytes)
        except FrameError as error:
            self._events.host_broke_protocol(host, str(error))
            return
        self._events.host_says(host, token, message, body)
