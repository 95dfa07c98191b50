"""Asking says what is asked of the user before a call, and whom a run is for."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from enum import Enum
from typing import Any, Final


class Verdict(Enum):
    """Says what came of a question."""

    ACCEPTED = "accepted"
    DECLINED = "declined"
    CANCELLED = "cancelled"
    """Says that the question was dismissed without a choice."""

    CANNOT_ASK = "cannot ask"
    """Says that the client has no way to ask its user."""


@dataclass(frozen=True, slots=True)
class Question:
    """Asks about one call.

    `tool_name` is the upstream's own text and `arguments` are the script's: both untrusted. `timeout` is in seconds.
    Large arguments are a `RawJson`.
    """

    server_id: str
    tool_name: str
    destructive: bool
    arguments: Any
    timeout: float


Approver = Callable[[Question], Awaitable[Verdict]]
"""Asks the user. It may be cancelled, when the time for the answer is over or the run has ended."""


@dataclass(frozen=True, slots=True)
class Grantee:
    """Says for whom a run is.

    Args:
        principal: As in `PolicySettings.clients`: `cli`, `embedding`, `token`, `anybody`, `oauth:SUBJECT` (all of which
            are known), `stdio:NAME` (which is only what the client says), or what a program calls its own client.
        approver: Asks the client's user; None where nobody can be asked.
    """

    principal: str
    approver: Approver | None = None


EMBEDDING: Final = Grantee("embedding")
