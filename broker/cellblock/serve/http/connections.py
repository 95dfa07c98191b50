"""Bounds who may hold how many connections. Strangers, who have shown no token on theirs, never shut out those who
have: when places run out, a stranger's connection is closed, the oldest one of the network that holds most. A bound on
their number alone, as uvicorn has it, lets whoever opens that many shut everybody out."""

from __future__ import annotations

from collections import Counter
from typing import Final, Protocol

from starlette.types import ASGIApp, Receive, Scope, Send

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


class Connection(Protocol):
    """Is what decides who keeps a place."""

    @property
    def address(self) -> str: ...

    @property
    def idle(self) -> bool:
        """Says whether no request is being answered on the connection."""
        ...

    def abort(self) -> None: ...


class Connections:
    """Holds all connections of a front-end; sans-I/O.

    Args:
        total: How many there may be.
        share: How many of them one holder of tokens may have.
    """

    def __init__(self, total: int, share: int) -> None:
        self._total = total
        self.share = share
        self._for_holders = max(1, total - max(1, total // STRANGERS_PART))
        self._open: dict[Connection, str | None] = {}
        """Maps connections to their holders, the one that was used longest ago first; None: a stranger."""

    def enter(self, connection: Connection) -> None:
        """Gives a place to a connection, a stranger's still. When there is none, a stranger goes, perhaps this one."""
        self._open[connection] = None
        if len(self._open) <= self._total:
            return
        strangers = [one for one, holder in self._open.items() if holder is None]
        networks = Counter(network_of(one.address) for one in strangers)
        own = network_of(connection.address)
        most = max(networks, key=lambda name: (networks[name], name == own))
        self._close(next(one for one in strangers if network_of(one.address) == most))

    def prove(self, connection: Connection, holder: str) -> bool:
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

    def leave(self, connection: Connection) -> None:
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

    def _close(self, connection: Connection) -> None:
        self.leave(connection)
        connection.abort()


class ConnectionLimit:
    """Refuses a caller that has as many connections as it may have."""

    def __init__(self, app: ASGIApp, connections: Connections) -> None:
        self.app, self.connections = app, connections

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self.connections.prove(scope["state"][SCOPE_KEY], Caller.known(scope).holder):
            raise busy(503, RETRY_SECONDS, TOO_MANY)
        await self.app(scope, receive, send)
