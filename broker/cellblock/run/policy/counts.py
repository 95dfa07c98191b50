"""What clients have used, together at all brokers that share a database, and the quotas that bound it.

What must never be too much is counted there first. All else is counted here, added there once a second, and held
against what others have added: so it may be too much by what the others have let pass in that second. While the
database is away brokers go on with what they know, and it is settled when it is back. Each count is of a period, as the
database's clock has it; with the next period it begins anew.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import logging
import math
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Final, TypeVar

from cellblock.base.database import Away, Database, StoreError, Tables
from cellblock.base.errors import CallDenied, Fault
from cellblock.base.kept import Newest
from cellblock.base.settings.policy import Quota
from cellblock.base.state_dir import COUNTS
from cellblock.base.store import Store
from cellblock.base.tasks import DaemonThread, end_tasks, is_done_within
from cellblock.run.policy.grants import fits
from cellblock.tools.catalog.model import ToolEntry

SYNC_SECONDS: Final = 1.0
"""Separates two looks at what other brokers have counted."""

FIRST_SECONDS: Final = 1.0
"""Bounds the wait for the other brokers' counts, before the first use of a name is counted here."""

ASK_SECONDS: Final = 5.0
"""Bounds the wait for a count that must be known; it takes milliseconds."""

IDLE_SECONDS: Final = 10.0
"""Passes until a name that nobody uses is not looked at any more."""

TIDY_SECONDS: Final = 300.0
"""Separates two removals of counts whose period is over."""

MAX_NAMES: Final = 4096
"""Bounds the names that are remembered; the one that was quiet longest is forgotten first."""

MAX_SYNCED: Final = 128
"""Bounds the names of one look: others have their turn in the next one."""

CLOSE_SECONDS: Final = 2.0
"""Bounds the wait at the end for the uses that are still to be added."""

T = TypeVar("T")

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


@dataclass(slots=True)
class _Count:
    """Holds the count of one name: the uses that the database knows, and those that are only here yet."""

    period_ms: int
    used: int = 0
    added: int = 0
    ends_at: float = math.inf
    is_known: bool = False
    touched: float = 0.0
    on_others: Callable[[int], object] | None = None

    def take_in(self, counted: Counted, sent: int) -> int:
        """Takes over what is known now, `sent` of it from here; gives what others have added since the last look."""
        others = counted.used - self.used - sent if self.is_known else 0
        self.added -= sent
        self.used, self.is_known = counted.used, True
        if self.period_ms:
            left_ms = (counted.period + 1) * self.period_ms - counted.now_ms
            self.ends_at = time.monotonic() + left_ms / 1000
        return others

    def begin_anew(self, now: float) -> None:
        if self.period_ms and now >= self.ends_at:
            self.used = self.added = 0
            self.ends_at += self.period_ms / 1000 * (1 + (now - self.ends_at) * 1000 // self.period_ms)


@dataclass(slots=True)
class _Sent:
    """Holds what was sent to the database and has no answer yet: it may be added, and is not to be sent again."""

    counts: Mapping[str, _Count]
    added: dict[str, int]
    answer: Future[dict[str, Counted]]

    def take_in(self) -> None:
        """Takes over the counts that the database has answered with. Raises StoreError: It could not be asked, and
        nothing was added."""
        for name, counted in self.answer.result().items():
            count = self.counts[name]
            others = count.take_in(counted, self.added[name])
            if others > 0 and count.on_others is not None:
                count.on_others(others)


class Counts:
    """Counts the uses of this broker's clients, together with the other brokers. Owns a thread, and in it the
    database, between `start` and `close`.

    Args:
        store: Where the database is, which is opened in the thread.
    """

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread: DaemonThread | None = None
        self._rows: CountRows | None = None
        self._known = Newest[str, _Count](MAX_NAMES)
        self._turn = asyncio.Lock()
        self._syncing: asyncio.Task[None] | None = None
        self._late: _Sent | None = None
        self._unsure: tuple[str, int] = ("", 0)
        self._tidy_at = 0.0

    def start(self) -> None:
        """Starts the thread; the database is not opened before there is something to count."""
        self._thread = DaemonThread("cellblock-counts")

    async def close(self) -> None:
        """Adds the uses that are only here yet, and ends the thread; bounded."""
        if self._syncing is not None:
            await end_tasks(self._syncing)
            self._syncing = None
            with contextlib.suppress(TimeoutError, StoreError):
                async with asyncio.timeout(CLOSE_SECONDS):
                    await self._sync(self._known)
        if self._thread is not None:
            await self._thread.close(self._hang_up, CLOSE_SECONDS)
            self._thread = None
        self._known.clear()

    async def take(self, name: str, period_ms: int, most: int) -> int | None:
        """Counts one use more of a name where all brokers know that it is not too much.

        Args:
            name: What is counted.
            period_ms: How long a period is.
            most: What may be counted in one.

        Returns:
            None: it is counted; else the milliseconds until the next period.

        Raises:
            StoreError: The database does not say.
        """
        answer = self._submitted(lambda rows: rows.take(name, period_ms, most))
        if not await is_done_within(answer, ASK_SECONDS):
            answer.cancel()
            raise Away(f"the database has not answered within {ASK_SECONDS:g} s")
        is_counted, counted = answer.result()
        return None if is_counted else (counted.period + 1) * period_ms - counted.now_ms

    async def spend(self, name: str, period_ms: int, most: int) -> int | None:
        """Counts one use more of a name where it is not too much as far as is known; the rest is as for `take`. Never
        raises."""
        count = self._count(name, period_ms)
        if not count.is_known:
            with contextlib.suppress(StoreError):
                await self._sync({name: count}, FIRST_SECONDS)
            if not count.is_known:
                count.is_known, count.ends_at = True, time.monotonic() + period_ms / 1000
        now = time.monotonic()
        count.begin_anew(now)
        if count.used + count.added >= most:
            return max(1, int((count.ends_at - now) * 1000))
        count.added += 1
        return None

    def note(self, name: str, on_others: Callable[[int], object]) -> None:
        """Counts one use more of a name, whatever that comes to.

        Args:
            name: What is counted, without periods.
            on_others: Told now and then how many others have counted meanwhile.
        """
        count = self._count(name, 0)
        count.added += 1
        count.on_others = on_others

    # ---- inside ------------------------------------------------------------------------------------------

    def _count(self, name: str, period_ms: int) -> _Count:
        count = self._known[name] = self._known.get(name) or _Count(period_ms)
        count.touched = time.monotonic()
        if self._syncing is None:
            self._syncing = asyncio.create_task(self._keep_in_sync(), name="counts")
        return count

    async def _keep_in_sync(self) -> None:
        while True:
            await asyncio.sleep(SYNC_SECONDS)
            since = time.monotonic() - IDLE_SECONDS
            due = {name: count for name, count in self._known.items() if count.added or count.touched > since}
            # The last used are at the end, and those that wait longest at the beginning.
            with contextlib.suppress(StoreError):
                await self._sync(dict(list(due.items())[:MAX_SYNCED]))

    async def _sync(self, counts: Mapping[str, _Count], bound: float = ASK_SECONDS) -> None:
        """Adds the uses that are only here, and takes over those that other brokers have added. Raises StoreError."""
        async with self._turn:
            if self._late is not None:
                if not self._late.answer.done():
                    raise Away("the database has not answered yet")
                late, self._late = self._late, None
                late.take_in()
            todo = [(name, count.period_ms, count.added) for name, count in counts.items()]
            answer = self._submitted(lambda rows: self._added(rows, todo))
            sent = _Sent(counts, {name: more for name, _, more in todo}, answer)
            is_answered = False
            try:
                is_answered = await is_done_within(answer, bound)
            finally:
                if not is_answered and not answer.cancel():
                    self._late = sent
            if not is_answered:
                raise Away(f"the database has not answered within {bound:g} s")
            sent.take_in()

    def _submitted(self, work: Callable[[CountRows], T]) -> Future[T]:
        """Has the thread ask the database. Raises Away."""
        if (trouble := self._store.trouble) is not None:
            raise Away(trouble)
        if self._thread is None:
            raise Away("the broker is stopping")
        try:
            return self._thread.submit(lambda: work(self._ready()))
        except RuntimeError:
            raise Away("the broker is stopping") from None

    # ---- inside: the thread ------------------------------------------------------------------------------

    def _ready(self) -> CountRows:
        if self._rows is None:
            self._rows = CountRows(self._store.database(TABLES))
        if time.monotonic() >= self._tidy_at:
            self._tidy_at = time.monotonic() + TIDY_SECONDS
            self._rows.tidy()
        return self._rows

    def _added(self, rows: CountRows, todo: list[tuple[str, int, int]]) -> dict[str, Counted]:
        """Adds as many of the uses as it can, and says how their counts stand; those that were not added are sent
        again. Raises StoreError."""
        found: dict[str, Counted] = {}
        (unsure, sent), self._unsure = self._unsure, ("", 0)
        try:
            was_added = sent > 0 and rows.database.came_through()
        except Away:
            self._unsure = unsure, sent
            raise
        for name, period_ms, more in todo:
            try:
                # What was added before its answer was lost is not added again.
                found[name] = rows.add(name, period_ms, more - sent if was_added and name == unsure else more)
            except Away:
                self._unsure = name, more
                break
            except StoreError:
                # That one is sent again; what was added of the others is not.
                continue
        return found

    def _hang_up(self) -> None:
        if self._rows is not None:
            self._rows.close()
            self._rows = None


_OVER: Final = "Wait, or have whoever runs Cellblock raise it in cellblock.policy.quotas."


class Quotas:
    """Holds the quotas of one client.

    Args:
        principal: The client.
        quotas: By pattern.
        counts: Counts for them.
    """

    def __init__(self, principal: str, quotas: Mapping[str, Quota], counts: Counts) -> None:
        self._principal, self._quotas, self._counts = principal, quotas, counts

    async def take(self, server_id: str, tool: ToolEntry) -> None:
        """Counts a call of a tool for each quota that it is in. Raises CallDenied: One is used up, or strict and not
        to be known."""
        for pattern, quota in self._quotas.items():
            if not fits(pattern, server_id, tool):
                continue
            # As JSON: a principal may have any character.
            name = json.dumps(["calls", self._principal, pattern, quota.per_ms])
            if quota.strict:
                try:
                    left_ms = await self._counts.take(name, quota.per_ms, quota.calls)
                except StoreError as error:
                    raise CallDenied(
                        f"{tool.export_name} was not called: the quota of this client for {pattern} is strict, and how "
                        f"much of it is used cannot be known now ({error}).",
                        hint="Try again when the database is back.",
                        code="QUOTA_UNKNOWN",
                        fault=Fault.CELLBLOCK,
                    ) from None
            else:
                left_ms = await self._counts.spend(name, quota.per_ms, quota.calls)
            if left_ms is not None:
                raise CallDenied(
                    f"{tool.export_name} was not called: the quota of this client for {pattern} is {quota.calls} calls "
                    f"in {quota.per_ms / 1000:g} s, and is used up for another {left_ms / 1000:.0f} s.",
                    hint=_OVER,
                    code="QUOTA_USED_UP",
                    fault=Fault.CALLER,
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
