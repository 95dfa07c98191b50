"""Books say what each part of a fleet has used of the processors, and what PostgreSQL has written, between two
looks."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from benchmarks.load import tree


@dataclass(frozen=True)
class Look:
    """Holds what was used by then.

    Attributes:
        at: Monotonic seconds.
        parts: CPU seconds by the name of a part.
        loops: CPU seconds of the first thread of a part that is one process: in a broker, its loop.
        machine: CPU seconds that the machine was busy.
        transactions: Transactions that PostgreSQL has begun to write in.
        wal_bytes: What PostgreSQL has written ahead.
    """

    at: float
    parts: Mapping[str, float]
    loops: Mapping[str, float]
    machine: float
    transactions: int = 0
    wal_bytes: int = 0


@dataclass(frozen=True)
class Spent:
    """Is what was spent between two looks.

    Attributes:
        seconds: So long it was.
        shares: By part, of one core's time.
        loops: By part, of one core's time, of its first thread.
        machine: Of one core's time, all that was busy.
        transactions: In PostgreSQL.
        wal_bytes: Of PostgreSQL.
    """

    seconds: float
    shares: dict[str, float]
    loops: dict[str, float]
    machine: float
    transactions: int = 0
    wal_bytes: int = 0

    def us_a_run(self, part: str, runs: int) -> float:
        """Returns the microseconds of a part's CPU for each of so many runs."""
        return 1e6 * self.seconds * self.shares.get(part, 0.0) / runs if runs else 0.0

    def as_json(self, runs: int) -> dict[str, Any]:
        """Returns all of it, for so many runs."""
        each = max(runs, 1)
        return {
            "share": {name: round(share, 4) for name, share in self.shares.items()},
            "loop_share": {name: round(share, 4) for name, share in self.loops.items()},
            "machine_share": round(self.machine, 4),
            "us_a_run": {name: round(self.us_a_run(name, runs), 1) for name in self.shares},
            "transactions_a_run": round(self.transactions / each, 3),
            "wal_bytes_a_run": round(self.wal_bytes / each),
        }


def spent(before: Look, after: Look) -> Spent:
    """Returns what was spent between two looks. A part that has come since counts from nothing."""
    seconds = after.at - before.at

    def shares(old: Mapping[str, float], new: Mapping[str, float]) -> dict[str, float]:
        return {name: max(0.0, used - old.get(name, 0.0)) / seconds for name, used in new.items()}

    return Spent(
        seconds,
        shares(before.parts, after.parts),
        shares(before.loops, after.loops),
        (after.machine - before.machine) / seconds,
        after.transactions - before.transactions,
        after.wal_bytes - before.wal_bytes,
    )


@dataclass
class Books:
    """Knows the processes of each part.

    Args:
        processes: Process ids by the name of a part that is these processes alone.
        trees: The same of parts that are processes with all below them.
        below: The same of parts that are all below these processes.
        postgres: A connection to PostgreSQL, of psycopg; None where there is none.
    """

    processes: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    trees: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    below: dict[str, list[int]] = field(default_factory=dict[str, list[int]])
    postgres: Any = None

    def look(self) -> Look:
        """Looks now."""
        transactions, wal_bytes = self._written()
        alone = {name: sum(map(tree.cpu_seconds, pids)) for name, pids in self.processes.items()}
        trees = {name: sum(map(cpu_of_tree, pids)) for name, pids in self.trees.items()}
        below = {
            name: sum(cpu_of_tree(pid) - tree.cpu_seconds(pid) for pid in pids)
            for name, pids in self.below.items()
        }
        return Look(
            time.monotonic(),
            {**alone, **trees, **below},
            {name: sum(map(cpu_of_loop, pids)) for name, pids in self.processes.items()},
            tree.busy_seconds(),
            transactions,
            wal_bytes,
        )

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


def cpu_of_tree(pid: int) -> float:
    """Returns the CPU seconds of a process and of those that it has, and has had and waited for."""
    total = 0.0
    for process in tree.tree(pid):
        with contextlib.suppress(psutil.Error):
            times = process.cpu_times()
            total += times.user + times.system + times.children_user + times.children_system
    return total


def cpu_of_loop(pid: int) -> float:
    """Returns the CPU seconds of a process's first thread; 0.0 when it is gone."""
    try:
        words = Path(f"/proc/{pid}/task/{pid}/schedstat").read_text("ascii").split()
    except OSError:
        return 0.0
    return int(words[0]) / 1e9


def descriptors(pid: int) -> int:
    """Returns how many descriptors a process has open."""
    return int(psutil.Process(pid).num_fds())
