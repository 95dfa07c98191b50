"""Says what the pool needs of a wire to worker hosts, and is one for the host on this machine: a ZeroMQ ROUTER.

`curve_link.CurveLink` is another one, for hosts on other machines; tests have a third, for a host in the same process.
"""

from __future__ import annotations

from typing import Protocol

import zmq

from cellblock_worker.wire import protocol
from cellblock_worker.wire.frames import FrameError
from cellblock_worker.wire.loop_socket import LoopSocket


class LinkEvents(Protocol):
    """Hears what a link tells the pool, always from the event loop."""

    def host_says(self, host: bytes, token: bytes, message: protocol.FromHost, body: bytes) -> None:
        """Takes a well-formed message of a host; `token` is empty for messages about the host itself."""

    def host_broke_protocol(self, host: bytes, why: str) -> None:
        """Hears that a host sent what is no message. Its process is not to be trusted with another run."""


class HostLink(Protocol):
    """Sends to hosts by their identity."""

    def send(self, host: bytes, token: bytes, message: protocol.ToHost, body: bytes = b"") -> None:
        """Sends one message. Raises OSError when that host cannot be reached."""

    def reaches(self, host: bytes) -> bool:
        """Says whether this link leads to the host of an identity."""
        ...

    def close(self) -> None:
        """Closes the link's sockets; nothing is told after it."""


class RouterLink:
    """Binds at construction; implements `HostLink`.

    Args:
        context: The ZeroMQ context; the caller terminates it.
        endpoint: What to bind, for example `ipc:///run/…/hosts.sock` in a 0700 directory.
        max_message_bytes: Cap of one message part from a host.
        events: Told what hosts say.
    """

    def __init__(
        self,
        context: zmq.Context[zmq.Socket[bytes]],
        endpoint: str,
        *,
        max_message_bytes: int,
        events: LinkEvents,
    ) -> None:
        self._events = events
        self._max_message_bytes = max_message_bytes
        self._known: set[bytes] = set()
        router = context.socket(zmq.ROUTER)
        # Without it a message to a host that is gone vanishes, and its run would wait for its deadline.
        router.setsockopt(zmq.ROUTER_MANDATORY, 1)
        self._socket = LoopSocket(
            router, max_message_bytes=protocol.part_cap(max_message_bytes), on_message=self._on_parts
        )
        self._endpoint = endpoint
        self._socket.bind(endpoint)

    def bind_again(self) -> None:
        """Makes the endpoint anew after its file was removed; connected hosts stay. Raises zmq.ZMQError."""
        self._socket.unbind(self._endpoint)
        self._socket.bind(self._endpoint)

    def expect(self, host: bytes) -> None:
        """Accepts messages under this identity from now on; all others are dropped."""
        self._known.add(host)

    def forget(self, host: bytes) -> None:
        """Drops whatever still comes under this identity."""
        self._known.discard(host)

    def reaches(self, host: bytes) -> bool:
        """Says whether a host is expected."""
        return host in self._known

    def send(self, host: bytes, token: bytes, message: protocol.ToHost, body: bytes = b"") -> None:
        """Sends one message. Raises PeerUnreachable (an OSError)."""
        self._socket.send((host, token, message.packed(), body))

    def close(self) -> None:
        """Closes the socket."""
        self._socket.close()

    def _on_parts(self, parts: list[bytes]) -> None:
        host = parts[0]
        if host not in self._known:
            return
        try:
            token, message, body = read_parts(parts, self._max_message_bytes)
        except FrameError as error:
            self._events.host_broke_protocol(host, str(error))
            return
        self._events.host_says(host, token, message, body)


def read_parts(parts: list[bytes], max_message_bytes: int) -> tuple[bytes, protocol.FromHost, bytes]:
    """Returns the token, message and body of what a ROUTER received, the body within its message's cap. Raises
    FrameError.
    """
    if len(parts) != 4:
        raise FrameError(f"{len(parts)} parts")
    _, token, raw_header, body = parts
    message = protocol.parse_from_host(raw_header)
    protocol.check_body(message, len(body), max_message_bytes)
    return token, message, body
