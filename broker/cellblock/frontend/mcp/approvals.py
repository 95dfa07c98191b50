"""Asks the user by MCP elicitation whether a call may be made."""

from __future__ import annotations

import json
import logging
import re
from typing import Any, Final

import mcp_types as types

from cellblock.apart.raw import RawJson
from cellblock.base.visible_text import is_visible
from cellblock.frontend.mcp.requests_back import Ask
from cellblock.policy.asking import Approver, Question, Verdict

logger = logging.getLogger("cellblock.frontend")

MAX_INPUT_CHARS: Final = 1_500
"""Bounds what a question shows of a call's input; the user is told how much is not shown."""

MAX_NAME_CHARS: Final = 200

_GAP: Final = re.compile(" {17,}")
"""Finds more spaces than a text has in a row by itself: what follows would stand where nobody looks."""

NO_FIELDS: Final[dict[str, Any]] = {"type": "object", "properties": {}}
"""Describes the form, which has no fields: whether it is accepted is the answer."""

_VERDICTS: Final = {
    "accept": Verdict.ACCEPTED,
    "decline": Verdict.DECLINED,
    "cancel": Verdict.CANCELLED,
}


def question_text(question: Question) -> str:
    """Words the question for people. Names and input come from servers and scripts: nothing in them can hide a part."""
    tool = f"{question.server_id}.{_visible(question.tool_name, MAX_NAME_CHARS)}"
    if isinstance(question.arguments, RawJson):
        shown = _visible(question.arguments.beginning(MAX_INPUT_CHARS), MAX_INPUT_CHARS)
        shown += f"… ({len(question.arguments.raw):,} bytes in all)"
    else:
        shown = _visible(json.dumps(question.arguments, ensure_ascii=False), MAX_INPUT_CHARS)
    destroys = ", which can destroy data" if question.destructive else ""
    return f"A script wants to call {tool}{destroys}. Allow this call?\nIts input: {shown}"


def _visible(text: str, most: int) -> str:
    """Shows invisible characters as escapes, wide gaps as their width, and what is over `most` as its length."""
    rest = len(text) - most
    shown = "".join(
        character if is_visible(character) else character.encode("unicode_escape").decode("ascii")
        for character in text[:most]
    )
    shown = _GAP.sub(lambda found: f"\\x20{{{len(found[0])}}}", shown)
    return f"{shown}… ({rest} more characters are not shown)" if rest > 0 else shown


def elicitor(ask: Ask) -> Approver:
    """Asks the user through the client of a run."""

    async def approve(question: Question) -> Verdict:
        form = types.ElicitRequestFormParams(message=question_text(question), requested_schema=NO_FIELDS)
        answer = await ask(types.ElicitRequest(params=form), types.ElicitResult, question.timeout)
        if isinstance(answer, types.ErrorData):
            logger.info("the client does not ask its user: %s", answer.code)
            return Verdict.CANNOT_ASK
        return _VERDICTS[answer.action] if isinstance(answer, types.ElicitResult) else Verdict.CANCELLED

    return approve
