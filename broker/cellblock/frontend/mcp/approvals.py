"""Asks the user by MCP elicitation whether a call may be made."""

from __future__ import annotations

import json
import logging
import re
from collections.abc import Iterable
from typing import Any, Final

import mcp_types as types

from cellblock.apart.raw import RawJson
from cellblock.base.visible_text import spelled_out
from cellblock.frontend.mcp.requests_back import Ask
from cellblock.journal.parked import Answer, ParkedQuestion
from cellblock.policy.asking import Approver, Question, Verdict

logger = logging.getLogger("cellblock.frontend")

MAX_INPUT_CHARS: Final = 1_500
"""Bounds what a question shows of a call's input; the user is told how much is not shown."""

MAX_NAME_CHARS: Final = 200

NO_FIELDS: Final[dict[str, Any]] = {"type": "object", "properties": {}}
"""Describes the form, which has no fields: whether it is accepted is the answer."""

_KEY: Final = "question-"
_IS_KEY: Final = re.compile(_KEY + r"[0-9]{1,10}")
"""Matches the names of questions about calls."""

_VERDICTS: Final = {
    "accept": Verdict.ACCEPTED,
    "decline": Verdict.DECLINED,
    "cancel": Verdict.CANCELLED,
}


def question_text(question: Question) -> str:
    """Words the question for people. Names and input come from servers and scripts: nothing in them can hide a part."""
    if isinstance(question.arguments, RawJson):
        shown = _visible(question.arguments.beginning(MAX_INPUT_CHARS), MAX_INPUT_CHARS)
        shown += f"… ({len(question.arguments.raw):,} bytes in all)"
    else:
        shown = _visible(json.dumps(question.arguments, ensure_ascii=False), MAX_INPUT_CHARS)
    return _text(question.server_id, question.tool_name, shown, destructive=question.destructive)


def parked_text(question: ParkedQuestion) -> str:
    """Words the question of a parked run likewise."""
    shown = _visible(question.input, MAX_INPUT_CHARS)
    if question.bytes > len(question.input.encode("utf-8", "surrogatepass")):
        shown += f"… ({question.bytes:,} bytes in all)"
    return _text(question.server, question.tool, shown, destructive=question.destructive)


def parked_requests(questions: Iterable[ParkedQuestion]) -> types.InputRequests:
    """Makes the forms with which a client is asked what its parked run waits for."""
    return {
        _key(question.call): types.ElicitRequest(params=_form(parked_text(question)))
        for question in questions
    }


def answers_in(responses: types.InputResponses) -> dict[int, Answer]:
    """Returns what a client says to questions about calls, by the numbers of the calls."""
    return {
        int(key.removeprefix(_KEY)): (
            "accepted"
            if answer.action == "accept"
            else "declined"
            if answer.action == "decline"
            else "cancelled"
        )
        for key, answer in responses.items()
        if isinstance(answer, types.ElicitResult) and _IS_KEY.fullmatch(key)
    }


def _key(call_id: int) -> str:
    return f"{_KEY}{call_id}"


def _form(text: str) -> types.ElicitRequestFormParams:
    return types.ElicitRequestFormParams(message=text, requested_schema=NO_FIELDS)


def _text(server_id: str, tool_name: str, shown: str, *, destructive: bool) -> str:
    destroys = ", which can destroy data" if destructive else ""
    tool = f"{server_id}.{_visible(tool_name, MAX_NAME_CHARS)}"
    return f"A script wants to call {tool}{destroys}. Allow this call?\nIts input: {shown}"


def _visible(text: str, most: int) -> str:
    """Shows invisible characters as escapes, wide gaps as their width, and what is over `most` as its length."""
    rest, shown = len(text) - most, spelled_out(text[:most])
    return f"{shown}… ({rest} more characters are not shown)" if rest > 0 else shown


def elicitor(ask: Ask) -> Approver:
    """Asks the user through the client of a run."""

    async def approve(question: Question) -> Verdict:
        request = types.ElicitRequest(params=_form(question_text(question)))
        # Of a call without a run, any name will do: it is not parked.
        key = _key(question.call_id) if question.call_id else ""
        answer = await ask(request, types.ElicitResult, question.timeout, key=key)
        if isinstance(answer, types.ErrorData):
            logger.info("the client does not ask its user: %s", answer.code)
            return Verdict.CANNOT_ASK
        return _VERDICTS[answer.action] if isinstance(answer, types.ElicitResult) else Verdict.CANCELLED

    return approve
