"""Questions to the user, by MCP elicitation: as a request of ours while a run goes on, or, in the protocol of
2026-07-28, as an interim result of the call, which the client then makes again with the answer."""

from __future__ import annotations

import asyncio
import json
import logging
import secrets
import unicodedata
from collections.abc import Awaitable, Callable
from typing import Any, Final

import mcp_types as types
from mcp import MCPError
from mcp.server.context import ServerRequestContext
from mcp_types.version import MODERN_PROTOCOL_VERSIONS

from cellblock.execution.response import RunResponse
from cellblock.frontend.live import LiveRun
from cellblock.policy.asking import Approver, Question, Verdict

logger = logging.getLogger("cellblock.frontend")

Context = ServerRequestContext[dict[str, Any], Any]

MAX_INPUT_CHARS: Final = 1_500
"""Of a call's input in a question; the user is told how much is not shown."""

MAX_NAME_CHARS: Final = 200

MAX_HELD: Final = 64
"""Runs whose client is away to ask its user; each has a worker, too."""

RETURN_SECONDS: Final = 30.0
"""After the time for the answer: how long a run, or its response, is kept for a client that is away."""

TOKEN_BYTES: Final = 32

INPUT_KEY: Final = "approval"

NO_FIELDS: Final[dict[str, Any]] = {"type": "object", "properties": {}}
"""The form: whether it is accepted is the answer."""

_VERDICTS: Final = {
    "accept": Verdict.ACCEPTED,
    "decline": Verdict.DECLINED,
    "cancel": Verdict.CANCELLED,
}


def question_text(question: Question) -> str:
    """The question for people. Names and input come from servers and scripts: nothing in them can hide a part."""
    tool = f"{question.server_id}.{_visible(question.tool_name, MAX_NAME_CHARS)}"
    shown = _visible(json.dumps(question.arguments, ensure_ascii=False), MAX_INPUT_CHARS)
    destroys = ", which can destroy data" if question.destructive else ""
    return f"A script wants to call {tool}{destroys}. Allow this call?\nIts input: {shown}"


def _visible(text: str, most: int) -> str:
    """Control, format and other invisible characters as escapes, and what is over `most` as its length."""
    rest = len(text) - most
    shown = "".join(
        character
        if unicodedata.category(character)[0] not in "CZ" or character == " "
        else _escaped(character)
        for character in text[:most]
    )
    return f"{shown}… ({rest} more characters are not shown)" if rest > 0 else shown


def _escaped(character: str) -> str:
    return character.encode("unicode_escape").decode("ascii")


def asks_forms(context: Context) -> bool:
    """Whether the client can show its user a form."""
    known = context.session.client_capabilities
    offered = known.elicitation if known is not None else None
    # Before modes existed, an empty object was a form.
    return offered is not None and (offered.form is not None or offered.url is None)


def in_rounds(context: Context) -> bool:
    """Whether the client is asked by interim results, not by requests."""
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


class HeldRun:
    """A run that goes on while its client is away to ask its user."""

    def __init__(self, owner: str, live: LiveRun | None) -> None:
        self.owner = owner
        self.live = live
        self.task: asyncio.Task[RunResponse] | None = None
        self.question: Question | None = None
        self.expiry: asyncio.TimerHandle | None = None
        self._answer: asyncio.Future[Verdict] | None = None
        self._asked = asyncio.Event()

    async def ask(self, question: Question) -> Verdict:
        """An `Approver`: waits until the client is back."""
        self.question = question
        self._answer = asyncio.get_running_loop().create_future()
        self._asked.set()
        try:
            return await self._answer
        finally:
            self._asked.clear()
            self._answer = None

    def answer(self, verdict: Verdict) -> None:
        """The client is back; what comes too late is nobody's answer."""
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(verdict)
            self._asked.clear()

    async def next(self) -> RunResponse | Question:
        """The response, or the next question. When this is cancelled, so is the run."""
        assert self.task is not None
        asked = asyncio.ensure_future(self._asked.wait())
        try:
            await asyncio.wait({self.task, asked}, return_when=asyncio.FIRST_COMPLETED)
        except asyncio.CancelledError:
            self.task.cancel()
            raise
        finally:
            asked.cancel()
        if self.task.done():
            return self.task.result()
        assert self.question is not None
        return self.question


class HeldRuns:
    """The runs whose client is away; each is known by a random word that is good for one return."""

    def __init__(self) -> None:
        self._held: dict[str, HeldRun] = {}

    def begin(
        self, owner: str, start: Callable[[Approver | None], Awaitable[RunResponse]], live: LiveRun | None
    ) -> HeldRun:
        """Begins a run.

        Args:
            owner: Who calls; nobody else can go on with it.
            start: Runs the script.
            live: What its client is told of it, in all rounds.
        """
        run = HeldRun(owner, live)
        run.task = asyncio.ensure_future(start(run.ask if len(self._held) < MAX_HELD else None))
        return run

    def take(self, params: types.CallToolRequestParams, owner: str) -> HeldRun:
        """The run that a client has come back for, which goes on with the answer.

        Raises:
            MCPError: There is none.
        """
        state = params.request_state or ""
        run = self._held.get(state)
        if run is None or run.owner != owner:
            raise MCPError(
                types.INVALID_PARAMS,
                "There is no run that waits for this answer: it came too late, or came twice. Run the script again.",
            )
        del self._held[state]
        if run.expiry is not None:
            run.expiry.cancel()
        response = (params.input_responses or {}).get(INPUT_KEY)
        given = isinstance(response, types.ElicitResult)
        run.answer(_VERDICTS[response.action] if given else Verdict.CANCELLED)
        return run

    async def finish(self, run: HeldRun) -> RunResponse | types.InputRequiredResult:
        """The response, or a question with which the client goes away.

        Raises:
            InvalidRequest: The request is malformed.
        """
        found = await run.next()
        return found if isinstance(found, RunResponse) else self._put_away(run, found)

    def _put_away(self, run: HeldRun, question: Question) -> types.InputRequiredResult:
        state = secrets.token_urlsafe(TOKEN_BYTES)
        self._held[state] = run
        wait = question.timeout + RETURN_SECONDS
        run.expiry = asyncio.get_running_loop().call_later(wait, self._give_up, state)
        form = types.ElicitRequestFormParams(message=question_text(question), requested_schema=NO_FIELDS)
        return types.InputRequiredResult(
            input_requests={INPUT_KEY: types.ElicitRequest(params=form)}, request_state=state
        )

    def _give_up(self, state: str) -> None:
        run = self._held.pop(state, None)
        if run is not None and run.task is not None:
            run.task.cancel()
