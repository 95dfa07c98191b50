"""Moves are what becomes of a run that is written down: it parks, is answered, taken, adopted, and ends.

Each is one transaction that says from which state it goes, so that of several brokers one has the run.
"""

from __future__ import annotations

import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from cellblock.base.questions import Answer, Given, QuestionId
from cellblock.record.rows import (
    WAITING,
    AnyPiece,
    Head,
    Piece,
    answers_piece,
    open_questions,
    parked_questions,
    waiting_in,
)
from cellblock.record.run_rows import RunRows, plain
from cellblock.record.tables import OF_PRINCIPAL
from cellblock.run.parked import LOST, Parked
from cellblock.tools.schemas.replies import checked

MAX_ADOPTED: Final = 3
"""Bounds how often a run goes on whose broker has died: it may be what kills it."""

MAX_DUE: Final = 50
"""Bounds the runs of one look at which are due."""


class Moves(RunRows):
    """Moves runs from state to state."""

    def park(self, head: Head, pieces: Sequence[AnyPiece], owner: str | None = None) -> None:
        """Writes a run that waits for a person, in the place of all that was written of it; safe from a power cut, too.

        Args:
            head: The run, with its `turn` and `expires`.
            pieces: All of it.
            owner: As for `JournalStore.write`. Whom it belongs to when it is parked `head.owner` says: the broker that
                has calls of it whose servers wait for an answer; None where there are none.

        Raises:
            TooLarge: It takes more than all parked runs together may.
            TakenAway: Another broker has it.
            StoreError: Nothing was written.
        """
        size = sum(piece.size for piece in pieces)
        ((waiting,),) = self._database.rows(
            "SELECT CAST(coalesce(sum(bytes), 0) AS BIGINT) FROM runs WHERE state = 'parked' AND id != ?",
            head.id,
        )
        self._refuse_too_large(size + waiting)
        with self._database.transaction(head.id, safe=True):
            self._refuse_taken(head.id, owner)
            self._database.execute("DELETE FROM pieces WHERE run = ?", head.id)
            self._put(replace(head, state="parked"), pieces, head.owner)

    def answer(
        self,
        run_id: str,
        answers: Mapping[QuestionId, Given] | Answer,
        principal: str | None = None,
        *,
        turn: int | None = None,
    ) -> tuple[Head, Parked, dict[QuestionId, Given]] | None:
        """Writes down what is said to the questions of a parked run; what is answered already stays so.

        Args:
            run_id: The run.
            answers: By the questions, or one word for all that are open. Others are ignored.
            principal: As for `heads`.
            turn: Of a client that has come back in this round, which is over then: what it leaves open was dismissed,
                unless a server has asked it since. Answers to none of the questions do nothing: the run waits for
                something else. None: it is somebody else who answers.

        Returns:
            The run, what it waits for, and all answers; None when no such run is parked.

        Raises:
            WrongAnswer: One does not fit its question; nothing is written.
            WrongPiece, StoreError: As `read`.
        """
        with self._database.transaction(run_id):
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
                self._database.announce()
            return head, parked, known

    def take(self, run_id: str, owner: str) -> tuple[Head, list[Piece]] | None:
        """Takes a parked run, to go on with it; of several that try, one gets it. What another broker has calls of is
        that one's. Returns the run as it is now, and its pieces; None when no such run is parked. Raises StoreError."""
        with self._database.transaction(run_id):
            moved = self._database.execute(
                "UPDATE runs SET state = 'running', owner = ?, changed = ?, resumed = resumed + 1, is_answered = 0 "
                "WHERE id = ? AND state = 'parked' AND owner IS NULL",
                *(owner, time.time(), run_id),
            )
            return self.read(run_id) if moved else None

    def add_answers(self, run_id: str, resumed: int, owner: str, pieces: Sequence[Piece]) -> bool:
        """Writes answers of tools that this broker has waited for, or what their servers ask; says whether the run
        still waits for them."""
        with self._database.transaction(run_id):
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
        with self._database.transaction(run_id):
            where = "id = ? AND state = 'parked' AND resumed = ? AND owner = ?"
            if is_lost and self._end(LOST, f"{where} AND adopted >= ?", run_id, resumed, owner, MAX_ADOPTED):
                return False
            found = self.read(run_id, kinds=WAITING)
            if found is None:
                return False
            head = replace(found[0], owner=None)
            is_answered = head.state == "parked" and not parked_questions(head, found[1])
            moved = self._database.execute(
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
        with self._database.transaction(run_id):
            return self._database.execute(statement, run_id, turn, plain(principal)) > 0

    def adopt(self, run_id: str, dead: str, owner: str) -> tuple[Head, list[Piece]] | None:
        """Takes a run whose broker has died, `MAX_ADOPTED` times at most: then it ends. One that was taken here without
        anybody's knowledge has lost no broker. The rest is as for `take`."""
        with self._database.transaction(run_id):
            moved = self._database.execute(
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
        with self._database.transaction(run_id):
            return self._end(
                outcome,
                f"id = ? AND state = 'parked' AND {OF_PRINCIPAL} "
                "AND (CAST(? AS DOUBLE PRECISION) IS NULL OR expires <= ?)",
                *(run_id, whose, whose, expired, expired),
            )

    def give_up(self, run_id: str, owner: str, outcome: str) -> bool:
        """Ends a run that this broker has taken and that cannot go on. Says whether nobody else goes on with it."""
        with self._database.transaction(run_id):
            self._end(outcome, "id = ? AND state = 'running' AND owner = ?", run_id, owner)
            head = self.head(run_id)
            return head is None or head.state not in ("running", "parked")

    def ask_to_end(self, run_id: str, principal: str | None = None) -> bool:
        """Asks the broker that goes on with a run to end it; says whether there is one. `principal` is as for
        `heads`."""
        with self._database.transaction(run_id):
            head = self.head(run_id, principal)
            if head is None or head.state != "running" or head.owner is None:
                return False
            self._put(head, [Piece("cancel", b"")], head.owner)
            self._database.announce()
            return True

    def asked_to_end(self, owner: str) -> list[str]:
        """Returns the runs that a broker goes on with and is to end. Raises StoreError."""
        rows = self._database.rows(
            "SELECT id FROM runs WHERE state = 'running' AND owner = ? "
            "AND EXISTS (SELECT 1 FROM pieces WHERE run = runs.id AND kind = 'cancel')",
            owner,
        )
        return [run for (run,) in rows]

    def set_cpu(self, run_id: str, turn: int, cpu_ms: int) -> None:
        """Writes what CPU time a run had used by the time that it was parked."""
        with self._database.transaction(run_id):
            self._database.execute(
                "UPDATE runs SET cpu_ms = ? WHERE id = ? AND turn = ?", cpu_ms, run_id, turn
            )

    def due(self, now: float, besides: Collection[str] = ()) -> tuple[list[str], list[str]]:
        """Returns the parked runs that have their answers, and those that have waited too long. Raises StoreError.

        Args:
            now: Unix time in seconds.
            besides: Runs that do not go on here, whatever their answers.
        """
        others = ", ".join(["''", *("?" * len(besides))])
        rows = self._database.rows(
            "SELECT id, is_answered FROM runs WHERE state = 'parked' AND (expires <= ? OR "
            f"(is_answered = 1 AND id NOT IN ({others}))) LIMIT ?",
            *(now, *besides, MAX_DUE),
        )
        due = [run for run, answered in rows if answered and run not in besides]
        return due, [run for run, _ in rows if run not in due]

    def count_parked(self) -> int:
        """Counts the parked runs. Raises StoreError."""
        ((count,),) = self._database.rows("SELECT count(*) FROM runs WHERE state = 'parked'")
        return count

    def owned(self, *, before: float | None = None) -> list[tuple[str, str]]:
        """Returns the runs that go on, each with the broker that has it; with `before`, those of which nothing was
        written since that Unix time. Raises StoreError."""
        rows = self._database.rows(
            "SELECT id, owner FROM runs WHERE state = 'running' AND owner IS NOT NULL AND changed <= ?",
            9e18 if before is None else before,
        )
        return [(run, owner) for run, owner in rows]

    def held(self) -> list[tuple[str, str, int]]:
        """Returns the parked runs of which brokers have calls: run, broker, how often it has gone on. Raises
        StoreError."""
        rows = self._database.rows(
            "SELECT id, owner, resumed FROM runs WHERE state = 'parked' AND owner IS NOT NULL"
        )
        return [(run, owner, resumed) for run, owner, resumed in rows]

    # ---- inside --------------------------------------------------------------------------------------

    def _end(self, outcome: str, where: str, *values: Any) -> bool:
        """Ends the runs that an SQL condition selects, in a transaction; says whether there was one."""
        now, change = time.time(), "state = 'ended', ended = ?, changed = ?, outcome = ?"
        return (
            self._database.execute(f"UPDATE runs SET {change} WHERE {where}", now, now, outcome, *values) > 0
        )
