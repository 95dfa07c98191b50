"""Bounds bytes in memory, for each of those who share them and for all together; and counts what one run takes of the
broker, beside its worker: bytes in memory, of its client's, and CPU time."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Generator
from contextlib import AbstractContextManager, contextmanager
from typing import Final

CLIENT_BYTES: Final = 64 * 1024 * 1024
ALL_BYTES: Final = 128 * 1024 * 1024
"""Caps the large bodies that are in memory, of one client and of all."""


class OverBudget(Exception):
    """Tells that a budget does not allow more bytes; the text says whose, and how many, without a full stop."""


class Budget:
    """Counts bytes in memory under the key of whoever holds them. Nothing waits: what is over a bound is refused.

    Args:
        each: Most bytes for one key.
        whole: Most bytes for all keys together.
        of: What a key is, for the refusal, such as "this client".
        what: What is counted, for the refusal.
    """

    def __init__(self, each: int, whole: int, of: str, what: str = "large messages") -> None:
        self.each: Final = each
        self._whole = whole
        self._of = of
        self._what = what
        self._held: Counter[str] = Counter()
        self.total = 0
        """Counts the bytes that all keys hold now."""

    @classmethod
    def of_servers(cls) -> Budget:
        """Makes the budget of the large messages that servers have sent."""
        return cls(CLIENT_BYTES, ALL_BYTES, "this server")

    def take(self, key: str, size: int) -> None:
        """Counts `size` more bytes for `key`; `give_back` must follow.

        Raises:
            OverBudget: That would be too many. Nothing is counted then.
        """
        held = self._held[key]
        if held + size > self.each:
            raise OverBudget(f"the {self._what} of {self._of} have over {self.each} bytes in all")
        if self.total + size > self._whole:
            raise OverBudget(f"the {self._what} of all together have over {self._whole} bytes")
        self._held[key] = held + size
        self.total += size

    def give_back(self, key: str, size: int) -> None:
        """Counts out bytes that `take` has counted."""
        self.total -= size
        self._held[key] -= size
        if not self._held[key]:
            del self._held[key]

    @contextmanager
    def holding(self, key: str, size: int) -> Generator[None]:
        """Counts bytes as long as the context lasts. Raises OverBudget as `take`."""
        self.take(key, size)
        try:
            yield
        finally:
            self.give_back(key, size)


class Account:
    """Belongs to one run.

    Args:
        budget: Of the bytes that clients have in memory.
        client: Whose run it is.
    """

    def __init__(self, budget: Budget, client: str) -> None:
        self.client = client
        self._budget = budget
        self._cpu_ms = 0.0
        self._lock = threading.Lock()

    @property
    def cpu_ms(self) -> int:
        """Returns the CPU milliseconds so far."""
        return round(self._cpu_ms)

    def add_cpu(self, cpu_ms: float) -> None:
        """Adds CPU milliseconds. Any thread may."""
        with self._lock:
            self._cpu_ms += cpu_ms

    def take(self, size: int) -> None:
        """Works as `Budget.take` does."""
        self._budget.take(self.client, size)

    def give_back(self, size: int) -> None:
        """Works as `Budget.give_back` does."""
        self._budget.give_back(self.client, size)

    def holding(self, size: int) -> AbstractContextManager[None]:
        """Works as `Budget.holding` does."""
        return self._budget.holding(self.client, size)


class Metered:
    """Adds what this thread computes in a block, which waits for nobody, to an account; None: to nobody's."""

    __slots__ = ("_account", "_began")

    def __init__(self, account: Account | None) -> None:
        self._account = account

    def __enter__(self) -> None:
        self._began = time.thread_time()

    def __exit__(self, *_: object) -> None:
        if self._account is not None:
            self._account.add_cpu((time.thread_time() - self._began) * 1000)
