"""Asks the user whether a call may be made: asked of the user by MCP elicitation, as a request of ours while a run goes
on, or, in the protocol of 2026-07-28, by an interim result of the call (`held_runs`)."""

from __future__ import annotations

import json
import logging
import re
from typing import Any, Final

import mcp_types as types
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from cellblock.apart.raw import RawJson
from cellblock.base.visible_text import is_visible
from cellblock.frontend.mcp.held_runs import HeldRun, NoRoom
from cellblock.policy.asking import Approver, Question, Verdict

logger = logging.getLogger("cellblock.frontend")

Context = ServerRequestContext[dict[str, Any], Any]

MAX_INPUT_CHARS: Final = 1_500
"""Bounds what a question shows of a call's input; the user is told how much is not shown."""

MAX_NAME_CHARS: Final = 200

_GAP: Final = re.compile(" {17,}")
"""Finds more spaces than a text has in a row by itself: what follows would stand where nobody looks."""

INPUT_KEY: Final = "approval"
"""Names an approval among other questions; a run asks for one approval at a time."""

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
    shown = "".join(character if is_visible(character) else _escaped(character) for character in text[:most])
    shown = _GAP.sub(lambda found: f"\\x20{{{len(found[0])}}}", shown)
    return f"{shown}… ({rest} more characters are not shown)" if rest > 0 else shown


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def asks_forms(context: Context) -> bool:
    """Says whether the client can show its user a form."""
    known = context.session.client_capabilities
    offered = known.elicitation if known is not None else None
    # Before modes existed, an empty object was a form.
    return offered is not None and (offered.form is not None or offered.url is None)


def in_rounds(context: Context) -> bool:
    """Says whether the client is asked by interim results, not by requests."""
    return context.protocol_version in MODERN_PROTOCOL_VERSIONS


def elicitor(context: Context) -> Approver | None:
    """Asks by a request to the client; None where that is not possible."""
    if not asks_forms(context) or not context.session.can_send_request:
        return None

    async def ask(question: Question) -> Verdict:
        try:
            result = await context.session.elicit_form(question_text(question), NO_FIELDS, context.request_id)
        except MCPError as error:
            logger.info("the client refuses to ask: %s", error.error.code)
            return Verdict.CANNOT_ASK
        return _VERDICTS[result.action]

    return ask


def elicitor_in_rounds(run: HeldRun) -> Approver:
    """Asks by an interim result of the call."""

    async def ask(question: Question) -> Verdict:
        form = types.ElicitRequestFormParams(message=question_text(question), requested_schema=NO_FIELDS)
        try:
            answer = await run.ask(INPUT_KEY, types.ElicitRequest(params=form), question.timeout)
        except NoRoom:
            return Verdict.CANNOT_ASK
        return _VERDICTS[answer.action] if isinstance(answer, types.ElicitResult) else Verdict.CANCELLED

    return ask
