"""Keeps journals of runs in a database, each piece of them encrypted.

A `JournalStore` belongs to the thread that opened it; several processes can use one database. What is not encrypted is
what lists of runs are made of: whose a run is, when it was, how it ended, how much it takes. Any failure is a
`StoreError`.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from cellblock.record.moves import Moves
from cellblock.record.rows import AnyPiece, Head, OneRunFailed, RunState
from cellblock.record.run_rows import plain
from cellblock.record.tables import IS_OVER, OF_PRINCIPAL

logger = logging.getLogger("cellblock.journal")

PAGE_RUNS: Final = 50
"""Bounds the runs that one transaction removes: another process waits for it."""

PAGE_SPACE: Final = 2_000
"""Bounds the pages of 4 KiB that one transaction gives back to the disk."""

UNENDED_SECONDS: Final = 3_600.0
"""Passes at least before a run without an end counts as lost with its broker: a run takes ten minutes at most as
configured."""


class JournalStore(Moves):
    """Holds open journals; the arguments are as for `RunRows`."""

    def close(self) -> None:
        """Closes the database."""
        self._database.close()

    def came_through(self) -> bool:
        """Says whether the statement that has raised `Away` was done all the same. Raises Away. See `Database`."""
        return self._database.came_through()

    def write(self, head: Head, pieces: Sequence[AnyPiece], owner: str | None = None) -> None:
        """Writes what is known of a run, in one transaction.

        With an end in `head`, in the place of all that was written of it; without, after that.

        Args:
            head: The run; `bytes` is found out here.
            pieces: What is new of it.
            owner: Which broker has it; None: that is not looked at.

        Raises:
            TooLarge: The run is larger than all that may be kept.
            TakenAway: Another broker has it.
            OneRunFailed: Its calls were to be written, and it has been deleted.
            StoreError: Nothing was written.
        """
        self._refuse_too_large(sum(piece.size for piece in pieces))
        state: RunState = "running" if head.ended is None else "ended"
        with self._database.transaction(head.id):
            self._refuse_taken(head.id, owner)
            if head.ended is not None:
                self._database.execute("DELETE FROM pieces WHERE run = ?", head.id)
            elif all(piece.kind == "call" for piece in pieces) and not self._has(head.id):
                raise OneRunFailed(f"run {head.id} has been deleted")
            self._put(replace(head, state=state), pieces, owner)

    @property
    def version(self) -> int:
        """Returns a number that changes when another process has changed something. Raises StoreError."""
        return self._database.changes()

    def delete(self, run_id: str, principal: str | None = None) -> bool:
        """Deletes a run, and says whether there was one of this id that is this principal's.

        Raises:
            StoreError: Nothing was deleted.
        """
        statement = f"DELETE FROM runs WHERE id = ? AND {OF_PRINCIPAL}"
        with self._database.transaction(run_id):
            return self._database.execute(statement, run_id, plain(principal), plain(principal)) > 0

    def tidy(self, now: float | None = None) -> bool:
        """Removes one page of what is too old or too much, oldest first, and gives space back to the disk.

        Args:
            now: Unix time in seconds; None: the clock's.

        Returns:
            Whether there may be more to remove.

        Raises:
            StoreError: Nothing was removed.
        """
        now = time.time() if now is None else now
        oldest = now - self.settings.expire_ms / 1000
        # One that goes on has an owner, and `Moves.adopt` judges that; one that is parked ends by its own bound.
        over = f"({IS_OVER})"
        page = "DELETE FROM runs WHERE id IN (SELECT id FROM runs WHERE {} ORDER BY began LIMIT ?)"
        with self._database.transaction("tidy"):
            unended = now - UNENDED_SECONDS
            old = f"coalesce(ended, began) < ? AND {over}"
            removed = self._database.execute(page.format(old), oldest, unended, PAGE_RUNS)
            excess = self.used_bytes - self.settings.total_bytes
            if excess > 0 and removed < PAGE_RUNS:
                count = self._oldest(excess, unended, PAGE_RUNS - removed)
                removed += self._database.execute(page.format(over), unended, count)
        self._database.give_back(PAGE_SPACE)
        return removed > 0

    @property
    def is_over_now(self) -> bool:
        """Says whether all runs take more than they may, where that is known without counting them. Raises
        StoreError."""
        used = self._database.used_bytes()
        return used is not None and used > self.settings.total_bytes

    @property
    def used_bytes(self) -> int:
        """Returns what all runs take on disk, of all processes that use the file; what is free in it does not count.

        Raises:
            StoreError: The file cannot be read.
        """
        used = self._database.used_bytes()
        if used is None:
            ((used,),) = self._database.rows("SELECT CAST(coalesce(sum(bytes), 0) AS BIGINT) FROM runs")
        return used

    # ---- inside --------------------------------------------------------------------------------------

    def _oldest(self, excess: int, unended: float, most: int) -> int:
        """Counts the oldest runs that take `excess` bytes together, up to `most`."""
        count = 0
        for (size,) in self._database.rows(
            f"SELECT bytes FROM runs WHERE {IS_OVER} ORDER BY began LIMIT ?",
            *(unended, most),
        ):
            if excess <= 0:
                break
            count, excess = count + 1, excess - size
        return count
