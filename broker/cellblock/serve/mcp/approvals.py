"""Asks the user by MCP elicitation whether a call may be made."""

from __future__ import annotations

import contextlib
import json
import logging
import secrets
from collections.abc import Callable, Iterable
from functools import cache
from typing import Any, Final

import mcp_types as types
from pydantic import TypeAdapter

from cellblock.base.questions import SHOWN_BYTES, Answer, Given, ParkedQuestion, QuestionId
from cellblock.base.terminal import spelled_out
from cellblock.run.policy.asking import Approver, FlowQuestion, Question, Verdict, flow_of
from cellblock.run.questions import key_of
from cellblock.run.results import compact
from cellblock.serve.mcp.requests_back import Ask
from cellblock.tools.schemas.replies import METHODS

logger = logging.getLogger("cellblock.serve")

MAX_INPUT_CHARS: Final = 1_500
"""Bounds what a question shows of a call's input; the user is told how much is not shown."""

MAX_FLOW_CHARS: Final = SHOWN_BYTES
"""Bounds the same where the question is what the input tells to whom."""

FOLD_CHARS: Final = 120
"""Folds such an input, so that nothing of it is out of sight."""

MAX_NAME_CHARS: Final = 200

NO_FIELDS: Final[dict[str, Any]] = {"type": "object", "properties": {}}
"""Describes the form, which has no fields: whether it is accepted is the answer."""

_ALWAYS: Final = "always"
ALWAYS_FIELD: Final[dict[str, Any]] = {
    "type": "object",
    "properties": {_ALWAYS: {"type": "boolean", "title": "Allow this always", "default": False}},
}
"""Describes the form of a question about a flow."""

APPROVAL: Final = "approval"
"""Names the question whether a call without a run may be made: its server has not got the call yet."""

_KEY: Final = "question-"
_ANSWERS: Final[dict[str, Answer]] = {"accept": "accepted", "decline": "declined", "cancel": "cancelled"}


def question_text(question: Question) -> str:
    """Words the question for people. Names and input come from servers and scripts: nothing in them can hide a part."""
    said = None if question.login is None else question.login.said
    asked, flow = compact(question.arguments), question.flow
    return _text(question.server_id, question.tool_name, asked, said, flow, destructive=question.destructive)


def parked_text(question: ParkedQuestion) -> str:
    """Words the question of a parked run for people."""
    is_cut = question.bytes > len(question.input.encode("utf-8", "surrogatepass"))
    more = f"… ({question.bytes:,} bytes in all)" if is_cut else ""
    said = question.said if question.kind == "login" else None
    asked, flow, destroys = question.input, flow_of(question), question.destructive
    return _text(question.server, question.tool, asked, said, flow, more, destructive=destroys)


def _text(
    server: str,
    name: str,
    asked: str,
    said: str | None,
    flow: FlowQuestion | None,
    more: str = "",
    *,
    destructive: bool,
) -> str:
    tool = f"{server}.{_visible(name, MAX_NAME_CHARS)}"
    if said is not None:
        return (
            f"A script's call of {tool} needs a login: {_visible(said, MAX_INPUT_CHARS)}\n"
            "Accept when you have logged in."
        )
    destroys = ", which can destroy data" if destructive else ""
    lines = [f"A script wants to call {tool}{destroys}. Allow this call?"]
    shown = _visible(asked, MAX_INPUT_CHARS if flow is None else MAX_FLOW_CHARS) + more
    lines += [f"Its input: {shown}"] if flow is None else _with_flow(shown, flow)
    return "\n".join(lines)


def _with_flow(shown: str, flow: FlowQuestion) -> list[str]:
    """Says what would go where. The input is folded, and what was found of results in it is marked."""
    # What a fold begins with is no line of ours.
    folded = "\n  ".join(shown[at : at + FOLD_CHARS] for at in range(0, len(shown), FOLD_CHARS))
    for text in flow.found:
        # A mark that a fold has cut in two is told below.
        marked = spelled_out(text)
        folded = folded.replace(marked, f"⟦{marked}⟧")
    lines = [_visible(flow.said, MAX_INPUT_CHARS), f"Its input: {folded}"]
    if flow.found:
        quoted = ", ".join(f"“{_visible(text, MAX_NAME_CHARS)}”" for text in flow.found)
        lines.append(f"Found in it of what this run has read: {quoted}")
    if flow.rule:
        lines.append(
            f"To allow this always, cellblock.policy.flows has: {_visible(flow.rule, MAX_FLOW_CHARS)}"
        )
    return lines


def parked_requests(
    questions: Iterable[ParkedQuestion], can_answer: Callable[[types.InputRequest], bool]
) -> types.InputRequests:
    """Makes what a client is asked for its parked run: what servers ask, as they do, and forms for the rest. What
    `can_answer` denies is left out."""
    made = {key_of(question.id): _request(question, can_answer) for question in questions}
    return {key: request for key, request in made.items() if can_answer(request)}


def _request(
    question: ParkedQuestion, can_answer: Callable[[types.InputRequest], bool]
) -> types.InputRequest:
    if not question.is_of_server:
        page = json.loads(question.request).get("page") if question.kind == "login" else None
        fields = NO_FIELDS if flow_of(question) is None else ALWAYS_FIELD
        return _asking(parked_text(question), page, can_answer, fields)
    # It was a request when it was written down, redacted and in the server's name.
    return _request_model().validate_python(
        {"method": METHODS[question.kind], "params": json.loads(question.request)}, by_name=False
    )


@cache
def _request_model() -> TypeAdapter[types.InputRequest]:
    return TypeAdapter(types.InputRequest)


def answers_in(responses: types.InputResponses) -> dict[QuestionId, Given]:
    """Returns what a client says to questions; what names none is left out."""
    found: dict[QuestionId, Given] = {}
    for key, answer in responses.items():
        with contextlib.suppress(ValueError):
            question = QuestionId.parse(key.removeprefix(_KEY) if key.startswith(_KEY) else "")
            if question.nth == 0 and isinstance(answer, types.ElicitResult):
                found[question] = _said(answer)
            else:
                found[question] = answer.model_dump(mode="json", by_alias=True, exclude_none=True)
    return found


def _asking(
    text: str,
    page: str | None,
    can_answer: Callable[[types.InputRequest], bool],
    fields: dict[str, Any] = NO_FIELDS,
) -> types.ElicitRequest:
    """Makes a request that leads the user to a page, where there is one and the client can; else a form."""
    if page is not None:
        # Clients name it when they say that it is over; we never do.
        params = types.ElicitRequestURLParams(
            message=text, url=page, elicitation_id=secrets.token_urlsafe(16)
        )
        if can_answer(request := types.ElicitRequest(params=params)):
            return request
    return types.ElicitRequest(params=types.ElicitRequestFormParams(message=text, requested_schema=fields))


def _visible(text: str, most: int) -> str:
    """Shows invisible characters as escapes, wide gaps as their width, and what is over `most` as its length."""
    rest, shown = len(text) - most, spelled_out(text[:most])
    return f"{shown}… ({rest} more characters are not shown)" if rest > 0 else shown


def _said(answer: types.ElicitResult) -> Answer:
    """Reads what is said to a form of ours; always is for those that offer it."""
    is_always = answer.action == "accept" and (answer.content or {}).get(_ALWAYS) is True
    return "always" if is_always else _ANSWERS[answer.action]


def elicitor(ask: Ask, can_answer: Callable[[types.InputRequest], bool]) -> Approver:
    """Asks the user through the client of a run, which has said what it can answer."""

    async def approve(question: Question) -> Verdict:
        page = question.login.page if question.login is not None else None
        fields = NO_FIELDS if question.flow is None else ALWAYS_FIELD
        request = _asking(question_text(question), page, can_answer, fields)
        key = key_of(question.id) if question.call_id else APPROVAL
        answer = await ask(request, types.ElicitResult, question.timeout, key=key)
        if isinstance(answer, types.ErrorData):
            logger.info("the client does not ask its user: %s", answer.code)
            return Verdict.CANNOT_ASK
        if not isinstance(answer, types.ElicitResult):
            return Verdict.CANCELLED
        return Verdict(_ANSWERS[answer.action] if question.flow is None else _said(answer))

    return approve
