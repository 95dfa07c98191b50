"""Login_looks finds parked runs whose calls have waited for a login that somebody has given meanwhile."""

from __future__ import annotations

import contextlib
import json
import math
from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import Final

from cellblock.journal.journals import Journals
from cellblock.journal.parked import Answer, ParkedQuestion
from cellblock.journal.rows import WAITING, OneRunFailed, parked_questions
from cellblock.journal.store import JournalStore
from cellblock.upstream.registry import Registry

LOGIN_LOOKS: Final = 5
"""Counts the looks at runs that wait for a login after one has changed: a run may be parked in that moment, which has
bounds of its own."""

LOGIN_PAGE: Final = 100
"""Bounds the runs that one look after a login reads at once: others wait for the file."""


class LoginLooks:
    """Looks at the runs of one state directory.

    Args:
        logins: Says when somebody has logged in.
        journals: Where the runs are written down.
        answer: Answers questions of a run.
    """

    def __init__(
        self,
        logins: Registry,
        journals: Journals,
        answer: Callable[[str, Mapping[int, Answer]], Awaitable[object]],
    ) -> None:
        self._logins, self._journals, self._answer = logins, journals, answer
        self._seen: Mapping[str, object] = {}
        self._left = LOGIN_LOOKS

    async def look(self) -> None:
        """Lets those calls be made that have waited for a login which somebody has given. Nothing is read while no
        login has changed. Raises StoreError."""
        stamps = self._logins.login_stamps()
        if stamps != self._seen:
            self._seen, self._left = stamps, LOGIN_LOOKS
        if not stamps or not self._left:
            return
        self._left -= 1
        before, seen = math.inf, set[str]()
        while page := [
            one
            for one in await self._journals.asked(partial(_waits_for_logins, before=before), [])
            if one[1] not in seen
        ]:
            for began, run_id, questions in page:
                seen.add(run_id)
                # Two may have begun at once, and be on two pages.
                before = math.nextafter(began, math.inf)
                for question in questions:
                    place = json.loads(question.request)
                    if await self._logins.is_logged_in(place["server"], place["mark"]):
                        await self._answer(run_id, {question.number: "accepted"})


def _waits_for_logins(store: JournalStore, before: float) -> list[tuple[float, str, list[ParkedQuestion]]]:
    """Returns a page of the parked runs that began before a time, each with what it asks of logins."""
    found: list[tuple[float, str, list[ParkedQuestion]]] = []
    for head in store.heads(before=before, limit=LOGIN_PAGE, state="parked"):
        questions: tuple[ParkedQuestion, ...] = ()
        with contextlib.suppress(OneRunFailed):
            if (read := store.read(head.id, kinds=WAITING)) is not None and read[0].state == "parked":
                questions = parked_questions(*read)
        found.append((head.began, head.id, [one for one in questions if one.kind == "login"]))
    return found
