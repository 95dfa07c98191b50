"""Keeps journals of runs in a database, each piece of them encrypted, and moves runs from state to state.

A `JournalStore` belongs to the thread that opened it; several processes can use one database. What is not encrypted is
what lists of runs are made of: whose a run is, when it was, how it ended, how much it takes. Any failure is a
`StoreError`. Each move of a run (it parks, is answered, taken, adopted, ends) is one transaction that says from which
state it goes, so that of several brokers one has the run.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from typing import Any, Final

from cellblock.base.database import Database, Tables
from cellblock.base.questions import Answer, Given, QuestionId
from cellblock.base.settings.state import JournalSettings
from cellblock.base.state_dir import JOURNALS
from cellblock.base.store import as_text
from cellblock.record.rows import (
    ADDED_BYTES,
    KINDS,
    WAITING,
    AnyPiece,
    Cipher,
    Foreign,
    Head,
    Kind,
    OneRunFailed,
    Piece,
    RunState,
    TakenAway,
    TooLarge,
    answers_piece,
    open_questions,
    parked_questions,
    waiting_in,
)
from cellblock.run.hook import LOST, Parked
from cellblock.tools.schemas.replies import checked

WAL_BYTES: Final = 4 * 1024 * 1024
"""Bounds what the write-ahead log keeps of the disk between writes."""

_TABLES: Final = """
    CREATE TABLE runs (
        id TEXT NOT NULL PRIMARY KEY,
        principal TEXT NOT NULL,
        began DOUBLE PRECISION NOT NULL,
        ended DOUBLE PRECISION,
        outcome TEXT,
        calls INTEGER NOT NULL,
        bytes BIGINT NOT NULL,
        key TEXT NOT NULL,
        state TEXT NOT NULL,
        turn INTEGER NOT NULL,
        expires DOUBLE PRECISION,
        is_answered INTEGER NOT NULL,
        owner TEXT,
        cpu_ms BIGINT NOT NULL DEFAULT 0,
        resumed INTEGER NOT NULL DEFAULT 0,
        adopted INTEGER NOT NULL DEFAULT 0,
        changed DOUBLE PRECISION
    );
    CREATE INDEX runs_began ON runs (began, principal, bytes);
    CREATE INDEX runs_state ON runs (state, expires);
    CREATE TABLE pieces (
        run TEXT NOT NULL REFERENCES runs (id) ON DELETE CASCADE,
        number INTEGER NOT NULL,
        kind TEXT NOT NULL,
        body BLOB NOT NULL,
        PRIMARY KEY (run, number)
    );
    """

JOURNAL_TABLES: Final = Tables(
    kind="journals",
    file=JOURNALS,
    what="kept runs",
    logger=logging.getLogger("cellblock.journal"),
    # The first version never was released.
    sqlite=("", _TABLES),
    # What is encrypted is not compressed.
    postgresql=(_TABLES.replace("BLOB", "BYTEA") + "ALTER TABLE pieces ALTER body SET STORAGE EXTERNAL",),
    setup=(
        "PRAGMA auto_vacuum = INCREMENTAL",
        "PRAGMA foreign_keys = ON",
        # What is deleted is not to be found in the file.
        "PRAGMA secure_delete = ON",
        f"PRAGMA journal_size_limit = {WAL_BYTES}",
    ),
)

SHOWN: Final = (
    "id, principal, began, ended, outcome, calls, bytes, "
    "state, turn, expires, is_answered, cpu_ms, resumed, changed, owner, adopted, key"
)

CHANGING: Final = (
    "ended",
    "outcome",
    "calls",
    "state",
    "expires",
    "is_answered",
    "owner",
    "changed",
    "key",
)
"""Names what changes in the row of a run that is written again, beside its turn and its size."""

OF_PRINCIPAL: Final = "(CAST(? AS TEXT) IS NULL OR principal = ?)"
"""Selects the runs of a principal, given twice; of None: of everybody."""

BY_SHARE: Final = "sum(bytes) OVER (PARTITION BY principal) DESC, began"
"""Orders the selected runs by what their principal has of them, most first; the oldest of each first."""

IS_OVER: Final = "state = 'ended' OR (state = 'running' AND owner IS NULL AND began < ?)"
"""Selects runs that may be removed; its value is when a run began that has no end and is taken for lost. One with an
owner goes on, or may when that one has died, however long ago it began."""


MAX_LISTED: Final = 1_000
"""Bounds the runs of one list."""

MAX_PARKED: Final = MAX_LISTED // 2
"""Bounds the parked runs of one principal."""

MAX_ADOPTED: Final = 3
"""Bounds how often a run goes on whose broker has died: it may be what kills it."""

MAX_DUE: Final = 50
"""Bounds the runs of one look at which are due."""

PAGE_RUNS: Final = 50
"""Bounds the runs that one transaction removes: another process waits for it."""

PAGE_SPACE: Final = 2_000
"""Bounds the pages of 4 KiB that one transaction gives back to the disk."""

UNENDED_SECONDS: Final = 3_600.0
"""Passes at least before a run without an end counts as lost with its broker: a run takes ten minutes at most as
configured."""


class JournalStore:
    """Holds open journals.

    Args:
        database: The file.
        keys: Gives the keys, as `Cipher` takes them; asked when a piece is written or read, and only once.
        settings: What is kept for how long.
    """

    def __init__(
        self, database: Database, keys: Callable[[], Sequence[bytes]], settings: JournalSettings
    ) -> None:
        self.settings = settings
        self._keys = keys
        self.database = database

    def heads(
        self,
        principal: str | None = None,
        *,
        limit: int = MAX_LISTED,
        state: RunState | None = None,
    ) -> list[Head]:
        """Returns runs, the newest first.

        Args:
            principal: Whose; None: everybody's, for the user of this machine.
            limit: At most so many; as many of one principal as of another, where both have more.
            state: Only those in this state; None: all.

        Raises:
            StoreError: The file cannot be read.
        """
        whose = plain(principal)
        turn = "row_number() OVER (PARTITION BY principal ORDER BY began DESC, id)"
        rows = self.database.rows(
            f"SELECT {SHOWN} FROM (SELECT *, {turn} AS in_turn FROM runs WHERE {OF_PRINCIPAL} "
            "AND (CAST(? AS TEXT) IS NULL OR state = ?)) AS found ORDER BY in_turn, began DESC, id LIMIT ?",
            *(whose, whose, state, state),
            max(0, min(limit, MAX_LISTED)),
        )
        return sorted((_head(row) for row in rows), key=lambda head: -head.began)

    def head(self, run_id: str, principal: str | None = None) -> Head | None:
        """Returns what lists show of one run; the rest is as for `read`."""
        rows = self.database.rows(
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
        head = self.head(run_id, principal)
        if head is None:
            return None
        cipher = self._cipher
        if head.key not in cipher.key_ids:
            raise Foreign(f"run {run_id} was written with another key than the one in use")
        rows = self.database.rows(
            f"SELECT number, kind, body FROM pieces WHERE run = ? AND kind IN ({', '.join('?' * len(kinds))}) "
            "ORDER BY number",
            *(run_id, *kinds),
        )
        rows.reverse()
        pieces: list[Piece] = []
        while rows:
            # What is read goes as it is decrypted: both are as large as the run.
            pieces.append(cipher.decrypted(head, *rows.pop()))
        return head, pieces

    def close(self) -> None:
        """Closes the database."""
        self.database.close()

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
        with self.database.transaction(head.id):
            self._refuse_taken(head.id, owner)
            if head.ended is not None:
                self.database.execute("DELETE FROM pieces WHERE run = ?", head.id)
            elif all(piece.kind == "call" for piece in pieces) and self.head(head.id) is None:
                raise OneRunFailed(f"run {head.id} has been deleted")
            self._put(replace(head, state=state), pieces, owner)

    def delete(self, run_id: str, principal: str | None = None) -> bool:
        """Deletes a run, and says whether there was one of this id that is this principal's.

        Raises:
            StoreError: Nothing was deleted.
        """
        statement = f"DELETE FROM runs WHERE id = ? AND {OF_PRINCIPAL}"
        with self.database.transaction(run_id):
            return self.database.execute(statement, run_id, plain(principal), plain(principal)) > 0

    def delete_all_of(self, principal: str) -> int:
        """Deletes all runs of a principal, and says how many there were. Raises StoreError: Nothing was deleted."""
        with self.database.transaction(principal):
            return self.database.execute("DELETE FROM runs WHERE principal = ?", plain(principal))

    def tidy(self, now: float | None = None) -> bool:
        """Removes one page of what is too old or too much, and gives space back to the disk: what is too much, from the
        principal that has most.

        Args:
            now: Unix time in seconds; None: the clock's.

        Returns:
            Whether there may be more to remove.

        Raises:
            StoreError: Nothing was removed.
        """
        now = time.time() if now is None else now
        oldest = now - self.settings.expire_ms / 1000
        # One that goes on has an owner, and `adopt` judges that; one that is parked ends by its own bound.
        over = f"({IS_OVER})"
        page = "DELETE FROM runs WHERE id IN (SELECT id FROM runs WHERE {} ORDER BY {} LIMIT ?)"
        with self.database.transaction("tidy"):
            unended = now - UNENDED_SECONDS
            old = f"coalesce(ended, began) < ? AND {over}"
            removed = self.database.execute(page.format(old, "began"), oldest, unended, PAGE_RUNS)
            excess = self.used_bytes - self.settings.total_bytes
            if excess > 0 and removed < PAGE_RUNS:
                count = self._oldest(excess, unended, PAGE_RUNS - removed)
                removed += self.database.execute(page.format(over, BY_SHARE), unended, count)
        self.database.give_back(PAGE_SPACE)
        return removed > 0

    @property
    def is_over_now(self) -> bool:
        """Says whether all runs take more than they may, where that is known without counting them. Raises
        StoreError."""
        used = self.database.used_bytes()
        return used is not None and used > self.settings.total_bytes

    @property
    def used_bytes(self) -> int:
        """Returns what all runs take on disk, of all processes that use the file; what is free in it does not count.

        Raises:
            StoreError: The file cannot be read.
        """
        used = self.database.used_bytes()
        if used is None:
            ((used,),) = self.database.rows("SELECT CAST(coalesce(sum(bytes), 0) AS BIGINT) FROM runs")
        return used

    # ---- what becomes of a run -----------------------------------------------------------------------

    def park(self, head: Head, pieces: Sequence[AnyPiece], owner: str | None = None) -> None:
        """Writes a run that waits for a person, in the place of all that was written of it; safe from a power cut, too.

        Args:
            head: The run, with its `turn` and `expires`.
            pieces: All of it.
            owner: As for `JournalStore.write`. Whom it belongs to when it is parked `head.owner` says: the broker that
                has calls of it whose servers wait for an answer; None where there are none.

        Raises:
            TooLarge: Its principal has its share of parked runs.
            TakenAway: Another broker has it.
            StoreError: Nothing was written.
        """
        self._refuse_over_share(head, sum(piece.size for piece in pieces))
        with self.database.transaction(head.id, safe=True):
            self._refuse_taken(head.id, owner)
            self.database.execute("DELETE FROM pieces WHERE run = ?", head.id)
            self._put(replace(head, state="parked"), pieces, head.owner)

    def answer(
        self,
        run_id: str,
        answers: Mapping[QuestionId, Given] | Answer,
        principal: str | None = None,
        *,
        turn: int | None = None,
    ) -> tuple[Head, Parked, dict[QuestionId, Given], set[QuestionId]] | None:
        """Writes down what is said to the questions of a parked run; what is answered already stays so.

        Args:
            run_id: The run.
            answers: By the questions, or one word for all that are open. Others are ignored.
            principal: As for `heads`.
            turn: Of a client that has come back in this round, which is over then: what it leaves open was dismissed,
                unless a server has asked it since. Answers to none of the questions do nothing: the run waits for
                something else. None: it is somebody else who answers.

        Returns:
            The run, what it waits for, all answers, and which questions these have answered; None when no such run is
            parked.

        Raises:
            WrongAnswer: One does not fit its question; nothing is written.
            WrongPiece, StoreError: As `read`.
        """
        with self.database.transaction(run_id):
            found = self.read(run_id, principal, WAITING)
            if found is None or found[0].state != "parked" or turn not in (None, found[0].turn):
                return None
            head, pieces = found
            parked, known = waiting_in(pieces)
            asked = open_questions(head, parked, known)
            if not isinstance(answers, str) and turn is not None:
                if asked and answers and not any(question.id in answers for question in asked):
                    return None
                dismissed: dict[QuestionId, Given] = {
                    question.id: "cancelled" for question in asked if not question.holds_call
                }
                answers = {**dismissed, **answers}
                head = replace(head, turn=head.turn + 1)
            new: dict[QuestionId, Given] = {}
            for question in asked:
                given = answers if isinstance(answers, str) else answers.get(question.id)
                if given is not None:
                    new[question.id] = checked(question, given)
            known |= new
            is_answered = head.owner is None and not open_questions(head, parked, known)
            head = replace(head, is_answered=is_answered)
            if new or turn is not None:
                self._put(head, [answers_piece(new)] if new else [], head.owner)
                self.database.announce()
            return head, parked, known, {*new}

    def take(self, run_id: str, owner: str) -> tuple[Head, list[Piece]] | None:
        """Takes a parked run, to go on with it; of several that try, one gets it. What another broker has calls of is
        that one's. Returns the run as it is now, and its pieces; None when no such run is parked. Raises StoreError."""
        with self.database.transaction(run_id):
            moved = self.database.execute(
                "UPDATE runs SET state = 'running', owner = ?, changed = ?, resumed = resumed + 1, is_answered = 0 "
                "WHERE id = ? AND state = 'parked' AND owner IS NULL",
                *(owner, time.time(), run_id),
            )
            return self.read(run_id) if moved else None

    def add_answers(self, run_id: str, resumed: int, owner: str, pieces: Sequence[Piece]) -> bool:
        """Writes answers of tools that this broker has waited for, or what their servers ask; says whether the run
        still waits for them."""
        with self.database.transaction(run_id):
            head = self.head(run_id)
            if head is None or (head.state, head.resumed, head.owner) != ("parked", resumed, owner):
                return False
            self._put(head, pieces, owner)
            return True

    def release(self, run_id: str, resumed: int, owner: str, *, is_lost: bool = False) -> bool:
        """Has a parked run wait for people alone: this broker has no call of it. Says whether it waits for nobody now.
        One that has lost brokers so `MAX_ADOPTED` times ends.

        Args:
            run_id: The run.
            resumed: As it was parked.
            owner: The broker.
            is_lost: Whether the broker has died; its calls may have run, and whoever goes on is told so.
        """
        with self.database.transaction(run_id):
            where = "id = ? AND state = 'parked' AND resumed = ? AND owner = ?"
            if is_lost and self._end(LOST, f"{where} AND adopted >= ?", run_id, resumed, owner, MAX_ADOPTED):
                return False
            found = self.read(run_id, kinds=WAITING)
            if found is None:
                return False
            head = replace(found[0], owner=None)
            is_answered = head.state == "parked" and not parked_questions(head, found[1])
            moved = self.database.execute(
                f"UPDATE runs SET owner = NULL, is_answered = ?, adopted = adopted + ? WHERE {where}",
                *(int(is_answered), int(is_lost), run_id, resumed, owner),
            )
            return moved > 0 and is_answered

    def end_round(self, run_id: str, turn: int, principal: str) -> bool:
        """Ends the round of a run that others have answered; says whether it was still that round's. One that is
        parked again stays so."""
        statement = (
            "UPDATE runs SET turn = turn + (CASE state WHEN 'parked' THEN 0 ELSE 1 END) "
            "WHERE id = ? AND turn = ? AND principal = ?"
        )
        with self.database.transaction(run_id):
            return self.database.execute(statement, run_id, turn, plain(principal)) > 0

    def adopt(self, run_id: str, dead: str, owner: str) -> tuple[Head, list[Piece]] | None:
        """Takes a run whose broker has died, `MAX_ADOPTED` times at most: then it ends. One that was taken here without
        anybody's knowledge has lost no broker. The rest is as for `take`."""
        with self.database.transaction(run_id):
            moved = self.database.execute(
                "UPDATE runs SET owner = ?, changed = ?, resumed = resumed + 1, adopted = adopted + ? "
                "WHERE id = ? AND state = 'running' AND owner = ? AND adopted < ?",
                *(owner, time.time(), int(dead != owner), run_id, dead, MAX_ADOPTED),
            )
            if not moved:
                self._end(LOST, "id = ? AND state = 'running' AND owner = ?", run_id, dead)
            return self.read(run_id) if moved else None

    def end(
        self, run_id: str, outcome: str, principal: str | None = None, *, expired: float | None = None
    ) -> bool:
        """Ends a parked run; what is kept of it is shown as of one that ended. Says whether there was one.

        Args:
            run_id: The run.
            outcome: As of a run that ended by itself.
            principal: As for `heads`.
            expired: Only if it may wait no longer than until this Unix time.
        """
        whose = plain(principal)
        with self.database.transaction(run_id):
            return self._end(
                outcome,
                f"id = ? AND state = 'parked' AND {OF_PRINCIPAL} "
                "AND (CAST(? AS DOUBLE PRECISION) IS NULL OR expires <= ?)",
                *(run_id, whose, whose, expired, expired),
            )

    def give_up(self, run_id: str, owner: str, outcome: str) -> bool:
        """Ends a run that this broker has taken and that cannot go on. Says whether nobody else goes on with it."""
        with self.database.transaction(run_id):
            self._end(outcome, "id = ? AND state = 'running' AND owner = ?", run_id, owner)
            head = self.head(run_id)
            return head is None or head.state not in ("running", "parked")

    def ask_to_end(self, run_id: str, principal: str | None = None) -> bool:
        """Asks the broker that goes on with a run to end it; says whether there is one. `principal` is as for
        `heads`."""
        with self.database.transaction(run_id):
            head = self.head(run_id, principal)
            if head is None or head.state != "running" or head.owner is None:
                return False
            self._put(head, [Piece("cancel", b"")], head.owner)
            self.database.announce()
            return True

    def asked_to_end(self, owner: str) -> list[str]:
        """Returns the runs that a broker goes on with and is to end. Raises StoreError."""
        rows = self.database.rows(
            "SELECT id FROM runs WHERE state = 'running' AND owner = ? "
            "AND EXISTS (SELECT 1 FROM pieces WHERE run = runs.id AND kind = 'cancel')",
            owner,
        )
        return [run for (run,) in rows]

    def set_cpu(self, run_id: str, turn: int, cpu_ms: int) -> None:
        """Writes what CPU time a run had used by the time that it was parked."""
        with self.database.transaction(run_id):
            self.database.execute(
                "UPDATE runs SET cpu_ms = ? WHERE id = ? AND turn = ?", cpu_ms, run_id, turn
            )

    def due(self, now: float, besides: Collection[str] = ()) -> tuple[list[str], list[str]]:
        """Returns the parked runs that have their answers, and those that have waited too long. Raises StoreError.

        Args:
            now: Unix time in seconds.
            besides: Runs that do not go on here, whatever their answers.
        """
        others = ", ".join(["''", *("?" * len(besides))])
        rows = self.database.rows(
            "SELECT id, is_answered FROM runs WHERE state = 'parked' AND (expires <= ? OR "
            f"(is_answered = 1 AND id NOT IN ({others}))) LIMIT ?",
            *(now, *besides, MAX_DUE),
        )
        due = [run for run, answered in rows if answered and run not in besides]
        return due, [run for run, _ in rows if run not in due]

    def count_parked(self) -> int:
        """Counts the parked runs. Raises StoreError."""
        ((count,),) = self.database.rows("SELECT count(*) FROM runs WHERE state = 'parked'")
        return count

    def owned(self, *, before: float | None = None) -> list[tuple[str, str]]:
        """Returns the runs that go on, each with the broker that has it; with `before`, those of which nothing was
        written since that Unix time. Raises StoreError."""
        rows = self.database.rows(
            "SELECT id, owner FROM runs WHERE state = 'running' AND owner IS NOT NULL AND changed <= ?",
            9e18 if before is None else before,
        )
        return [(run, owner) for run, owner in rows]

    def held(self) -> list[tuple[str, str, int]]:
        """Returns the parked runs of which brokers have calls: run, broker, how often it has gone on. Raises
        StoreError."""
        rows = self.database.rows(
            "SELECT id, owner, resumed FROM runs WHERE state = 'parked' AND owner IS NOT NULL"
        )
        return [(run, owner, resumed) for run, owner, resumed in rows]

    # ---- inside --------------------------------------------------------------------------------------

    def _put(self, head: Head, pieces: Sequence[AnyPiece], owner: str | None) -> None:
        """Writes a run's row, and pieces behind those that it has."""
        cipher, principal = self._cipher, plain(head.principal)
        ((first, key),) = self.database.rows(
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
        self.database.execute(
            f"INSERT INTO runs ({', '.join(row)}) VALUES ({', '.join('?' * len(row))}) "
            f"ON CONFLICT (id) DO UPDATE SET {changed}, turn = {turn}, resumed = {resumed}, bytes = {size}",
            *row.values(),
        )
        self.database.execute_many("INSERT INTO pieces VALUES (?, ?, ?, ?)", bodies)

    def _refuse_too_large(self, size: int) -> None:
        if size > self.settings.total_bytes:
            said = f"a run of {size:,} bytes is over journal.total_bytes = {self.settings.total_bytes:,}"
            raise TooLarge(said)

    def _refuse_over_share(self, head: Head, size: int) -> None:
        """Raises TooLarge where a principal would park more than half of what others leave."""
        held = {True: (0, 0), False: (0, 0)}
        for is_own, count, taken in self.database.rows(
            "SELECT CASE WHEN principal = ? THEN 1 ELSE 0 END AS own, count(*), CAST(sum(bytes) AS BIGINT) "
            "FROM runs WHERE state = 'parked' AND id != ? GROUP BY own",
            *(plain(head.principal), head.id),
        ):
            held[bool(is_own)] = count, taken
        (count, own), (_, others) = held[True], held[False]
        total = self.settings.total_bytes
        whose = f"the parked runs of {head.principal}"
        if own + size > (total - others) // 2:
            raise TooLarge(
                f"{whose} would take {own + size:,} bytes, over half of what others leave of "
                f"journal.total_bytes = {total:,}"
            )
        if count >= MAX_PARKED:
            raise TooLarge(f"{whose} are {count} already, of {MAX_PARKED}")

    def _refuse_taken(self, run_id: str, owner: str | None) -> None:
        """Raises TakenAway where a run is written down as parked, or as another broker's."""
        if owner is None:
            return
        for state, has in self.database.rows("SELECT state, owner FROM runs WHERE id = ?", run_id):
            if state == "parked" or has not in (None, owner):
                raise TakenAway(f"another broker goes on with run {run_id}, or may")

    @cached_property
    def _cipher(self) -> Cipher:
        return Cipher(self._keys())

    def _end(self, outcome: str, where: str, *values: Any) -> bool:
        """Ends the runs that an SQL condition selects, in a transaction; says whether there was one."""
        now, change = time.time(), "state = 'ended', ended = ?, changed = ?, outcome = ?"
        return (
            self.database.execute(f"UPDATE runs SET {change} WHERE {where}", now, now, outcome, *values) > 0
        )

    def _oldest(self, excess: int, unended: float, most: int) -> int:
        """Counts the oldest runs that take `excess` bytes together, up to `most`."""
        count = 0
        for (size,) in self.database.rows(
            f"SELECT bytes FROM runs WHERE {IS_OVER} ORDER BY {BY_SHARE} LIMIT ?",
            *(unended, most),
        ):
            if excess <= 0:
                break
            count, excess = count + 1, excess - size
        return count


def plain(principal: str | None) -> Any:
    """Returns a principal as it stands in a row."""
    return None if principal is None else as_text(principal)


def _head(row: Sequence[Any]) -> Head:
    head = Head(*row)
    return replace(head, is_answered=bool(head.is_answered))
