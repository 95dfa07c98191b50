"""Shows the runs of a broker that wait for a person, without the configuration's secrets, and takes what the person
says.

The names in an answer and its inputs come from scripts and servers: whoever shows them shows text.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from http import HTTPStatus
from typing import TYPE_CHECKING, Annotated, Any, Final

from pydantic import BaseModel, ConfigDict, Field

from cellblock.base.database import StoreError
from cellblock.base.json import is_array, is_object
from cellblock.base.questions import SHOWN_BYTES, Answer, Given, ParkedQuestion, QuestionId
from cellblock.base.terminal import spelled_out
from cellblock.run.events import Decision, RunEvents
from cellblock.run.policy.asking import flow_of
from cellblock.serve.http.refusal import Refused
from cellblock.tools.schemas.replies import WrongAnswer

if TYPE_CHECKING:
    from cellblock.record.parked_runs import ParkedRuns
    from cellblock.record.views import ParkedRun

logger = logging.getLogger("cellblock.serve")

MAX_FIELDS: Final = 50
"""Bounds the fields that the page has of one form."""

MAX_SHOWN: Final = 100
"""Bounds the runs that the page lists."""

MAX_BODY_BYTES: Final = 16 * 1024
"""Bounds what is read of a decision: 1,000 numbers fit, or what a person types into a form."""

ANSWERS: Final[dict[str, Answer]] = {"approve": "accepted", "deny": "declined"}
"""Maps the last words of paths to the answer that they give to each call."""

YES: Final[tuple[Answer, ...]] = ("accepted", "always")

CANCEL: Final = "cancel"

Redacted = Callable[[Any], Any]

Form = dict[str, Any]
"""Holds the fields of a form with which a server asks."""


class _Decision(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True)

    calls: Annotated[list[int | str], Field(min_length=1)] = []
    form: Form | None = None
    always: bool = False


class NotAnswered(Exception):
    """Tells that a decision does not answer what a server asks: nothing was done."""


class WaitingRuns:
    """Shows parked runs, and takes decisions about them.

    Args:
        runs: The parked runs.
        events: Hears of each decision.
        redacting: Gives what takes the secrets of the configuration in force out of what is shown.
        shows_inputs: Whether inputs are shown to those who may not decide.
    """

    def __init__(
        self,
        runs: ParkedRuns,
        events: RunEvents,
        redacting: Callable[[], Redacted],
        *,
        shows_inputs: bool = False,
    ) -> None:
        self._runs, self._events, self._redacting = runs, events, redacting
        self._shows_inputs = shows_inputs

    async def listed(self, by: str | None) -> dict[str, Any]:
        """Lists the parked runs for a page.

        Args:
            by: Who may decide, and so sees all that there is to decide; None: somebody who only looks.
        """
        decides = by is not None
        try:
            runs = await self.waiting(inputs=self._shows_inputs or decides)
        except StoreError as error:
            return {"runs": [], "decides": decides, "error": str(error)}
        return {"runs": runs, "decides": decides}

    async def decided(self, path: str, by: str, body: bytes) -> dict[str, Any]:
        """Passes on what a person decides about a parked run, and says what it has done.

        Args:
            path: The run and the decision, as `ID/approve`.
            by: Who that is.
            body: JSON; `calls` has the names of the questions, without it all that wait are meant; `form` what is
                filled in where a server asks; `always` is true where a yes is for all like it.

        Raises:
            Refused: It is malformed, or of no run that waits so.
            NotAnswered: It does not answer what a server asks.
        """
        run_id, _, word = path.partition("/")
        if not run_id or (word not in ANSWERS and word != CANCEL):
            raise Refused(HTTPStatus.NOT_FOUND)
        try:
            given = _Decision.model_validate_json(body.strip() or b"{}")
            # A number is a call that waits to be allowed.
            calls = [QuestionId.parse(str(name)) for name in given.calls] or None
        except ValueError:
            raise Refused(HTTPStatus.BAD_REQUEST) from None
        form = given.form
        if word == CANCEL and (calls is not None or form is not None):
            # It would end the other calls as well.
            raise Refused(HTTPStatus.BAD_REQUEST)
        try:
            if word == CANCEL:
                done = {"id": run_id} if await self.cancel(run_id, by) else None
            else:
                answer: Answer = "always" if given.always and word == "approve" else ANSWERS[word]
                done = await self.answer(run_id, answer, calls, by, form)
        except StoreError as error:
            logger.warning("a parked run cannot be reached: %s", error)
            raise Refused(HTTPStatus.SERVICE_UNAVAILABLE) from None
        if done is None:
            raise Refused(HTTPStatus.NOT_FOUND)
        return done

    async def waiting(self, *, inputs: bool) -> list[dict[str, Any]]:
        """Returns the newest of all clients; `inputs` says whether with what is to be sent. Raises StoreError."""
        redacted = self._redacting()
        return [
            _shown(run, redacted, inputs=inputs)
            for run in await self._runs.waiting(limit=MAX_SHOWN)
            if run.questions
        ]

    async def answer(
        self,
        run_id: str,
        answer: Answer,
        calls: Sequence[QuestionId] | None,
        by: str,
        form: Form | None = None,
    ) -> dict[str, Any] | None:
        """Answers questions of a run, all that are open where `calls` is None; says which, and which are left. None
        where no such run waits. `form` has the fields of the one question of a server that is answered.

        Raises:
            Refused: One of the calls does not wait, or no longer.
            NotAnswered: One of them waits for more than a yes.
            StoreError: The answer is not written down.
        """
        found = await self._runs.questions(run_id)
        if found is None:
            return None
        waiting = [question.id for question in found[1]]
        wanted = waiting if calls is None else sorted(set(calls))
        if not wanted or not set(wanted) <= set(waiting):
            raise Refused(HTTPStatus.CONFLICT)
        given: Given = answer
        if form is not None:
            if len(wanted) > 1 or answer not in YES:
                raise NotAnswered("A form answers one question.")
            given = {"action": "accept", "content": form}
        try:
            run = await self._runs.answer(run_id, dict.fromkeys(wanted, given))
        except WrongAnswer as error:
            raise NotAnswered(error.message) from None
        if run is None:
            return None
        told = tuple(question.call for question in found[1] if question.id in wanted)
        verdict = "accepted" if answer in YES else answer
        self._tell(Decision(run=run_id, verdict=verdict, calls=told, by=by))
        left = [str(question.id) for question in run.questions]
        return {"id": run_id, "verdict": verdict, "calls": [str(one) for one in wanted], "left": left}

    async def cancel(self, run_id: str, by: str) -> bool:
        """Ends a parked run; says whether there was one. Raises StoreError."""
        is_done = await self._runs.cancel(run_id)
        if is_done:
            self._tell(Decision(run=run_id, verdict="cancelled", calls=(), by=by))
        return is_done

    def _tell(self, decision: Decision) -> None:
        calls = ", ".join(map(str, decision.calls)) or "all"
        logger.info("run %s: calls %s %s by %s", decision.run, calls, decision.verdict, decision.by)
        self._events.decided(decision)


def _shown(run: ParkedRun, redacted: Redacted, *, inputs: bool) -> dict[str, Any]:
    return {
        "id": run.id,
        "principal": spelled_out(run.principal),
        "since": run.began,
        "until": run.expires,
        "questions": [_question(question, redacted, inputs=inputs) for question in run.questions],
    }


def _question(question: ParkedQuestion, redacted: Redacted, *, inputs: bool) -> dict[str, Any]:
    shown = {
        "call": question.call,
        "number": str(question.id),
        "kind": question.kind,
        "server": spelled_out(redacted(question.server)),
        "tool": spelled_out(redacted(question.tool)),
        "destructive": question.destructive,
        "bytes": question.bytes,
    }
    if not inputs:
        return shown
    said = spelled_out(redacted(question.said))
    shown |= {**_input(question, redacted), "said": said, "fields": _fields(question, redacted)}
    if (flow := flow_of(question)) is not None:
        shown |= {"found": [spelled_out(redacted(text)) for text in flow.found], "rule": redacted(flow.rule)}
    return shown


def _fields(question: ParkedQuestion, redacted: Redacted) -> list[dict[str, Any]]:
    """Returns the fields of the form with which a server asks; those of any other question are none."""
    asked: object = json.loads(question.request) if question.kind == "elicitation" else None
    schema: object = asked.get("requestedSchema") if is_object(asked) else None
    fields: object = schema.get("properties") if is_object(schema) else None
    if not is_object(schema) or not is_object(fields):
        return []
    required: object = schema.get("required")
    shown: list[dict[str, Any]] = []
    for name, field in [*fields.items()][:MAX_FIELDS]:
        about = field if is_object(field) else {}
        options: object = about.get("enum")
        shown.append(
            {
                "name": name,
                "title": spelled_out(redacted(str(about.get("title") or name))),
                "type": str(about.get("type")),
                "options": [str(one) for one in options] if is_array(options) else None,
                "required": is_array(required) and name in required,
            }
        )
    return shown


def _input(question: ParkedQuestion, redacted: Redacted) -> dict[str, Any]:
    """Returns an input as it is shown, and whether that is all of it."""
    text: str = redacted(question.input)
    if question.bytes > SHOWN_BYTES:
        # A secret that is cut in two is not known for one: it can only stand at the end, which is left out.
        return {"input": spelled_out(text[: len(text) // 2]), "whole": False}
    try:
        value = json.loads(text)
        if (without := redacted(value)) != value:
            # A secret that JSON writes with escapes.
            text = json.dumps(without, ensure_ascii=False)
    except (ValueError, RecursionError):
        pass
    return {"input": spelled_out(text), "whole": True}
