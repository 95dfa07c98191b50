"""Rules is the policy in one run: every call passes here before it is sent, and what is denied was certainly not
started."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from contextlib import AbstractAsyncContextManager, nullcontext
from dataclasses import replace
from typing import Any, Final

from cellblock.base.errors import CallDenied, Fault
from cellblock.run.flows.labels import Label
from cellblock.run.flows.rules import Judged
from cellblock.run.flows.run_flow import RunFlow
from cellblock.run.hook import Parked
from cellblock.run.parking import Parking
from cellblock.run.policy.asking import Approver, EarlierQuestions, Question, Verdict
from cellblock.run.policy.counts import Quotas
from cellblock.run.policy.grants import Grants, effect_of
from cellblock.run.run_clock import RunClock
from cellblock.tools.catalog.model import ServerEntry, ToolEntry
from cellblock.tools.schemas.validation import Allowance

logger = logging.getLogger("cellblock.policy")

MAX_QUESTIONS: Final = 20
"""Caps the questions in one run, so that a script cannot wear the user out."""

APPROVAL_SECONDS: Final = 120.0
"""Bounds the time for the user's answer to one question, who may have to read the input first; then the call is
denied."""

WAITS: Final = 5
"""Bounds how long the clock of one run may stand still for answers in all, in bounds of one answer."""

MIN_QUESTION_SECONDS: Final = 1.0
"""Sets the least time for an answer; a run with less time left for answers does not ask any more."""

_UNAVAILABLE: Final = (
    "APPROVAL_UNAVAILABLE",
    "the user must approve it, and this client cannot ask (it offers no MCP elicitation, or nobody answers)",
    "Do without this call; or make the run durable (`durable: true`, `cellblock run --durable`), so that it waits for "
    "`cellblock runs approve`; or use a client with elicitation; or change {where}.",
    "the user cannot be asked",
)

_IN_A_CHILD: Final = (
    "Do without this call. A kept script that another script calls is not parked, whatever its caller is: use a client "
    "with elicitation; or run it by itself, with `cellblock run --saved NAME --durable`; or have {where} ask about the "
    "script in place of this tool: a durable caller waits for that."
)

_NOT_APPROVED: Final = {
    Verdict.DECLINED: (
        "APPROVAL_DECLINED",
        "the user has said no",
        "Do without this call; do not ask again for the same.",
        "refused by a person",
    ),
    Verdict.CANCELLED: (
        "APPROVAL_CANCELLED",
        "the user has not chosen",
        "Ask the user in the conversation what is wanted.",
        "the user has not chosen",
    ),
    Verdict.CANNOT_ASK: _UNAVAILABLE,
    Verdict.LATER: _UNAVAILABLE,
    None: (
        "APPROVAL_TIMEOUT",
        "the user has not answered within {bound:g} s",
        "Run the script again when the user is there.",
        "the user has not answered in time",
    ),
}
"""Maps what came of a question, None for no answer in time, to code, reason and hint of the refusal, and its name in
the trace."""


class RunRules:
    """Applies the policy to one run: its counters, and its questions.

    Args:
        grants: What the run has.
        approver: Asks the user; None where nobody can be asked.
        used: What counts for budgets already, and is counted on; None: nothing yet.
        earlier: What became of the questions of a run that goes on; None: it is a new one.
        stops: Whether each call that is not known to be read-only is asked about: the run is a plan.
        quotas: What the client may call in a period; None: as much as it likes.
        within: The rules of the run that has called this one: its user is asked as often by both together.
        flow: Follows the run's data; None: it may go anywhere.

    Attributes:
        grants: What the run has.
        asked: Counts how often the user was asked.
        allowed: Holds the numbers of the calls that the user has allowed.
    """

    def __init__(
        self,
        grants: Grants,
        approver: Approver | None,
        used: Counter[tuple[int, str]] | None = None,
        *,
        earlier: EarlierQuestions | None = None,
        stops: bool = False,
        quotas: Quotas | None = None,
        within: RunRules | None = None,
        flow: RunFlow | None = None,
    ) -> None:
        self._earlier = earlier = earlier or EarlierQuestions()
        self.grants = grants
        self._approver = approver
        self._used: Counter[tuple[int, str]] = Counter() if used is None else used
        self._asking: AbstractAsyncContextManager[object] = (
            nullcontext() if approver is None else asyncio.Lock()
        )
        self._verdicts = dict(earlier.verdicts)
        self._stops, self._quotas, self._within, self.flow = stops, quotas, within, flow
        self.asked = earlier.asked
        self.allowed: set[int] = set()
        self._waited = earlier.waited_ms / 1000
        self._open = 0
        self._since = 0.0
        self._nobody = False

    def of_child(self, grants: Grants, flow: RunFlow | None) -> RunRules:
        """Returns the rules of a script that the run calls: what they share is counted once, and what is the script's
        own begins anew with each call of it."""
        own = len(self.grants.layers)
        for key in [key for key in self._used if key[0] >= own]:
            del self._used[key]
        return RunRules(
            grants,
            self._approver,
            self._used,
            stops=self._stops,
            quotas=self._quotas,
            within=self,
            flow=flow,
        )

    @property
    def _most_ms(self) -> int:
        return int(WAITS * APPROVAL_SECONDS * 1000)

    def pause_ms(self, *, parks: bool) -> int:
        """Says how long the clock of the run, which `parks` or not, may stand still in all, in milliseconds."""
        may_wait = self._approver is not None or parks
        asks = self._stops or self.grants.may_ask or self.flow is not None
        return self._most_ms if may_wait and asks else 0

    @property
    def waited_ms(self) -> int:
        """Says how long the user was waited for, in milliseconds."""
        return int((self._waited + (time.monotonic() - self._since if self._open else 0.0)) * 1000)

    def parked(self, parked: Parked) -> Parked:
        """Returns a parked run with what whoever goes on with it must know of its rules."""
        # Calls that another process may make.
        allowed = self.allowed & {question.call for question in parked.questions if not question.holds_call}
        return replace(parked, allowed=tuple(allowed), asked=self.asked, waited_ms=self.waited_ms)

    async def admit(
        self,
        server: ServerEntry,
        tool: ToolEntry,
        arguments: Any,
        clock: RunClock,
        call_id: int = 0,
        parking: Parking | None = None,
    ) -> None:
        """Returns when the policy lets a call be sent.

        A call counts for its budgets and quotas when it is admitted this far, whatever the user then says: a script
        must not ask without end.

        Args:
            server: The tool's server.
            tool: The tool.
            arguments: The input.
            clock: The run's.
            call_id: The call's number in its run; 0 without a run.
            parking: Hears who waits, in a run that can be parked; None in others.

        Raises:
            CallDenied: It may not; it was not started.
        """
        server_id = server.server_id
        if self.grants.layers:
            self._check(server_id, tool, arguments)
            self._take_budget(server_id, tool)
        if self._quotas is not None and call_id not in self._earlier.waited:
            await self._quotas.take(server_id, tool)
        judged, flow = None, self.flow
        if flow is not None:
            judged = flow.rules.judge(server, tool, arguments, flow.label)
            if judged.then == "deny":
                why = f"the policy does not let data go there: {judged.why}"
                hint = "Do without this call, or make it in a script that reads nothing else."
                raise _denied("FLOW_DENIED", tool, why, hint)
            judged = judged if judged.then == "ask" else None
        # Most runs have no grants: not even asked, as each call passes here.
        may_ask = self._stops or tool.asked or self.grants.layers
        if judged is not None or (may_ask and self._is_asked(server_id, tool)):
            await self._ask(call_id, server, tool, arguments, clock, parking, judged)

    def recount(self, server: ServerEntry, tool: ToolEntry) -> None:
        """Counts a call for its budgets that was made before the run was parked."""
        for key, _ in self._wanted(server.server_id, tool):
            self._used[key] += 1

    # ---- inside --------------------------------------------------------------------------------------

    def _check(self, server_id: str, tool: ToolEntry, arguments: Any) -> None:
        refusal = self.grants.refusal(server_id, tool)
        if refusal is not None:
            # The run's catalog has no such tool; this is the second lock on the same door.
            raise _denied("NOT_GRANTED", tool, refusal.why, refusal.hint)
        allowance = Allowance(arguments)
        for layer in self.grants.layers:
            found = layer.violation(server_id, tool, arguments, allowance)
            if found is not None:
                why = f"the policy does not allow this input ({found})"
                raise _denied("ARGUMENTS_NOT_GRANTED", tool, why, "Pass an input that the policy allows.")

    def _is_asked(self, server_id: str, tool: ToolEntry) -> bool:
        if self._stops and effect_of(tool) != "read":
            return True
        return tool.asked or any(layer.asks_about(server_id, tool) for layer in self.grants.layers)

    def _wanted(self, server_id: str, tool: ToolEntry) -> list[tuple[tuple[int, str], int]]:
        return [
            ((index, pattern), most)
            for index, layer in enumerate(self.grants.layers)
            for pattern, most in layer.budgets(server_id, tool)
        ]

    def _take_budget(self, server_id: str, tool: ToolEntry) -> None:
        wanted = self._wanted(server_id, tool)
        for key, most in wanted:
            if self._used[key] >= most:
                why = f"the budget of this run for {key[1]} is {most} calls"
                raise _denied("BUDGET_USED_UP", tool, why, "Make fewer calls, or do the rest in another run.")
        for key, _ in wanted:
            self._used[key] += 1

    async def _ask(
        self,
        call_id: int,
        server: ServerEntry,
        tool: ToolEntry,
        arguments: Any,
        clock: RunClock,
        parking: Parking | None,
        judged: Judged | None = None,
    ) -> None:
        verdict, bound = self._verdicts.pop(call_id, None), 0.0
        if verdict is Verdict.ACCEPTED and judged is not None and not self._is_same(call_id):
            # The user has said yes when the run knew less than it does now.
            verdict = None
        if verdict is None:
            if parking is None and (self._approver is None or self._nobody):
                raise self._not_approved(tool, Verdict.CANNOT_ASK, judged=judged)
            self._open += 1
            if self._open == 1:
                self._since = time.monotonic()
            # The run's time stands still until there is an answer.
            clock.stop()
            try:
                verdict, bound = await self._answered(call_id, server, tool, arguments, parking, judged)
            finally:
                self._open -= 1
                if self._open == 0:
                    self._waited += time.monotonic() - self._since
                clock.go_on()
        if verdict is not Verdict.ACCEPTED:
            raise self._not_approved(tool, verdict, bound, judged)
        self.allowed.add(call_id)

    def _is_same(self, call_id: int) -> bool:
        """Says whether the run knows no more than when the user was asked about a call."""
        packed = self._earlier.labels.get(call_id)
        return packed is not None and self.flow is not None and self.flow.label.within(Label.unpack(packed))

    async def _answered(
        self,
        call_id: int,
        server: ServerEntry,
        tool: ToolEntry,
        arguments: Any,
        parking: Parking | None,
        judged: Judged | None,
    ) -> tuple[Verdict | None, float]:
        """Returns the answer, None when none came in time, and for how many seconds it was waited for."""
        async with self._asking:
            left = self._most_ms / 1000 - self._waited
            bound = min(APPROVAL_SECONDS, left)
            destructive = effect_of(tool) == "destructive"
            flow = None
            if self.flow is not None and judged is not None and not self._nobody:
                flow = await self.flow.question(server, tool, arguments, judged)
            names = server.server_id, tool.tool_name, destructive, arguments, bound, call_id
            question = Question(*names, flow=flow)
            if self._nobody:
                verdict = Verdict.CANNOT_ASK
            else:
                if (self._within or self).asked >= MAX_QUESTIONS or bound < MIN_QUESTION_SECONDS:
                    why = f"the user has been asked {self.asked} times in this run, which is all that is allowed"
                    raise _denied("TOO_MANY_QUESTIONS", tool, why, "Do the rest in another run.")
                self.asked += 1
                if self._within is not None:
                    self._within.asked += 1
                verdict = (
                    Verdict.LATER
                    if self._approver is None
                    else await asked_now(self._approver, question, parking)
                )
                if verdict is Verdict.ALWAYS:
                    verdict = Verdict.ACCEPTED
                    if flow is not None and self.flow is not None:
                        self.flow.rules.allow_always(flow.rule)
                # Where nobody is, another question would hold the run for as long again.
                self._nobody = self._approver is not None and verdict in (
                    Verdict.CANNOT_ASK,
                    Verdict.LATER,
                    None,
                )
        if parking is not None and verdict in (Verdict.CANNOT_ASK, Verdict.LATER):
            await parking.until_parked(question)
        return verdict, bound

    def _not_approved(
        self, tool: ToolEntry, verdict: Verdict | None, bound: float = 0.0, judged: Judged | None = None
    ) -> CallDenied:
        code, why, hint, summary = _NOT_APPROVED[verdict]
        # Who reads it knows no other reason to ask.
        why = why.format(bound=bound) + (f"; {judged.why}" if judged is not None and judged.why else "")
        if self._within is not None and code == _UNAVAILABLE[0]:
            hint = _IN_A_CHILD
        where = "askTools and autoApprove in the server's entry" if tool.asked else "cellblock.policy"
        return _denied(code, tool, why, hint.format(where=where), Fault.CALLER, summary)


async def asked_now(approver: Approver, question: Question, parking: Parking | None) -> Verdict | None:
    """Asks the user, of whose answer a run that can be parked hears; returns None where none has come in time."""
    if parking is not None:
        parking.waits(question)
    try:
        async with asyncio.timeout(question.timeout):
            return await approver(question)
    except TimeoutError:
        return None
    except Exception:
        logger.exception("the user cannot be asked")
        return Verdict.CANNOT_ASK
    finally:
        if parking is not None:
            parking.goes_on(question.id)


def _denied(
    code: str,
    tool: ToolEntry,
    why: str,
    hint: str,
    fault: Fault = Fault.SCRIPT,
    summary: str | None = None,
) -> CallDenied:
    message = f"{tool.export_name} was not called: {why}."
    return CallDenied(message, hint=hint, code=code, fault=fault, summary=summary)
