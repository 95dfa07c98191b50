"""A broker link is a host's connection to one broker: a DEALER under an identity of its own."""

from __future__ import annotations

from collections.abc import Callable

import zmq

from cellblock_worker.wire import protocol
from cellblock_worker.wire.keys import DialKeys, prepare_dialler
from cellblock_worker.wire.loop_socket import LoopSocket, Watch


class BrokerLink:
    """Owns the DEALER socket to one broker; it is not dialled yet.

    Args:
        endpoint: The broker's.
        identity: 16 bytes that name this host there.
        context: The ZeroMQ context; the caller terminates it.
        max_message_bytes: Cap of one message.
        keys: For a broker on the network.
        on_parts: Given what the broker says.
        on_wire: Told what becomes of the connection.

    Attributes:
        dismissed: How the broker has sent this host away.

    Raises:
        EndpointError: The broker is on the network, and there are no keys.
    """

    def __init__(
        self,
        endpoint: str,
        identity: bytes,
        context: zmq.Context[zmq.Socket[bytes]],
        *,
        max_message_bytes: int,
        keys: DialKeys | None,
        on_parts: Callable[[BrokerLink, list[bytes]], None],
        on_wire: Callable[[BrokerLink, zmq.Event, int], None],
    ) -> None:
        self.endpoint = endpoint
        self.dismissed: protocol.Shutdown | None = None
        self.closed = False
        dealer = context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.IDENTITY, identity)
        try:
            prepare_dialler(dealer, endpoint, keys)
        except ValueError:
            dealer.close()
            raise
        self._wire = Watch(dealer, lambda event, value: on_wire(self, event, value))
        self._socket = LoopSocket(
            dealer,
            max_message_bytes=protocol.part_cap(max_message_bytes),
            on_message=lambda parts: on_parts(self, parts),
        )

    def dial(self) -> None:
        """Begins to connect to the broker. Raises zmq.ZMQError."""
        self._socket.connect(self.endpoint)

    def send(self, token: bytes, raw_header: bytes, body: bytes = b"") -> None:
        """Sends one message, or drops it when the link is closed. Raises PeerUnreachable."""
        if not self.closed:
            self._socket.send((token, raw_header, body))

    def close(self, *, linger_ms: int = 0) -> None:
        """Closes the socket; what is not sent after `linger_ms` is lost."""
        if not self.closed:
            self.closed = True
            self._wire.close()
            self._socket.close(linger_ms=linger_ms)
