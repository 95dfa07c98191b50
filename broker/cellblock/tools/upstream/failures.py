"""How a request to a server can end without an answer to it, and the words for a failed call or connection: whose
fault, what is certain, and what to do."""

from __future__ import annotations

import json
import re
from typing import Any, Final, cast

import mcp_types as types
from mcp.shared.exceptions import MCPError

from cellblock.base.errors import (
    AuthenticationFailed,
    Certainty,
    NeededLogin,
    ToolCallError,
)
from cellblock.base.redaction import Redactor


class ConnectionLost(MCPError):
    """Tells that the connection is over. `sent` says whether the request may have reached the server, `at_question`
    that it was the one for its revision: some servers end where `initialize` is not what they hear first."""

    at_question = False

    def __init__(self, why: str, *, sent: bool) -> None:
        super().__init__(types.CONNECTION_CLOSED, why)
        self.sent = sent


class HttpRefused(MCPError):
    """Tells of an HTTP status in the place of an answer; `said` is the beginning of its body."""

    def __init__(
        self, status: int, said: str = "", *, code: int = types.INTERNAL_ERROR, data: Any = None
    ) -> None:
        super().__init__(code, said or f"HTTP {status}", data)
        self.status, self.said = status, said


class SessionForgotten(HttpRefused):
    """Tells that the server does not know our session any more: the request was not begun."""


class AnswerUnreadable(MCPError):
    """Tells that the answer came, and could not be read; the message says why."""

    def __init__(self, why: str, *, too_large: bool = False) -> None:
        super().__init__(types.INTERNAL_ERROR, why)
        self.too_large = too_large


CLOSED_BY_SERVER: Final = "the connection was closed by the server"

SESSION_NOT_FOUND: Final = -32001
"""Is the code of an error by which servers say that they have forgotten a session."""

MAX_DATA_CHARS: Final = 4_096
"""Bounds the data of a JSON-RPC error that reaches a script, as JSON."""

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
    """Says that there is no connection; `login` is of `remedy`."""
    if login is None:
        return ToolCallError(
            f"Server {server} is not connected: {reason}.",
            hint="Try again later; Cellblock reconnects by itself.",
            certainty=Certainty.NOT_STARTED,
        )
    failure = AuthenticationFailed(
        f"Server {server} is not connected: {reason.removesuffix(f'; {login[1]}')}.",
        hint=f"{login[1][0].upper()}{login[1][1:]}.",
        certainty=Certainty.NOT_STARTED,
    )
    failure.login = needed
    return failure


def timed_out(server: str, tool: str, bound: float, noise: str) -> ToolCallError:
    """Says that the server's answer did not come in time; `noise` tells what came that is no message."""
    return ToolCallError(
        f"{server} did not answer {tool} within {bound:g} s{noise}.",
        hint="Ask for less at a time, or raise upstream.call_timeout_ms.",
        summary=f"no answer within {bound:g} s",
    )


def not_begun(error: MCPError) -> bool:
    """Says whether a request certainly was not begun, and another connection may take it."""
    if isinstance(error, ConnectionLost):
        return not error.sent
    if isinstance(error, SessionForgotten):
        return True
    # In an answer with status 200; the same code means other things elsewhere.
    return error.code == SESSION_NOT_FOUND and "session" in error.message.lower()


def forgotten(server: str, tool: str) -> ToolCallError:
    """Says that the server has no such session."""
    return ToolCallError(
        f"The session with {server} is over; {tool} was not called.",
        hint="Try again in a moment; Cellblock reconnects by itself.",
        certainty=Certainty.NOT_STARTED,
    )


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
    error: HttpRefused,
    login: tuple[str | None, str] | None,
    redactor: Redactor,
    needed: NeededLogin | None = None,
) -> ToolCallError:
    """Words an HTTP status instead of an answer; `login` is what is wrong with the login, and the hint, `needed` one
    that a person can give."""
    status, said = error.status, _quoted(error, redactor)
    if (found := remedy(status, login, server)) is not None:
        said = "" if login is not None else said
        problem, hint = found
        failure: ToolCallError = AuthenticationFailed(
            f"{server} refused {tool}: HTTP {status}{f'; {problem}' if problem else ''}{said}.",
            hint=f"{hint[0].upper()}{hint[1:]}.",
            certainty=Certainty.NOT_STARTED,
        )
        failure.login = needed
    elif status == 403:
        failure = ToolCallError(
            f"{server} refused {tool}: HTTP {status}{said}.",
            hint="Do without it, or ask whoever runs the server for access.",
            certainty=Certainty.NOT_STARTED,
        )
    else:
        failure = ToolCallError(
            f"{server} answered {tool} with HTTP {status}{said}.",
            hint="Check whether the call took effect before you repeat it.",
        )
        failure.details |= _details(error, redactor)
    return failure


def remedy(status: int, login: tuple[str | None, str] | None, server: str) -> tuple[str | None, str] | None:
    """Says what is wrong with the credentials, if that is known, and what to do; None where nothing says that others
    would help."""
    if status == 401 or (status == 403 and (login is None or login[0] is not None)):
        return login or (None, f"correct the credentials of {server} in Cellblock's configuration")
    return None


def refused_connection(
    server: str, error: HttpRefused, login: tuple[str | None, str] | None, redactor: Redactor
) -> str:
    """Words an HTTP status instead of a connection."""
    why = f"the server refused the connection: HTTP {error.status}"
    if (found := remedy(error.status, login, server)) is None:
        return f"{why}{_quoted(error, redactor)}"
    said = _quoted(error, redactor) if login is None else ""
    return f"{why}{said}{f'; {found[0]}' if found[0] else ''}; {found[1]}"


def _quoted(error: HttpRefused, redactor: Redactor) -> str:
    said = redactor.text(" ".join(error.said.split()))[:MAX_REASON_CHARS].rstrip(".")
    return f"; it said: {said}" if said else ""


def _details(error: MCPError, redactor: Redactor) -> dict[str, object]:
    """Returns what a script is given of an error beside its message: its code, and its data where that is small."""
    details: dict[str, object] = {"code": error.code}
    if error.data is not None and len(json.dumps(error.data, ensure_ascii=False)) <= MAX_DATA_CHARS:
        details["data"] = redactor.tree(error.data)
    return details


def no_result(server: str, tool: str, why: str = "") -> ToolCallError:
    """Words an answer that is no tool result."""
    return ToolCallError(
        f"{server} answered {tool} with something that is no tool result{why}.",
        hint="The tool has probably run; report this to the server's authors.",
        summary="the answer is no tool result",
    )


def answered(server: str, tool: str, error: MCPError, redactor: Redactor) -> ToolCallError:
    """Words a JSON-RPC error instead of a result."""
    if isinstance(error, AnswerUnreadable):
        why = redactor.text(error.message)
        if not error.too_large:
            return no_result(server, tool, f": {why}")
        return ToolCallError(
            f"The answer of {server} to {tool} is too large: {why}.",
            hint="Ask for less at a time; the tool has probably run.",
            summary="the answer is too large",
        )
    said = f"{redactor.text(error.message)} (JSON-RPC error {error.code})"
    if _UNAUTHORIZED.search(error.message[:MAX_SEARCHED_CHARS]):
        return AuthenticationFailed(
            f"{server} refused {tool}: {said}.",
            hint=f"Correct the credentials of {server} in Cellblock's configuration.",
        )
    failure = ToolCallError(
        f"{tool} of {server} failed: {said}.",
        hint="Correct the call as the message says.",
        certainty=Certainty.NOT_STARTED if error.code == types.METHOD_NOT_FOUND else Certainty.MAY_HAVE_RUN,
    )
    failure.details |= _details(error, redactor)
    return failure


def first_of(error: BaseException) -> BaseException:
    """Returns the first error of exception groups."""
    while isinstance(error, BaseExceptionGroup):
        error = cast("BaseExceptionGroup[BaseException]", error).exceptions[0]
    return error


def text_of(error: BaseException) -> str:
    """Returns one line that says what failed, without the text of exception groups."""
    error = first_of(error)
    text: object = getattr(error, "message", None) or str(error) or type(error).__name__
    return " ".join(str(text).split()).replace(
        "All connection attempts failed", "nobody listens at its address"
    )


def reason_of(error: BaseException, redactor: Redactor) -> str:
    """Returns the text of an error without the server's secrets, no longer than `MAX_REASON_CHARS`."""
    return redactor.text(text_of(error))[:MAX_REASON_CHARS]
