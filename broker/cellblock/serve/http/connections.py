"""Bounds who may hold how many connections. Strangers, who have shown no token on theirs, never shut out those who
have: when places run out, a stranger's connection is closed, the oldest one of the network that holds most. A bound on
their number alone, as uvicorn has it, lets whoever opens that many shut everybody out."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Callable
from typing import Any, Final, cast

import h11
from starlette.types import Scope
from uvicorn._types import HTTPScope
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from cellblock.serve.http.caller import Caller, network_of
from cellblock.serve.http.refusal import busy

STRANGERS_PART: Final = 4
"""Keeps one in so many of all places for connections that have not shown anything yet: every connection starts as such
a stranger. With 64 of them, a client whose request comes right behind its connection is read before as many newer ones
push it out."""

RETRY_SECONDS: Final = 1
"""Says after how many seconds a client may ask again on another connection; most are in use for milliseconds."""

TOO_MANY: Final = (
    "All connections that you may have here have requests under way. Wait for an answer, then ask again."
)

SCOPE_KEY: Final = "cellblock.connection"
"""Names the connection in the state of an ASGI scope."""

PIECE_BYTES: Final = 16 * 1024
"""Bounds what h11 is given at once: it takes the lines of a head that it has whole in one go, 0.5 ms for a KiB."""


class Connections:
    """Holds all connections of a front-end; sans-I/O.

    Args:
        total: How many there may be.

    Attributes:
        share: How many of them one holder of tokens may have.
    """

    def __init__(self, total: int) -> None:
        self.total = self.share = total
        self._for_holders = max(1, total - max(1, total // STRANGERS_PART))
        self._open: dict[BoundedConnection, str | None] = {}
        """Maps connections to their holders, the one that was used longest ago first; None: a stranger."""

    def enter(self, connection: BoundedConnection) -> None:
        """Gives a place to a connection, a stranger's still. When there is none, a stranger goes, perhaps this one."""
        self._open[connection] = None
        if len(self._open) <= self.total:
            return
        strangers = [one for one, holder in self._open.items() if holder is None]
        networks = Counter(network_of(one.address) for one in strangers)
        own = network_of(connection.address)
        most = max(networks, key=lambda name: (networks[name], name == own))
        self._close(next(one for one in strangers if network_of(one.address) == most))

    def prove(self, connection: BoundedConnection, holder: str) -> bool:
        """Notes for whom the request on a connection is, and says whether it may stay: an idle connection of somebody
        who has more of them makes room for it."""
        if connection not in self._open:
            return True
        before = self._open[connection]
        if before is None and not self._make_room(holder):
            return False
        del self._open[connection]
        self._open[connection] = holder
        return True

    async def check(self, scope: Scope) -> None:
        """Raises Refused: The caller of a request has as many connections as it may have."""
        if not self.prove(scope["state"][SCOPE_KEY], Caller.known(scope).holder):
            raise busy(503, RETRY_SECONDS, TOO_MANY)

    def leave(self, connection: BoundedConnection) -> None:
        """Forgets a connection that is closed; twice does no harm."""
        self._open.pop(connection, None)

    def _make_room(self, holder: str) -> bool:
        held = Counter(one for one in self._open.values() if one is not None)
        if held[holder] >= self.share:
            return self._close_idle(holder)
        if held.total() < self._for_holders:
            return True
        return any(
            self._close_idle(name)
            for name, count in held.most_common()
            if name == holder or count > held[holder] + 1
        )

    def _close_idle(self, holder: str) -> bool:
        found = next((one for one, name in self._open.items() if name == holder and one.idle), None)
        if found is not None:
            self._close(found)
        return found is not None

    def _close(self, connection: BoundedConnection) -> None:
        self.leave(connection)
        connection.abort()


class _Gathering:
    """Sends what is written to a transport in one turn of the loop at once: uvicorn writes a response's head and its
    body by themselves, and each would wake the client. Calls `on_resumed` after reading is resumed."""

    def __init__(self, transport: asyncio.Transport, on_resumed: Callable[[], None]) -> None:
        self.on_resumed: Callable[[], None] | None = on_resumed
        self._transport = transport
        self._loop = asyncio.get_running_loop()
        self._held: list[bytes] = []

    def write(self, data: bytes) -> None:
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held.append(data)

    def close(self) -> None:
        self._flush()
        self._transport.close()

    def resume_reading(self) -> None:
        self._transport.resume_reading()
        if self.on_resumed is not None:
            self._loop.call_soon(self.on_resumed)

    def _flush(self) -> None:
        held, self._held = self._held, []
        if held:
            self._transport.write(b"".join(held))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class BoundedConnection(H11Protocol):
    """Is aborted when a head takes too long, or when its place goes to another connection.

    Args:
        connections: All connections.
        head_seconds: Bounds the time for the head of the connection's next request, from its first byte; of the first
            one from the beginning.
        config, server_state, app_state, _loop: As uvicorn has it.
    """

    def __init__(
        self,
        connections: Connections,
        head_seconds: float,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, {**app_state, SCOPE_KEY: self}, _loop)
        self._all, self._head_seconds = connections, head_seconds
        self._head_due: asyncio.TimerHandle | None = None
        self._gathering: _Gathering | None = None
        self._unread = b""

    @property
    def address(self) -> str:
        return self.client[0] if self.client else ""

    @property
    def idle(self) -> bool:
        """Says whether no request is being answered on the connection."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is None or cycle.response_complete

    def abort(self) -> None:
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        self._gathering = _Gathering(transport, self._read)
        super().connection_made(cast("asyncio.Transport", self._gathering))
        self._await_head()
        self._all.enter(self)

    def data_received(self, data: bytes) -> None:
        self._unread += data
        self._read()

    def connection_lost(self, exc: Exception | None) -> None:
        self._all.leave(self)
        self._stop_awaiting_head()
        super().connection_lost(exc)
        # All know the connection: else those of a burst would go together, when the collector comes by.
        self._unset_keepalive_if_required()
        self._unread = b""
        if self._gathering is not None:
            self._gathering.on_resumed = None
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

    def _read(self) -> None:
        """Has h11 read what has come, in pieces, and nothing of the next request before the response."""
        while self._unread and not self.flow.read_paused and not self.transport.is_closing():
            piece, self._unread = self._unread[:PIECE_BYTES], self._unread[PIECE_BYTES:]
            super().data_received(piece)
        if self.transport.is_closing() or self.conn.their_state is not h11.IDLE:
            self._stop_awaiting_head()
        elif self._head_due is None and self.timeout_keep_alive_task is None:
            self._await_head()

    def _await_head(self) -> None:
        self._head_due = self.loop.call_later(self._head_seconds, self.transport.abort)

    def _stop_awaiting_head(self) -> None:
        if self._head_due is not None:
            self._head_due.cancel()
            self._head_due = None
