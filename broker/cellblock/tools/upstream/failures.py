"""Words a failed call or connection: whose fault, what is certain, and what to do."""

from __future__ import annotations

import re
from typing import Final, cast

from mcp import MCPError

from cellblock.base.errors import AuthenticationFailed, Certainty, NeededLogin, ToolCallError
from cellblock.base.redaction import Redactor
from cellblock.tools.upstream.incoming import NO_ANSWER, TOO_LARGE_START
from cellblock.tools.upstream.message_cap import is_too_large

CONNECTION_CLOSED: Final = -32000
CONNECTION_CLOSED_TEXT: Final = "Connection closed"
"""Repeats the text of the SDK's error for a closed connection; servers use the same code for whatever they like."""

HTTP_REFUSED: Final = "Server returned an error response"
"""Repeats the SDK's words for an HTTP status of 400 or more that came without a JSON-RPC error."""

HTTP_REFUSALS: Final = (HTTP_REFUSED, "Not Found")
"""Repeats the SDK's words for an HTTP refusal, its words for a 404 included."""

_METHOD_NOT_FOUND: Final = -32601

MAX_REASON_CHARS: Final = 300
"""Bounds the text that says why a server is not connected; cut after redaction, which must see whole secrets."""

MAX_SEARCHED_CHARS: Final = 200
"""Bounds the part of a server's message where it would say that credentials are missing."""

_UNAUTHORIZED: Final = re.compile(
    r"\b(?:unauthori[sz]ed|unauthenticated|not authenticated|authentication (?:failed|required)"
    r"|invalid (?:api[ _-]?key|credentials|access token))\b",
    re.IGNORECASE,
)


def not_connected(
    server: str, reason: str, login: tuple[str | None, str] | None, needed: NeededLogin | None
) -> ToolCallError:
    """Says that there is no connection; `login` is given where it was refused for want of a login, as for `refused`."""
    if login is None:
        return ToolCallError(
            f"Server {server} is not connected: {reason}.",
            hint="Try again later; Cellblock reconnects by itself.",
            certainty=Certainty.NOT_STARTED,
        )
    failure = AuthenticationFailed(
        f"Server {server} is not connected: {reason}.",
        hint=f"{login[1][0].upper()}{login[1][1:]}.",
        certainty=Certainty.NOT_STARTED,
    )
    failure.login = needed
    return failure


def timed_out(server: str, tool: str, bound: float) -> ToolCallError:
    """Says that the server's answer did not come in time."""
    return ToolCallError(
        f"{server} did not answer {tool} within {bound:g} s.",
        hint="Ask for less at a time, or raise upstream.call_timeout_ms.",
        summary=f"no answer within {bound:g} s",
    )


def session_gone(error: MCPError, refusal: int | None) -> bool:
    """Says whether an HTTP server does not know our session any more: 404 by the specification, 400 in practice."""
    if refusal not in (400, 404):
        return False
    return error.message == HTTP_REFUSED or "session" in error.message.lower()


def forgotten(server: str, tool: str) -> ToolCallError:
    """Says that the server has no such session."""
    return ToolCallError(
        f"{server} has forgotten the session; {tool} was not called.",
        hint="Try again in a moment; Cellblock reconnects by itself.",
        certainty=Certainty.NOT_STARTED,
    )


def is_closed(error: MCPError) -> bool:
    """Says whether the SDK says that the connection is over."""
    return error.code == CONNECTION_CLOSED and error.message == CONNECTION_CLOSED_TEXT


def closed(server: str, tool: str, cut: str | None) -> ToolCallError:
    """Says that the connection ended during the call; `cut` tells why Cellblock ended it, if it did."""
    return ToolCallError(
        f"The connection to {server} closed during {tool}{f': {cut}' if cut else ''}.",
        hint="Check whether the call took effect before you repeat it.",
        summary="the connection closed during the call",
    )


def refused(
    server: str,
    tool: str,
    status: int,
    login: tuple[str | None, str] | None,
    needed: NeededLogin | None = None,
) -> ToolCallError:
    """Words an HTTP status instead of an answer; `login` is what is wrong with the login, and the hint, `needed` one
    that a person can give."""
    if status in (401, 403):
        problem, hint = login or (None, f"correct the credentials of {server} in Cellblock's configuration")
        failure = AuthenticationFailed(
            f"{server} refused {tool}: HTTP {status}{f'; {problem}' if problem else ''}.",
            hint=f"{hint[0].upper()}{hint[1:]}.",
            certainty=Certainty.NOT_STARTED,
        )
        failure.login = needed
        return failure
    return ToolCallError(
        f"{server} answered {tool} with HTTP {status}.",
        hint="Check whether the call took effect before you repeat it.",
    )


def no_result(server: str, tool: str) -> ToolCallError:
    """Words an answer that is no tool result."""
    return ToolCallError(
        f"{server} answered {tool} with something that is no tool result.",
        hint="The tool has probably run; report this to the server's authors.",
        summary="the answer is no tool result",
    )


def answered(server: str, tool: str, error: MCPError, redactor: Redactor) -> ToolCallError:
    """Words a JSON-RPC error instead of a result."""
    if error.message == NO_ANSWER:
        return no_result(server, tool)
    if error.message.startswith(TOO_LARGE_START):
        said = redactor.text(error.message.removeprefix(TOO_LARGE_START))
        return ToolCallError(
            f"The answer of {server} to {tool} {said.removesuffix('.')}.",
            hint="Ask for less at a time; the tool has probably run.",
            summary="the answer could not be read",
        )
    if is_too_large(error.message):
        return ToolCallError(
            f"The answer of {server} to {tool} is too large: {redactor.text(error.message)}.",
            hint="Ask for less at a time; the tool has probably run.",
            summary="the answer is over the cap on messages",
        )
    said = f"{redactor.text(error.message)} (JSON-RPC error {error.code})"
    if _UNAUTHORIZED.search(error.message[:MAX_SEARCHED_CHARS]):
        return AuthenticationFailed(
            f"{server} refused {tool}: {said}.",
            hint=f"Correct the credentials of {server} in Cellblock's configuration.",
        )
    return ToolCallError(
        f"{tool} of {server} failed: {said}.",
        hint="Correct the call as the message says.",
        certainty=Certainty.NOT_STARTED if error.code == _METHOD_NOT_FOUND else Certainty.MAY_HAVE_RUN,
    )


def first_of(error: BaseException) -> BaseException:
    """Returns the first error of exception groups."""
    while isinstance(error, BaseExceptionGroup):
        group = cast("BaseExceptionGroup[BaseException]", error)
        error = group.exceptions[0]
    return error


def text_of(error: BaseException) -> str:
    """Returns one line that says what failed, without the text of exception groups."""
    error = first_of(error)
    text: object = getattr(error, "message", None) or str(error) or type(error).__name__
    return " ".join(str(text).split())


def reason_of(error: BaseException, redactor: Redactor) -> str:
    """Returns the text of an error without the server's secrets, no longer than `MAX_REASON_CHARS`."""
    return redactor.text(text_of(error))[:MAX_REASON_CHARS]
