"""The taxonomy of errors says what can go wrong, whose fault it is, and what is certain about side effects."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import Final

MAX_MESSAGE_CHARS: Final = 4_000
"""Caps a message or hint that a script is told: they may quote what it or a server has made."""

MAX_QUOTED_CHARS: Final = 200
"""Caps a name that a message quotes as it came."""

MORE_THREADS: Final = (
    "Raise `ulimit -u`, TasksMax= of the service, or the pids limit of the container; "
    "`ulimit -v` should be unlimited."
)


def shorten(text: str, limit: int = MAX_QUOTED_CHARS) -> str:
    """Returns at most `limit` characters, with an ellipsis where some are left out."""
    return text if len(text) <= limit else text[: limit - 1] + "…"


def counted(number: int, thing: str) -> str:
    """Returns how many there are of something, in the singular where it is one."""
    return f"{number:,} {thing}{'' if number == 1 else 's'}"


def first_few(names: Sequence[str], most: int) -> str:
    """Returns some names with commas, at most so many, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


class Fault(Enum):
    """Names the party that has to act on an error."""

    CALLER = "caller"
    """Blames the client: the request or the configuration is wrong."""

    SCRIPT = "script"
    """Blames the script: the agent's code is wrong or took more than it was given."""

    UPSTREAM = "upstream"
    """Blames the server: an MCP server failed, or answered with an error."""

    CELLBLOCK = "cellblock"
    """Blames Cellblock: a part of it or of this machine failed."""


class Certainty(Enum):
    """Tells what is known about a piece of work that did not end well."""

    NOT_STARTED = "not_started"
    COMPLETED = "completed"
    MAY_HAVE_RUN = "may_have_run"


class CellblockError(Exception):
    """Stands for any error that Cellblock raises on purpose: all of them derive from it.

    Args:
        message: What happened, one sentence.
        hint: One corrective action.
    """

    fault: Fault = Fault.CELLBLOCK
    certainty: Certainty = Certainty.NOT_STARTED

    def __init__(self, message: str, *, hint: str) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint

    def __str__(self) -> str:
        return f"{self.message} {self.hint}".rstrip()


class ConfigError(CellblockError):
    """Tells that the configuration cannot be used."""

    fault = Fault.CALLER


class InvalidRequest(CellblockError):
    """Tells that a `codemode.run` request is malformed; no worker was used."""

    fault = Fault.CALLER


class Overloaded(CellblockError):
    """Tells that the admission queue is full, or that a run waited too long for a place in it; nothing was started."""


class HostUnavailable(CellblockError):
    """Tells that a run finds no worker host that can take it."""


class ScriptError(CellblockError):
    """A script error is told to the script as an exception: a class of `@codemode/errors` and its details.

    Args:
        message: What happened; cut at `MAX_MESSAGE_CHARS`, as the hint is.
        hint: One corrective action.
        details: Further fields of the JavaScript error, by their camelCase names.
    """

    error_class: str = "CodemodeError"
    summary: str = "refused"
    """Returns what the trace says, without any text of an input or output (section 3.3.2)."""

    fault = Fault.SCRIPT

    def __init__(self, message: str, *, hint: str, **details: object) -> None:
        super().__init__(shorten(message, MAX_MESSAGE_CHARS), hint=shorten(hint, MAX_MESSAGE_CHARS))
        self.details = details

    def as_json(self) -> dict[str, object]:
        return {
            "errorClass": self.error_class,
            "message": self.message,
            "hint": self.hint,
            **self.details,
        }


class SchemaValidationError(ScriptError):
    """Tells that the input does not fit the tool's schema (Code Mode specification, section 7.2)."""

    error_class = "SchemaValidationError"
    summary = "the input does not fit the tool's schema"


class ToolNotFound(ScriptError):
    """Tells that the server has no such tool."""

    error_class = "ToolNotFoundError"
    summary = "no such tool"


class ServerNotFound(ScriptError):
    """Tells that a script has named a server that is not connected."""

    error_class = "ServerNotFoundError"
    summary = "no such server"


class ToolCallError(ScriptError):
    """Tells that the tool answered with an error, or that the call could not be completed."""

    error_class = "ToolCallError"
    fault = Fault.UPSTREAM

    summary = "the call could not be completed"

    rpc_code: int | None = None
    """Holds the code of the server's own JSON-RPC error, where that was the answer."""

    def __init__(
        self,
        message: str,
        *,
        hint: str,
        certainty: Certainty = Certainty.MAY_HAVE_RUN,
        summary: str | None = None,
        **details: object,
    ) -> None:
        super().__init__(message, hint=hint, certainty=certainty.value, **details)
        self.certainty = certainty
        if summary is not None:
            self.summary = summary


class CallDenied(ToolCallError):
    """Tells that the policy does not allow a call, or the user who was asked does not; it was not started.

    Args:
        message: What happened.
        hint: One corrective action.
        code: Which rule it was; see docs/howto-policy.md.
        fault: Who has to act.
        summary: What the trace says; None: that the policy denied it.
    """

    fault = Fault.SCRIPT
    summary = "denied by the policy"

    def __init__(
        self,
        message: str,
        *,
        hint: str,
        code: str,
        fault: Fault = Fault.SCRIPT,
        summary: str | None = None,
    ) -> None:
        super().__init__(
            message,
            hint=hint,
            certainty=Certainty.NOT_STARTED,
            summary=summary,
            code=code,
            fault=fault.value,
        )


@dataclass(frozen=True, slots=True)
class NeededLogin:
    """Describes a login that a call needs and that a person can give.

    Attributes:
        server: The server's name in the configuration.
        page: The URL at which its person logs in, if there is a page for that.
        mark: Returns what names the login that is not enough; empty where there is none.
        is_there: Says whether somebody has logged in since there was the login of a mark, and the server is connected.
    """

    server: str
    page: str | None
    mark: Callable[[], Awaitable[str]]
    is_there: Callable[[str], Awaitable[bool]]


class AuthenticationFailed(ToolCallError):
    """Tells that the server refused the call for lack of valid credentials."""

    error_class = "AuthenticationError"
    summary = "refused for lack of valid credentials"

    login: NeededLogin | None = None
    """Knows when a person has logged in, where a login helps."""


class RunLimitReached(ScriptError):
    """Tells that a limit of the run is used up; the run ends."""

    error_class = "SandboxLimitError"
