"""One connection is uvicorn's, with the bounds that it lacks against clients that are slow or silent on purpose."""

from __future__ import annotations

import asyncio
from typing import Any, cast

import h11
from uvicorn._types import HTTPScope
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from cellblock.serve.http.connections import SCOPE_KEY, Connections


def connections_bounded_by(head_seconds: float, shared: Connections) -> type[asyncio.Protocol]:
    """Returns the protocol class for uvicorn's `http` setting.

    Args:
        head_seconds: Bounds the time for the head of a connection's next request, from its first byte; of the first
            one from the beginning.
        shared: Has the places of all connections.
    """

    class Bounded(BoundedConnection):
        head_timeout = head_seconds
        connections_open = shared

    return Bounded


class _Gathering:
    """Sends what is written to a transport in one turn of the loop at once: uvicorn writes a response's head and its
    body by themselves, and each would wake the client."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held.append(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def _flush(self) -> None:
        held, self._held = self._held, []
        if held:
            self._transport.write(b"".join(held))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class BoundedConnection(H11Protocol):
    """Is aborted when a head takes too long, or when its place goes to another connection."""

    head_timeout: float
    connections_open: Connections

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, {**app_state, SCOPE_KEY: self}, _loop)
        self._head_due: asyncio.TimerHandle | None = None

    @property
    def address(self) -> str:
        return self.client[0] if self.client else ""

    @property
    def idle(self) -> bool:
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is None or cycle.response_complete

    def abort(self) -> None:
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(cast("asyncio.Transport", _Gathering(transport, self.loop)))
        self._await_head()
        self.connections_open.enter(self)

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.transport.is_closing() or self.conn.their_state is not h11.IDLE:
            self._stop_awaiting_head()
        elif self._head_due is None and self.timeout_keep_alive_task is None:
            self._await_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self.connections_open.leave(self)
        self._stop_awaiting_head()
        super().connection_lost(exc)
        # All know the connection: else those of a burst would go together, when the collector comes by.
        self._unset_keepalive_if_required()
        self.app_state, self.cycle, self.scope = (
            {},
            cast("RequestResponseCycle", None),
            cast("HTTPScope", None),
        )

    def send_400_response(self, msg: str) -> None:
        """Answers what is no HTTP, or hangs up where an answer has begun, which uvicorn fails to do."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            super().send_400_response(msg)
        else:
            self.transport.abort()

    def _await_head(self) -> None:
        self._head_due = self.loop.call_later(self.head_timeout, self.transport.abort)

    def _stop_awaiting_head(self) -> None:
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None
