"""Bounds how often each client may ask: a token bucket for each."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

from starlette.types import Scope

from cellblock.base.kept import Newest
from cellblock.serve.http.caller import Caller, network_of
from cellblock.serve.http.refusal import busy

if TYPE_CHECKING:
    from cellblock.run.policy.counts import Counts

MAX_CLIENTS: Final = 4096
"""Bounds the clients remembered; the one that was quiet longest is forgotten first."""


class RateLimit:
    """Refuses who asks too often; strangers count by their networks.

    Args:
        rate: Requests per second that refill a bucket.
        burst: What a full bucket holds.
        counts: Tells other brokers how often clients ask here, and charges what they ask there; None: there are none.
        clock: Seconds on a clock that never goes back.
    """

    def __init__(
        self,
        rate: float,
        burst: int,
        counts: Counts | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._rate = rate
        self._burst = float(burst)
        self._counts, self._clock = counts, clock
        self._buckets = Newest[str, tuple[float, float]](MAX_CLIENTS)

    async def check(self, scope: Scope) -> None:
        """Raises Refused: The client of a request asks too often."""
        caller, address = Caller.of(scope), scope["client"][0] if scope.get("client") else ""
        client = f"stranger {network_of(address)}" if caller is None else caller.client
        if wait := self.take(client):
            raise busy(429, wait)
        # A session is at one broker.
        if self._counts is not None and caller is not None and not caller.has_session:
            self._counts.note(f"requests {client}", partial(self.charge, client))

    def take(self, client: str) -> int:
        """Takes one request from a client's bucket. Returns 0, or the whole seconds after which to ask again."""
        now = self._clock()
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
