"""Bounds how often each client may ask: a token bucket for each."""

from __future__ import annotations

import math
from typing import Final

from cellblock.base.kept import Newest

MAX_CLIENTS: Final = 4096
"""Bounds the clients remembered; the one that was quiet longest is forgotten first."""


class Rates:
    """Holds the token buckets of all clients; sans-I/O.

    Args:
        rate: Requests per second that refill a bucket.
        burst: What a full bucket holds.
    """

    def __init__(self, rate: float, burst: int) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._buckets = Newest[str, tuple[float, float]](MAX_CLIENTS)

    def take(self, client: str, now: float) -> int:
        """Takes one request from a client's bucket, `now` in seconds on a clock that never goes back. Returns 0, or the
        whole seconds after which to ask again."""
        level, since = self._buckets.get(client, (self._burst, now))
        level = min(self._burst, level + (now - since) * self._rate)
        allowed = level >= 1.0
        self._buckets[client] = (level - 1.0 if allowed else level, now)
        return 0 if allowed else max(1, math.ceil((1.0 - level) / self._rate))

    def charge(self, client: str, amount: int) -> None:
        """Takes what a client has taken elsewhere from its bucket, which may be as far below nothing as it may be
        above: who asks several brokers has one bucket."""
        if (bucket := self._buckets.get(client)) is not None:
            self._buckets[client] = (max(-self._burst, bucket[0] - amount), bucket[1])
