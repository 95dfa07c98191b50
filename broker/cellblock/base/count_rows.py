"""Count_rows count for several brokers at once what must not become too much, in a database that they share.

Each count is of a period, as the database's clock has it; with the next period it begins anew.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from cellblock.base.database import Database
from cellblock.base.state_dir import COUNTS
from cellblock.base.store import Tables

_MIGRATIONS: Final[Sequence[str]] = (
    """
    CREATE TABLE counts (
        name TEXT NOT NULL PRIMARY KEY,
        period BIGINT NOT NULL,
        used BIGINT NOT NULL,
        until BIGINT NOT NULL
    );
    """,
)

ENDLESS_KEPT_MS: Final = 600_000
"""Says how long a count without periods is kept that nobody adds to."""

TABLES: Final = Tables(
    "counts", COUNTS, "counts of quotas", logging.getLogger("cellblock"), _MIGRATIONS, _MIGRATIONS
)


@dataclass(frozen=True, slots=True)
class Counted:
    """Says how a count stands.

    Args:
        period: The period's number.
        used: What all brokers have counted in it.
        now_ms: The database's time.
    """

    period: int
    used: int
    now_ms: int


class CountRows:
    """Reads and writes the counts of an open database; it belongs to the database's thread.

    Args:
        database: Where they are.
    """

    def __init__(self, database: Database) -> None:
        self.database, self._now = database, database.now_ms

    def take(self, name: str, period_ms: int, most: int) -> tuple[bool, Counted]:
        """Counts one more under a name where that is not too much, and says whether it did. Raises StoreError.

        Args:
            name: The count's.
            period_ms: How long a period is.
            most: What may be counted in one.
        """
        with self.database.transaction(f"count {name}"):
            counted = self._read(name, period_ms)
            if counted.used >= most:
                return False, counted
            self._write(name, period_ms, counted, counted.used + 1)
        return True, counted

    def add(self, name: str, period_ms: int, more: int) -> Counted:
        """Adds to a count whatever was used of it, and says how it stands then. Raises StoreError.

        Args:
            name: The count's.
            period_ms: How long a period is; 0: there is one, without end.
            more: What to add; 0: this is a mere look.
        """
        if not more:
            return self._read(name, period_ms)
        with self.database.transaction(f"count {name}"):
            counted = self._read(name, period_ms)
            self._write(name, period_ms, counted, counted.used + more)
        return Counted(counted.period, counted.used + more, counted.now_ms)

    def close(self) -> None:
        self.database.close()

    def tidy(self) -> None:
        """Removes counts of periods that are over. Raises StoreError."""
        with self.database.transaction("counts"):
            self.database.execute(f"DELETE FROM counts WHERE until < {self._now}")

    # ---- inside ------------------------------------------------------------------------------------------

    def _read(self, name: str, period_ms: int) -> Counted:
        ((now, period, used),) = self.database.rows(
            f"SELECT {self._now}, period, used FROM (SELECT 1) AS one LEFT JOIN counts ON name = ?", name
        )
        current = now // period_ms if period_ms else 0
        if period is None or not current <= period <= current + 1:
            # A period that is far away was counted by a clock that was wrong.
            return Counted(current, 0, now)
        # Also where the clock is a little behind: that must not begin a period anew.
        return Counted(period, used, now)

    def _write(self, name: str, period_ms: int, counted: Counted, used: int) -> None:
        ends = (counted.period + 1) * period_ms if period_ms else counted.now_ms + ENDLESS_KEPT_MS
        self.database.execute(
            "INSERT INTO counts VALUES (?, ?, ?, ?) ON CONFLICT (name) "
            "DO UPDATE SET period = excluded.period, used = excluded.used, until = excluded.until",
            *(name, counted.period, used, ends),
        )
