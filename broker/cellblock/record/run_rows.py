"""Run_rows reads the rows of runs and their pieces, and writes a row with the pieces that are new."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, Final

from cellblock.base.database import Database
from cellblock.base.settings.journal import JournalSettings
from cellblock.base.store import as_text
from cellblock.record.cipher import ADDED_BYTES, Cipher
from cellblock.record.rows import KINDS, AnyPiece, Foreign, Head, Kind, Piece, RunState, TakenAway, TooLarge
from cellblock.record.tables import CHANGING, OF_PRINCIPAL, SHOWN

MAX_LISTED: Final = 1_000
"""Bounds the runs of one list."""


class RunRows:
    """Reads and writes the rows of an open file of journals.

    Args:
        database: The file.
        keys: Gives the keys, as `Cipher` takes them; asked when a piece is written or read, and only once.
        settings: What is kept for how long.
    """

    def __init__(
        self, database: Database, keys: Callable[[], Sequence[bytes]], settings: JournalSettings
    ) -> None:
        self.settings = settings
        self._keys, self._cipher = keys, Cipher(())
        self._database = database

    def heads(
        self,
        principal: str | None = None,
        *,
        before: float | None = None,
        limit: int = MAX_LISTED,
        state: RunState | None = None,
    ) -> list[Head]:
        """Returns runs, the newest first.

        Args:
            principal: Whose; None: everybody's, for the user of this machine.
            before: Only those that began before this Unix time.
            limit: At most so many.
            state: Only those in this state; None: all.

        Raises:
            StoreError: The file cannot be read.
        """
        whose = plain(principal)
        rows = self._database.rows(
            f"SELECT {SHOWN} FROM runs WHERE began < ? AND {OF_PRINCIPAL} AND (CAST(? AS TEXT) IS NULL OR state = ?) "
            "ORDER BY began DESC, id LIMIT ?",
            *(9e18 if before is None else before, whose, whose, state, state),
            max(0, min(limit, MAX_LISTED)),
        )
        return [_head(row) for row in rows]

    def head(self, run_id: str, principal: str | None = None) -> Head | None:
        """Returns what lists show of one run; the rest is as for `read`."""
        rows = self._database.rows(
            f"SELECT {SHOWN} FROM runs WHERE id = ? AND {OF_PRINCIPAL}",
            *(run_id, plain(principal), plain(principal)),
        )
        return _head(rows[0]) if rows else None

    def read(
        self, run_id: str, principal: str | None = None, kinds: Sequence[Kind] = KINDS
    ) -> tuple[Head, list[Piece]] | None:
        """Returns a run with its pieces; None when there is none of this id that is this principal's.

        Args:
            run_id: The run.
            principal: As for `heads`.
            kinds: Only the pieces of these kinds: a recording may have 32 MiB.

        Raises:
            WrongPiece: A piece is not as it was written; Foreign where it may be, for somebody else.
            StoreError: The file cannot be read.
        """
        found = self._database.rows(
            f"SELECT {SHOWN}, key FROM runs WHERE id = ? AND {OF_PRINCIPAL}",
            *(run_id, plain(principal), plain(principal)),
        )
        if not found:
            return None
        cipher = self._ready()
        *shown, key = found[0]
        head = _head(shown)
        if key not in cipher.key_ids:
            raise Foreign(f"run {run_id} was written with another key than the one in use")
        rows = self._database.rows(
            f"SELECT number, kind, body FROM pieces WHERE run = ? AND kind IN ({', '.join('?' * len(kinds))}) "
            "ORDER BY number",
            *(run_id, *kinds),
        )
        rows.reverse()
        pieces: list[Piece] = []
        while rows:
            # What is read goes as it is decrypted: both are as large as the run.
            pieces.append(cipher.decrypted(key, head, *rows.pop()))
        return head, pieces

    # ---- inside --------------------------------------------------------------------------------------

    def _put(self, head: Head, pieces: Sequence[AnyPiece], owner: str | None) -> None:
        """Writes a run's row, and pieces behind those that it has."""
        cipher, principal = self._ready(), plain(head.principal)
        ((first, key),) = self._database.rows(
            "SELECT (SELECT coalesce(max(number) + 1, 0) FROM pieces WHERE run = ?), "
            "(SELECT key FROM runs WHERE id = ?)",
            *(head.id, head.id),
        )
        if key not in cipher.key_ids:
            if first:
                # What is there has its key in the row, and whoever has that reads it.
                raise Foreign(f"run {head.id} was written with another key than the one in use")
            key = cipher.key_ids[0]
        # One after the other: each may have megabytes, and what is written of it is a copy.
        bodies = (
            (head.id, number, piece.kind, cipher.encrypted(key, head.id, principal, number, piece))
            for number, piece in enumerate(pieces, first)
        )
        row = {
            "id": head.id,
            "principal": principal,
            "began": head.began,
            "ended": head.ended,
            "outcome": head.outcome,
            "calls": head.calls,
            "bytes": sum(piece.size + ADDED_BYTES for piece in pieces),
            "state": head.state,
            "turn": head.turn,
            "resumed": head.resumed,
            "expires": head.expires,
            "is_answered": int(head.is_answered),
            "owner": owner,
            "changed": time.time(),
            "key": key,
        }
        changed = ", ".join(f"{name} = excluded.{name}" for name in CHANGING)
        # A round that was ended while the run goes on stays so: whoever writes that does not know of it.
        stays = "excluded.state != 'parked' AND runs.turn > excluded.turn"
        turn = f"CASE WHEN {stays} THEN runs.turn ELSE excluded.turn END"
        resumed = "CASE WHEN runs.resumed > excluded.resumed THEN runs.resumed ELSE excluded.resumed END"
        # The pieces that were there stay, but for those of a run that is written anew.
        size = "excluded.bytes + runs.bytes" if first else "excluded.bytes"
        self._database.execute(
            f"INSERT INTO runs ({', '.join(row)}) VALUES ({', '.join('?' * len(row))}) "
            f"ON CONFLICT (id) DO UPDATE SET {changed}, turn = {turn}, resumed = {resumed}, bytes = {size}",
            *row.values(),
        )
        self._database.execute_many("INSERT INTO pieces VALUES (?, ?, ?, ?)", bodies)

    def _refuse_too_large(self, size: int) -> None:
        if size > self.settings.total_bytes:
            said = f"a run of {size:,} bytes is over journal.total_bytes = {self.settings.total_bytes:,}"
            raise TooLarge(said)

    def _refuse_taken(self, run_id: str, owner: str | None) -> None:
        """Raises TakenAway where a run is written down as parked, or as another broker's."""
        if owner is None:
            return
        for state, has in self._database.rows("SELECT state, owner FROM runs WHERE id = ?", run_id):
            if state == "parked" or has not in (None, owner):
                raise TakenAway(f"another broker goes on with run {run_id}, or may")

    def _has(self, run_id: str) -> bool:
        return bool(self._database.rows("SELECT 1 FROM runs WHERE id = ?", run_id))

    def _ready(self) -> Cipher:
        if not self._cipher.key_ids:
            self._cipher = Cipher(self._keys())
        return self._cipher


def plain(principal: str | None) -> Any:
    """Returns a principal as it stands in a row."""
    return None if principal is None else as_text(principal)


def _head(row: Sequence[Any]) -> Head:
    head = Head(*row)
    return replace(head, is_answered=bool(head.is_answered))
