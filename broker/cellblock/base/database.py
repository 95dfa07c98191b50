"""A database is where a store keeps its rows: a file of this machine, or a PostgreSQL that brokers share.

Statements are those of SQL that both read alike, with `?` for values. Any failure is a `StoreError`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol


class StoreError(Exception):
    """Tells that the store cannot be read or written; the text says why."""


class Away(StoreError):
    """Tells that PostgreSQL does not answer. What was to be written can be written when it is back."""


class Unusable(StoreError):
    """Tells that PostgreSQL answers, and that this broker must not use what is there."""


class Database(Protocol):
    """Holds the rows of one store; `SqliteDatabase` and `PostgresDatabase` do. It belongs to one thread.

    Attributes:
        after_seconds: SQL for a time so many seconds after `now()`, with `?` for them, as columns of times have it.
        now_ms: SQL for the milliseconds since 1970.
    """

    after_seconds: str
    now_ms: str

    @staticmethod
    def epoch(column: str) -> str:
        """Returns SQL for the seconds since 1970 of a column of times."""
        ...

    def close(self) -> None:
        """Closes the database."""
        ...

    def transaction(self, key: str = "", *, safe: bool = False) -> AbstractContextManager[None]:
        """Runs a block whose statements are done all or not at all.

        Args:
            key: Names what the block is about: of two blocks with one key, the second waits for the first's end.
            safe: Whether it is to outlive a power cut as soon as it is done.

        Raises:
            Away: PostgreSQL has not answered: nothing was written, unless `came_through` says so.
            StoreError: Nothing was written.
        """
        ...

    def announce(self) -> None:
        """Has other processes look at once when the transaction is done, where they would not see it soon."""
        ...

    def execute(self, statement: str, *values: Any) -> int:
        """Does a statement of a transaction, and says how many rows it has changed."""
        ...

    def execute_many(self, statement: str, rows: Iterable[Sequence[Any]]) -> None:
        """Does a statement of a transaction for each of several rows."""
        ...

    def rows(self, statement: str, *values: Any) -> list[Any]:
        """Returns the rows that a statement finds. Raises StoreError."""
        ...

    def changes(self) -> int:
        """Returns a number that differs from the last one if somebody else may have changed something. Raises
        StoreError."""
        ...

    def used_bytes(self) -> int | None:
        """Returns the bytes that the database uses of the disk; None where that is not to be known. Raises
        StoreError."""
        ...

    def give_back(self, pages: int) -> None:
        """Gives free space back to the disk, where the database does not do so by itself. Raises StoreError."""
        ...

    def came_through(self) -> bool:
        """Says whether the last transaction, which has raised `Away`, was done all the same. Raises Away: It does not
        answer yet."""
        ...
