"""Counts how many runs may wait, in all and per client, whichever of the queues that share this count they wait in."""

from __future__ import annotations

from cellblock.base.errors import Overloaded


class Room:
    """A room bounds one queue, or several that a run stands in one after the other.

    Args:
        queue_size: Runs that may wait in all.
        client_queue_size: Runs of one client that may wait.
    """

    def __init__(self, queue_size: int, client_queue_size: int) -> None:
        self._queue_size = queue_size
        self._client_queue_size = client_queue_size
        self._waiting = 0
        self._own: dict[str, int] = {}

    def check(self, client: str) -> None:
        """Raises Overloaded when one more run of `client` may not wait."""
        own = self._own.get(client, 0)
        if own >= self._client_queue_size and self._waiting < self._queue_size:
            raise Overloaded(
                f"This client has {own} runs waiting, as many as one client may have "
                f"(pool.client_queue_size); {self._waiting} runs wait in all.",
                hint="Wait until some of them have ended before you start more.",
            )
        if self._waiting >= self._queue_size:
            raise Overloaded(
                f"All places are taken and {self._waiting} runs wait, as many as may in all (pool.queue_size); "
                f"{own} of them are this client's.",
                hint="Try again in a few seconds, or raise pool.capacity and pool.queue_size.",
            )

    def enter(self, client: str) -> None:
        """Counts a run that begins to wait. Raises Overloaded as `check`."""
        self.check(client)
        self._waiting += 1
        self._own[client] = self._own.get(client, 0) + 1

    def leave(self, client: str) -> None:
        """Counts out a run that waits no more."""
        self._waiting -= 1
        left = self._own.pop(client) - 1
        if left:
            self._own[client] = left
