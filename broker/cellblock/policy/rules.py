"""Rules is the policy in one run: every call passes here before it is sent, and what is denied was certainly not
started."""

from __future__ import annotations

import asyncio
import logging
import time
from collections import Counter
from typing import Any, Final, Protocol

from cellblock.apart.raw import RawJson
from cellblock.base.errors import CallDenied, Fault
from cellblock.catalog.model import JsonSchema, ServerEntry, ToolEntry
from cellblock.config.policy import PolicySettings
from cellblock.policy.asking import Approver, Question, Verdict
from cellblock.policy.effects import effect_of
from cellblock.policy.grants import Grants
from cellblock.schemas.validation import Allowance

logger = logging.getLogger("cellblock.policy")

MIN_QUESTION_SECONDS: Final = 1.0
"""Sets the least time for an answer; a run with less time left for answers does not ask any more."""

_NOT_APPROVED: Final = {
    Verdict.DECLINED: (
        "APPROVAL_DECLINED",
        "the user has said no",
        "Do without this call; do not ask again for the same.",
    ),
    Verdict.CANCELLED: (
        "APPROVAL_CANCELLED",
        "the user has not chosen",
        "Ask the user in the conversation what is wanted.",
    ),
    Verdict.CANNOT_ASK: (
        "APPROVAL_UNAVAILABLE",
        "the user must approve it, and this client cannot ask (it offers no MCP elicitation, or nobody answers)",
        "Do without this call, use a client with elicitation, or change {where}.",
    ),
    None: (
        "APPROVAL_TIMEOUT",
        "the user has not answered within {bound:g} s",
        "Run the script again when the user is there.",
    ),
}
"""Maps what came of a question, None for no answer in time, to code, reason and hint of the refusal."""


class Clock(Protocol):
    """Is the wall clock of a run, which stands still while the user is asked."""

    def stop(self) -> None:
        """Stops the run's time."""
        ...

    def go_on(self) -> None:
        """Lets the run's time pass again."""
        ...


class RunRules:
    """Applies the policy to one run: its counters, and its questions, one at a time.

    Args:
        grants: What the run has.
        settings: The bounds of questions.
        approver: Asks the user; None where nobody can be asked.
        used: What counts for budgets already, and is counted on; None: nothing yet.
    """

    def __init__(
        self,
        grants: Grants,
        settings: PolicySettings,
        approver: Approver | None,
        used: Counter[tuple[int, str]] | None = None,
    ) -> None:
        self._grants = grants
        self._settings = settings
        self._approver = approver
        self._used: Counter[tuple[int, str]] = Counter() if used is None else used
        self._asking = asyncio.Lock()
        self.asked = 0
        """Counts how often the user was asked."""
        self._waited = 0.0
        self._nobody = False

    @property
    def pause_ms(self) -> int:
        """Says how long the run's clock may stand still in all, in milliseconds."""
        return self._settings.approval_total_ms if self._approver and self._grants.may_ask else 0

    @property
    def waited_ms(self) -> int:
        """Says how long the user was waited for, in milliseconds."""
        return int(self._waited * 1000)

    async def admit(self, server: ServerEntry, tool: ToolEntry, arguments: Any, clock: Clock) -> None:
        """Returns when a call may be sent.

        A call counts for its budgets when it is admitted this far, whatever the user then says: a script must not ask
        without end.

        Raises:
            CallDenied: It may not; it was not started.
        """
        server_id = server.server_id
        layers = self._grants.layers
        refusal = self._grants.refusal(server_id, tool)
        if refusal is not None:
            # The run's catalog has no such tool; this is the second lock on the same door.
            raise _denied("NOT_GRANTED", tool, refusal.why, refusal.hint)
        allowance = Allowance(arguments)
        for layer in layers:
            if isinstance(arguments, RawJson):
                # It was held against the schemas of all layers where it was read.
                found = arguments.refusal
            else:
                found = layer.violation(server_id, tool, arguments, allowance)
            if found is not None:
                why = f"the policy does not allow this input ({found})"
                raise _denied("ARGUMENTS_NOT_GRANTED", tool, why, "Pass an input that the policy allows.")
        self._take_budget(server_id, tool)
        if tool.asked or any(layer.asks_about(server_id, tool) for layer in layers):
            await self._ask(server_id, tool, arguments, clock)

    def schemas_for(self, server: ServerEntry, tool: ToolEntry) -> list[JsonSchema]:
        """Returns what inputs of a tool are held against, for whoever reads them where they are too large for
        `admit`."""
        return [
            schema for layer in self._grants.layers for schema in layer.schemas_for(server.server_id, tool)
        ]

    # ---- inside --------------------------------------------------------------------------------------

    def _take_budget(self, server_id: str, tool: ToolEntry) -> None:
        wanted = [
            ((index, pattern), most)
            for index, layer in enumerate(self._grants.layers)
            for pattern, most in layer.budgets(server_id, tool)
        ]
        for key, most in wanted:
            if self._used[key] >= most:
                why = f"the budget of this run for {key[1]} is {most} calls"
                raise _denied("BUDGET_USED_UP", tool, why, "Make fewer calls, or do the rest in another run.")
        for key, _ in wanted:
            self._used[key] += 1

    async def _ask(self, server_id: str, tool: ToolEntry, arguments: Any, clock: Clock) -> None:
        if self._approver is None:
            raise _not_approved(tool, Verdict.CANNOT_ASK)
        async with self._asking:
            if self._nobody:
                raise _not_approved(tool, Verdict.CANNOT_ASK)
            left = self._settings.approval_total_ms / 1000 - self._waited
            bound = min(self._settings.approval_timeout_ms / 1000, left)
            if self.asked >= self._settings.max_questions or bound < MIN_QUESTION_SECONDS:
                why = f"the user has been asked {self.asked} times in this run, which is all that is allowed"
                raise _denied("TOO_MANY_QUESTIONS", tool, why, "Do the rest in another run.")
            self.asked += 1
            question = Question(server_id, tool.tool_name, effect_of(tool) == "destructive", arguments, bound)
            verdict = await self._answered(self._approver, question, clock)
        if verdict is not Verdict.ACCEPTED:
            # Where nobody is, another question would hold the run for as long again.
            self._nobody = verdict in (Verdict.CANNOT_ASK, None)
            raise _not_approved(tool, verdict, bound)

    async def _answered(self, ask: Approver, question: Question, clock: Clock) -> Verdict | None:
        """Returns the answer, or None when none came in time. The run's clock stands still meanwhile."""
        began = time.monotonic()
        clock.stop()
        try:
            async with asyncio.timeout(question.timeout):
                return await ask(question)
        except TimeoutError:
            return None
        except Exception:
            logger.exception("the user cannot be asked")
            return Verdict.CANNOT_ASK
        finally:
            self._waited += time.monotonic() - began
            clock.go_on()


def _denied(code: str, tool: ToolEntry, why: str, hint: str, fault: Fault = Fault.SCRIPT) -> CallDenied:
    return CallDenied(f"{tool.export_name} was not called: {why}.", hint=hint, code=code, fault=fault)


def _not_approved(tool: ToolEntry, verdict: Verdict | None, bound: float = 0.0) -> CallDenied:
    code, why, hint = _NOT_APPROVED[verdict]
    where = "askTools and autoApprove in the server's entry" if tool.asked else "cellblock.policy"
    return _denied(code, tool, why.format(bound=bound), hint.format(where=where), Fault.CALLER)
