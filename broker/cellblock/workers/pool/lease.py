"""One run's hold on one place at one host, from admission to release."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

from cellblock_worker.wire import protocol

if TYPE_CHECKING:
    from cellblock.workers.pool.pool import Pool


class LeaseEvents(Protocol):
    """What a lease tells its run."""

    def worker_says(self, message: protocol.FromHost, body: bytes) -> None:
        """A message under this run's token, from the host that has the lease."""
        ...

    def host_lost(self, why: str) -> None:
        """The host is gone; the run's worker died with it. Nothing is told after this."""
        ...


class Lease:
    """Made by `Pool.acquire`; the holder must call `release` exactly once.

    Attributes:
        token: Random name of the run on the wire, 16 bytes.
        host: Identity of the host.
        client: Who holds the place.
    """

    def __init__(self, pool: Pool, host: bytes, token: bytes, events: LeaseEvents, client: str) -> None:
        self._pool = pool
        self.host = host
        self.token = token
        self.events = events
        self.client = client
        self.released = False

    def start(self, run: protocol.Run, body: bytes) -> None:
        """Sends the run to the host. Raises OSError when the host cannot be reached."""
        self._pool.send(self, run, body)

    def reply(self, reply: protocol.Reply, body: bytes) -> None:
        """Sends the answer of a call or query. Raises OSError when the host cannot be reached."""
        self._pool.send(self, reply, body)

    def hold_clock(self, message: protocol.Pause | protocol.Resume) -> None:
        """Stops the run's wall clock at the host, or lets it go on. Raises OSError as above."""
        self._pool.send(self, message, b"")

    def cancel(self) -> None:
        """Asks for the worker's death; the host answers with `Ended`. Raises OSError as above."""
        self._pool.send(self, protocol.Cancel(), b"")

    def release(self) -> None:
        """Gives the place back; later messages under the token are dropped."""
        self._pool.release(self)

    def host_failed(self, why: str) -> None:
        """Reports that the host did not keep its word; the pool replaces it."""
        self._pool.host_failed(self.host, why)
