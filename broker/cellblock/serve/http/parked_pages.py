"""Parked_pages answers what is asked about runs that wait for a person, and takes what the person says to them.

Who may decide is the gate's to say. The names in an answer and its inputs come from scripts and servers: whoever shows
them shows text.
"""

from __future__ import annotations

import json
import logging
from dataclasses import dataclass
from http import HTTPStatus
from typing import Final

from starlette.responses import Response

from cellblock.base.database import StoreError
from cellblock.base.json import is_array, is_object
from cellblock.base.questions import Answer, QuestionId
from cellblock.serve.http.page_parts import json_page, text_page
from cellblock.serve.http.waiting_runs import Form, NotAnswered, NotAsked, WaitingRuns

logger = logging.getLogger("cellblock.serve")

MAX_BODY_BYTES: Final = 16 * 1024
"""Bounds what is read of a decision: 1,000 numbers fit, or what a person types into a form."""

ANSWERS: Final[dict[str, Answer]] = {"approve": "accepted", "deny": "declined"}
"""Maps the last words of paths to the answer that they give to each call."""

CANCEL: Final = "cancel"


@dataclass(frozen=True, slots=True)
class ParkedPages:
    """Answers the requests about parked runs, by path.

    Args:
        runs: The runs that wait.
        shows_inputs: Whether inputs are shown to those who may not decide.
    """

    runs: WaitingRuns
    shows_inputs: bool = False

    async def listed(self, by: str | None) -> Response:
        """Lists the parked runs.

        Args:
            by: Who may decide, and so sees all that there is to decide; None: somebody who only looks.
        """
        try:
            runs = await self.runs.waiting(inputs=self.shows_inputs or by is not None)
        except StoreError as error:
            return json_page({"runs": [], "decides": by is not None, "error": str(error)})
        return json_page({"runs": runs, "decides": by is not None})

    async def decided(self, path: str, by: str | None, body: bytes) -> Response:
        """Passes on what a person decides about a parked run.

        Args:
            path: The run and the decision, as `ID/approve`.
            by: As for `listed`.
            body: JSON; `calls` has the names of the questions, without it all that wait are meant; `form` what is
                filled in where a server asks.
        """
        run_id, _, word = path.partition("/")
        if by is None:
            return Response(None, HTTPStatus.FORBIDDEN)
        if not run_id or (word not in ANSWERS and word != CANCEL):
            return Response(None, HTTPStatus.NOT_FOUND)
        try:
            calls, form = _decision_in(body)
        except ValueError:
            return Response(None, HTTPStatus.BAD_REQUEST)
        try:
            if word == CANCEL:
                if calls is not None or form is not None:
                    # It would end the other calls as well.
                    return Response(None, HTTPStatus.BAD_REQUEST)
                done = {"id": run_id} if await self.runs.cancel(run_id, by) else None
            else:
                done = await self.runs.answer(run_id, ANSWERS[word], calls, by, form)
        except NotAsked:
            return Response(None, HTTPStatus.CONFLICT)
        except NotAnswered as error:
            return text_page(HTTPStatus.UNPROCESSABLE_ENTITY, str(error).encode("utf-8", "replace"))
        except StoreError as error:
            logger.warning("a parked run cannot be reached: %s", error)
            return Response(None, HTTPStatus.SERVICE_UNAVAILABLE)
        return Response(None, HTTPStatus.NOT_FOUND) if done is None else json_page(done)


def _decision_in(body: bytes) -> tuple[list[QuestionId] | None, Form | None]:
    """Returns the questions that a decision names, and the form that is filled in; None where it has none. Raises
    ValueError."""
    try:
        given: object = json.loads(body) if body.strip() else {}
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not is_object(given) or not given.keys() <= {"calls", "form"}:
        raise ValueError("no object with calls")
    form: object = given.get("form")
    if form is not None and not is_object(form):
        raise ValueError("a form is an object")
    if "calls" not in given:
        return None, form
    calls: object = given["calls"]
    if not is_array(calls) or not calls:
        raise ValueError("calls are no list")
    return [_question(name) for name in calls], form


def _question(name: object) -> QuestionId:
    # A number is a call that waits to be allowed.
    if type(name) not in (int, str):
        raise ValueError("no name of a question")
    return QuestionId.parse(str(name))
