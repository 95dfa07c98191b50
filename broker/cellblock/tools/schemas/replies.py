"""Replies are what is said to questions: whether one fits what was asked, and what a server gets of it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any, Final

import mcp_types as types
from pydantic import BaseModel, TypeAdapter, ValidationError

from cellblock.base.errors import InvalidRequest
from cellblock.base.json import is_object
from cellblock.base.questions import Answer, Given, ParkedQuestion, QuestionKind
from cellblock.tools.schemas.validation import InputValidator

MAX_REPLY_BYTES: Final = 256 * 1024
"""Bounds one answer to a server: a model's text fits, and the row of the run holds it."""

DECLINED: Final = "The user has declined."

METHODS: Final[dict[QuestionKind, str]] = {
    "elicitation": "elicitation/create",
    "sampling": "sampling/createMessage",
    "roots": "roots/list",
}
"""Names the request of MCP by which a server asks."""

KINDS: Final[dict[str, QuestionKind]] = {method: kind for kind, method in METHODS.items()}

_ACTIONS: Final[dict[Answer, str]] = {"accepted": "accept", "declined": "decline", "cancelled": "cancel"}
_WORDS: Final[dict[str, Answer]] = {action: word for word, action in _ACTIONS.items()}


class WrongAnswer(InvalidRequest):
    """Tells that an answer does not fit its question, which stays open; nothing was written down."""


@cache
def _results() -> Mapping[QuestionKind, TypeAdapter[Any]]:
    return {
        "elicitation": TypeAdapter(types.ElicitResult),
        "sampling": TypeAdapter(types.CreateMessageResult | types.CreateMessageResultWithTools),
        "roots": TypeAdapter(types.ListRootsResult),
    }


def checked(question: ParkedQuestion, given: Given) -> Given:
    """Returns an answer in the form that is written down. Raises WrongAnswer: It does not fit the question."""
    if given == "always":
        given = "accepted"
    if not question.is_of_server:
        word = given if isinstance(given, str) else _WORDS.get(str(given.get("action")))
        if word is None:
            raise _wrong(question, "it is answered by yes or no")
        return word
    if isinstance(given, str):
        if question.kind != "elicitation":
            if given == "accepted":
                raise _wrong(question, "it is answered by the client itself; it can only be refused")
            return given
        given = {"action": _ACTIONS[given], **({"content": {}} if _accepts_form(question, given) else {})}
    try:
        size = len(json.dumps(given))
        result = _results()[question.kind].validate_python(given, by_name=False)
    except (ValidationError, TypeError, ValueError, RecursionError):
        raise _wrong(question, "it is no result as MCP has it") from None
    if size > MAX_REPLY_BYTES:
        raise _wrong(question, f"it has {size:,} bytes, over {MAX_REPLY_BYTES:,}")
    if isinstance(result, types.ElicitResult) and (said := misfit(_params(question), result)) is not None:
        raise _wrong(question, said)
    return given


def misfit(params: Mapping[str, Any], result: types.ElicitResult) -> str | None:
    """Says why the content of a form is not what its schema asks for, in half a sentence; None where it is. What cannot
    be checked is the server's to judge.

    Args:
        params: Those of the elicitation, as MCP has them.
        result: The answer.
    """
    schema = params.get("requestedSchema")
    if result.action != "accept" or not is_object(schema):
        return None
    found = InputValidator(schema, label="a form", subject="an answer").check(result.content or {})
    return None if found is None else found.sentence.removesuffix(".")


def result_of(kind: QuestionKind, given: Given) -> BaseModel | types.ErrorData:
    """Returns the result that goes to the server which has asked."""
    if isinstance(given, str) and kind != "elicitation":
        return types.ErrorData(code=types.INVALID_REQUEST, message=DECLINED)
    if isinstance(given, str):
        given = {"action": _ACTIONS[given]}
    return _results()[kind].validate_python(given, by_name=False)


def _params(question: ParkedQuestion) -> Mapping[str, Any]:
    found: object = json.loads(question.request)
    return found if is_object(found) else {}


def _accepts_form(question: ParkedQuestion, given: str) -> bool:
    return given == "accepted" and "requestedSchema" in _params(question)


def _wrong(question: ParkedQuestion, why: str) -> WrongAnswer:
    return WrongAnswer(
        f"The answer to question {question.id}, of {question.server}.{question.tool}, does not fit: {why}. The "
        "question is still open.",
        hint="Answer it again as its form says, or decline it.",
    )
