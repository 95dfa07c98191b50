"""Counts what one run takes of the broker, beside its worker: bytes in memory, of its client's, and CPU time."""

from __future__ import annotations

import threading
import time
from contextlib import AbstractContextManager

from cellblock.base.admission import DEFAULT_CLIENT
from cellblock.base.budget import ALL_BYTES, CLIENT_BYTES, Budget


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

    @classmethod
    def of_one(cls, client: str = DEFAULT_CLIENT) -> Account:
        """Makes the account of a client that shares its budget with nobody."""
        return cls(Budget(CLIENT_BYTES, ALL_BYTES, "this client"), client)

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
