"""Holds results on their way to being looked at: a bounded queue that never blocks whoever offers one."""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, replace
from typing import Any, Final

from cellblock.tools.catalog.model import ToolEntry
from cellblock.tools.catalog.outputs import ResultKind
from cellblock.types.learning.sample import UNREAD

MAX_WAITING: Final = 256
"""Bounds the results that may wait to be looked at; more are dropped."""

MAX_WAITING_BYTES: Final = 32 * 1024 * 1024
"""Bounds the bytes of the results that wait: the memory that learning may hold."""

MAX_VALUE_BYTES: Final = 2 * 1024 * 1024
"""Bounds the results that wait as they are besides their JSON, in bytes of the latter: they take about eight times as
much."""


@dataclass(frozen=True, slots=True)
class Offer:
    """An offer is one result that waits to be looked at."""

    server: str
    tool: ToolEntry
    kind: ResultKind
    body: bytes
    keep_sample: bool
    value: Any = UNREAD


class Offers:
    """Queues the results that wait; one thread takes them.

    Attributes:
        dropped: The number of results that there was no room for.
        all_looked_at: Set by the taking thread once all that was offered is looked at.
        all_written: Set by it once all that was offered is looked at and written.
    """

    def __init__(self) -> None:
        self._waiting: deque[Offer] = deque()
        self._bytes = self._value_bytes = 0
        self._lock = threading.Lock()
        self.dropped = 0
        self.all_looked_at = threading.Event()
        self.all_looked_at.set()
        self.all_written = threading.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, offer: Offer) -> bool:
        """Adds a result; False where it is dropped. Its value is left out where such values hold too much memory."""
        size = len(offer.body)
        if len(self._waiting) >= MAX_WAITING or self._bytes + size > MAX_WAITING_BYTES:
            self.dropped += 1
            return False
        with self._lock:
            if self._value_bytes + size > MAX_VALUE_BYTES:
                offer = replace(offer, value=UNREAD)
            self._count(offer, 1)
            self._waiting.append(offer)
            self.all_written.clear()
            self.all_looked_at.clear()
        return True

    def take(self) -> Offer | None:
        """Takes the oldest result out; None when there is none."""
        with self._lock:
            if not self._waiting:
                return None
            offer = self._waiting.popleft()
            self._count(offer, -1)
            return offer

    def tell(self, event: threading.Event, wanted: threading.Event | None = None) -> None:
        """Sets `all_looked_at` or `all_written`, and clears what asks for it, unless another result waits by now."""
        with self._lock:
            if not self._waiting:
                event.set()
                if wanted is not None:
                    wanted.clear()

    def _count(self, offer: Offer, sign: int) -> None:
        self._bytes += sign * len(offer.body)
        if offer.value is not UNREAD:
            self._value_bytes += sign * len(offer.body)
