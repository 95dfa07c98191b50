"""Holds the results that wait to be looked at, and says which are looked at, and when.

A tool's results are all looked at until they show nothing new, then one of so many. A look waits while runs are at
work, except for a small share of the time, or when someone asks.
"""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from cellblock.tools.catalog.model import ToolEntry
from cellblock.tools.catalog.outputs import ResultKind

MAX_WAITING: Final = 256
"""Bounds the results that may wait to be looked at; more are dropped."""

MAX_WAITING_BYTES: Final = 32 * 1024 * 1024
"""Bounds the bytes of the results that wait: the memory that learning may hold."""

GOLDEN_RATIO: Final = 0.618034
"""Places the result, one of so many, that is looked at: in no step with shapes that take turns, all of which must be
met."""

BUSY_SHARE: Final = 0.01
"""Bounds the share of the processor's time that looking takes while runs are at work, and no one waits for what is
learnt."""

MAX_PAUSE_SECONDS: Final = 5.0
"""Sets the longest pause for that: a look during which Python happened to collect its garbage can take 60 ms."""

TURN_SECONDS: Final = 0.1
"""Separates two looks at whether runs are still at work."""


@dataclass(frozen=True, slots=True)
class Offer:
    """An offer is one result that waits to be looked at."""

    server: str
    tool: ToolEntry
    kind: ResultKind
    body: bytes
    by: str


class Offers:
    """Queues the results that wait, and never blocks whoever offers one; one thread takes them.

    Attributes:
        all_looked_at: Set by the taking thread once all that was offered is looked at.
        all_written: Set by it once all that was offered is looked at and written.
    """

    def __init__(self) -> None:
        self._waiting: deque[Offer] = deque()
        self._bytes = 0
        self._lock = threading.Lock()
        self.all_looked_at = threading.Event()
        self.all_looked_at.set()
        self.all_written = threading.Event()

    def __len__(self) -> int:
        return len(self._waiting)

    def put(self, offer: Offer) -> bool:
        """Adds a result; False where it is dropped."""
        with self._lock:
            if len(self._waiting) >= MAX_WAITING or self._bytes + len(offer.body) > MAX_WAITING_BYTES:
                return False
            self._bytes += len(offer.body)
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
            self._bytes -= len(offer.body)
            return offer

    def tell(self, event: threading.Event, wanted: threading.Event | None = None) -> None:
        """Sets `all_looked_at` or `all_written`, and clears what asks for it, unless another result waits by now."""
        with self._lock:
            if not self._waiting:
                event.set()
                if wanted is not None:
                    wanted.clear()


class Turns:
    """Times the looks of one thread.

    Attributes:
        busy: Says whether runs are at work; called in that thread.
        wanted: Set by whoever waits for what is learnt.
    """

    def __init__(self) -> None:
        self.busy: Callable[[], bool] = lambda: False
        self.wanted = threading.Event()
        self._next = 0.0

    def wait(self) -> None:
        """Waits until there may be another look, at most `MAX_PAUSE_SECONDS` after the last one."""
        while (left := self._next - time.monotonic()) > 0 and self.busy():
            if self.wanted.wait(min(left, TURN_SECONDS)):
                return

    def took(self, seconds: float) -> None:
        """Notes what a look has cost, in seconds of processor time."""
        self._next = time.monotonic() + min(seconds / BUSY_SHARE, MAX_PAUSE_SECONDS)


class Paces:
    """Chooses which results of each tool are looked at.

    Args:
        stable_after: Results in a row that show nothing new before a tool counts as stable.
        sample_every: Results of a stable tool of which one is looked at.
    """

    def __init__(self, stable_after: int, sample_every: int) -> None:
        self._stable_after = stable_after
        self._sample_every = sample_every
        self._unchanged: Counter[tuple[str, str]] = Counter()
        self._passed: Counter[tuple[str, str]] = Counter()

    def wants(self, server: str, tool: str) -> bool:
        """Says whether the next result of a tool is to be looked at, and counts it."""
        if self._unchanged[server, tool] < self._stable_after:
            return True
        turn, place = divmod(self._passed[server, tool], self._sample_every)
        self._passed[server, tool] += 1
        return place == int(turn * GOLDEN_RATIO % 1 * self._sample_every)

    def unchanged(self, server: str, tool: str, results: int) -> None:
        """Counts results of a tool that showed nothing new."""
        self._unchanged[server, tool] += results

    def changed(self, server: str, tool: str) -> None:
        """Begins to look at all results of a tool again."""
        self._unchanged.pop((server, tool), None)
