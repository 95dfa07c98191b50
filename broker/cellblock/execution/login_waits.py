"""Login_waits have a call wait for the login that its server wants: it was refused, so it was not made.

The call is made again when somebody has logged in. Until then its run is parked, where it can be.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from typing import Any, Final

from cellblock.base.errors import AuthenticationFailed, Certainty, NeededLogin
from cellblock.catalog.model import ToolEntry
from cellblock.execution.keeping import KeptRun
from cellblock.execution.parking import Parking
from cellblock.execution.run_clock import RunClock
from cellblock.policy.asking import Approver, LoginQuestion, Question, Verdict
from cellblock.upstream.outstanding import ANSWER_BOUND_SECONDS

MAX_LOGINS: Final = 3
"""Bounds how often one call of a process waits for a login: a server may refuse each."""

LOOK_SECONDS: Final = 1.0
"""Passes between two looks whether somebody has logged in, as of sessions that wait for it."""

FIRST: Final = 500
"""Begins the numbers of these questions: servers ask fewer for which a run is parked."""


class LoginWaits:
    """Has the calls of one run wait for logins.

    Args:
        kept: Writes the run down.
        parking: The run's.
        clock: Its wall clock, which stands still meanwhile.
        approver: Asks the client's user; None where nobody can be asked.
    """

    def __init__(self, kept: KeptRun, parking: Parking, clock: RunClock, approver: Approver | None) -> None:
        self._kept, self._parking, self._clock, self._approver = kept, parking, clock, approver
        self._said = {} if kept.earlier is None else dict(kept.earlier.logins)
        self._waited = Counter[int]()

    def check(self, call_id: int, server: str, tool: ToolEntry) -> None:
        """Raises AuthenticationFailed for a call that the user does not want to log in for; it is not made."""
        if self._said.pop(call_id, Verdict.ACCEPTED) is not Verdict.ACCEPTED:
            raise AuthenticationFailed(
                f"{tool.export_name} was not called: {server} needs a login, and the user has not logged in.",
                hint="Do without this call, or ask the user to log in.",
                certainty=Certainty.NOT_STARTED,
            )

    async def until_logged_in(
        self, call_id: int, server: str, tool: ToolEntry, arguments: Any, error: AuthenticationFailed
    ) -> None:
        """Waits for the login that a refused call needs, and returns when the call may be made again. Raises the error
        that it was refused with."""
        login = error.login
        self._waited[call_id] += 1
        if login is None or self._waited[call_id] > MAX_LOGINS:
            raise error
        mark, nth = await login.mark(), self._kept.resumed * 1000 + FIRST + self._waited[call_id]
        said = LoginQuestion(f"{error.message} {error.hint}", login.server, mark, nth)
        question = Question(
            server, tool.tool_name, False, arguments, ANSWER_BOUND_SECONDS, call_id, login=said
        )
        with self._clock.standing_still():
            self._parking.waits(question)
            try:
                verdict = await self._first(question, login)
            finally:
                self._parking.goes_on(call_id)
            if verdict in (Verdict.CANNOT_ASK, Verdict.LATER) and self._kept.is_durable:
                await self._parking.until_parked(question)
        if verdict is not Verdict.ACCEPTED:
            raise error

    async def _first(self, question: Question, login: NeededLogin) -> Verdict:
        """Returns what the user says, or that somebody has logged in."""
        if self._approver is None:
            return Verdict.CANNOT_ASK
        asking = asyncio.ensure_future(self._approver(question))
        try:
            async with asyncio.timeout(question.timeout):
                while not await login.is_there(question.login.mark if question.login else ""):
                    if (await asyncio.wait([asking], timeout=LOOK_SECONDS))[0]:
                        return asking.result()
                return Verdict.ACCEPTED
        except TimeoutError:
            return Verdict.CANCELLED
        finally:
            asking.cancel()
