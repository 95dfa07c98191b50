"""Bounds what requests take of the broker's memory while they are read, wait and run: a bound for a client, for a
principal and for all together. Sans-I/O."""

from __future__ import annotations

from collections import Counter
from typing import Final

CLIENT_PART: Final = 4
"""Allows a client one in so many of all bytes: an honest one sends kilobytes, and at times a large script."""


class Memory:
    """Counts what all requests hold.

    Args:
        total: Bytes for all together.
        share: Bytes for one principal.
    """

    def __init__(self, total: int, share: int) -> None:
        self.total = total
        self.share = share
        self.of_client = max(1, total // CLIENT_PART)
        self.held = 0
        self._held_by: Counter[str] = Counter()

    def charge(self, client: str, principal: str) -> Charge:
        """Opens an account for one request; its owner must `end` it."""
        return Charge(self, f"client {client}", f"principal {principal}")

    def move(self, by: int, client: str, principal: str) -> bool:
        """Takes so many bytes more, or gives some back; False: they are not there, and nothing is taken."""
        if by > 0 and (
            self.held + by > self.total
            or self._held_by[client] + by > self.of_client
            or self._held_by[principal] + by > self.share
        ):
            return False
        self.held += by
        for key in (client, principal):
            self._held_by[key] += by
            if not self._held_by[key]:
                del self._held_by[key]
        return True


class Charge:
    """Counts what one request holds."""

    __slots__ = ("_bytes", "_client", "_memory", "_principal")

    def __init__(self, memory: Memory, client: str, principal: str) -> None:
        self._memory = memory
        self._client = client
        self._principal = principal
        self._bytes = 0

    @property
    def most(self) -> int:
        """Returns what there is at all for one client."""
        return self._memory.of_client

    def to(self, size: int) -> bool:
        """Makes it so many bytes; False: there are not so many for this client now, and it stays as it was."""
        if not self._memory.move(size - self._bytes, self._client, self._principal):
            return False
        self._bytes = size
        return True

    def end(self) -> None:
        """Gives everything back."""
        self.to(0)
