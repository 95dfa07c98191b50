"""Books say what each part of a fleet has used of the processors, and what PostgreSQL has written, between two
looks."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from benchmarks import processes


@dataclass(frozen=True)
class Look:
    """Holds what was used by then, or between two looks.

    Attributes:
        seconds: By a monotonic clock.
        parts: CPU seconds by the name of a part.
        machine: CPU seconds that the machine was busy.
        transactions: Transactions that PostgreSQL has begun to write in.
        wal_bytes: What PostgreSQL has written ahead.
    """

    seconds: float
    parts: Mapping[str, float]
    machine: float
    transactions: int = 0
    wal_bytes: int = 0

    def since(self, before: Look) -> Look:
        """Returns what was spent since another look. A part that has come since counts from nothing."""
        parts = {name: max(0.0, used - before.parts.get(name, 0.0)) for name, used in self.parts.items()}
        return Look(
            self.seconds - before.seconds,
            parts,
            self.machine - before.machine,
            self.transactions - before.transactions,
            self.wal_bytes - before.wal_bytes,
        )

    def share(self, part: str) -> float:
        """Returns what a part has used of one core's time."""
        return sum(used for name, used in self.parts.items() if name.startswith(part)) / self.seconds


@dataclass
class Books:
    """Knows the processes of each part.

    Args:
        parts: Gives the CPU seconds of a part, by its name.
        postgres: A connection to PostgreSQL, of psycopg; None where there is none.
    """

    parts: dict[str, Callable[[], float]] = field(default_factory=dict[str, Callable[[], float]])
    postgres: Any = None

    def look(self) -> Look:
        """Looks now."""
        transactions, wal_bytes = self._written()
        used = {name: cpu() for name, cpu in self.parts.items()}
        return Look(time.monotonic(), used, processes.busy_seconds(), transactions, wal_bytes)

    def _written(self) -> tuple[int, int]:
        if self.postgres is None:
            return 0, 0
        # By the numbers that transactions get which write: the server's own counts are a second old. Asking
        # takes none.
        row = self.postgres.execute(
            "SELECT CAST(CAST(pg_snapshot_xmax(pg_current_snapshot()) AS TEXT) AS BIGINT), "
            "CAST(pg_current_wal_insert_lsn() - '0/0' AS BIGINT)"
        ).fetchone()
        return int(row[0]), int(row[1])
