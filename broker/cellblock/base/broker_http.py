"""Broker_http connects brokers to one another: no proxy of the environment is between them, and a machine that has
vanished is noticed."""

from __future__ import annotations

import socket
import ssl
from typing import Final

import httpx2

IDLE_SECONDS: Final = 2.0
"""Bounds how long a connection without a request is kept: much less than the other side keeps it, so that it is not
closed there as the next request comes."""

ALIVE_SECONDS: Final = 5
ALIVE_TRIES: Final = 3
"""Bound how long a machine that has vanished is waited for: the kernel asks after so many seconds of silence, so often.
An answer itself has no bound here: it is the run's, or its client's."""

CONNECT_SECONDS: Final = 3.0
"""Bounds the time until another broker has taken a connection; in one network it takes a millisecond."""

WRITE_SECONDS: Final = 30.0
"""Bounds the time in which another broker takes nothing of a body: as much as a client has for its own."""


class BrokerTransport(httpx2.AsyncHTTPTransport):
    """Holds the connections to other brokers.

    Args:
        name: What each broker's certificate is good for; None: the host of its URL.
        connections: How many there may be; None: any number.
    """

    def __init__(self, name: str | None, connections: int | None = None) -> None:
        options = [
            (socket.SOL_SOCKET, socket.SO_KEEPALIVE, 1),
            (socket.IPPROTO_TCP, socket.TCP_NODELAY, 1),
            (socket.IPPROTO_TCP, socket.TCP_KEEPINTVL, ALIVE_SECONDS),
            (socket.IPPROTO_TCP, socket.TCP_KEEPCNT, ALIVE_TRIES),
        ]
        if (idle := getattr(socket, "TCP_KEEPIDLE", getattr(socket, "TCP_KEEPALIVE", None))) is not None:
            options.append((socket.IPPROTO_TCP, idle, ALIVE_SECONDS))
        super().__init__(
            verify=ssl.create_default_context(),
            trust_env=False,
            limits=httpx2.Limits(max_connections=connections, keepalive_expiry=IDLE_SECONDS),
            socket_options=options,
        )
        self._for_tls = {} if name is None else {"sni_hostname": name}

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Sends a request to another broker within the bounds."""
        bounds = {"connect": CONNECT_SECONDS, "pool": CONNECT_SECONDS, "write": WRITE_SECONDS, "read": None}
        request.extensions = {**request.extensions, "timeout": bounds, **self._for_tls}
        return await super().handle_async_request(request)
