"""A requester is the client that caused a tool call: the way back to it for what an upstream server asks meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Final, Protocol

import mcp_types as types


class Requester(Protocol):
    """A requester is the client of one request. Its methods answer with `ErrorData` what the client does not support
    or refuses; they may take as long as a person does, and raise nothing but a cancellation."""

    async def elicit(self, params: types.ElicitRequestParams) -> types.ElicitResult | types.ErrorData:
        """Asks the user (MCP, `elicitation/create`)."""
        ...

    async def sample(
        self, params: types.CreateMessageRequestParams
    ) -> types.CreateMessageResult | types.CreateMessageResultWithTools | types.ErrorData:
        """Asks the client's model (MCP, `sampling/createMessage`)."""
        ...

    async def roots(self) -> types.ListRootsResult | types.ErrorData:
        """Asks for the client's roots (MCP, `roots/list`)."""
        ...

    @property
    def wants_progress(self) -> bool:
        """Says whether `progress` is to be called; servers are asked for it only then."""
        ...

    def progress(
        self, server: str, tool: str, progress: float, total: float | None, message: str | None
    ) -> None:
        """Hears how far a call is. Must neither block nor raise."""
        ...

    def logged(self, params: types.LoggingMessageNotificationParams) -> None:
        """Hears what the server has logged during a call. Must neither block nor raise."""
        ...


PAUSE_MS: Final = 600_000
"""Bounds the time that the clock of one run may stand still while its client answers what servers ask: a server must
not hold a worker without end."""


@dataclass(frozen=True, slots=True)
class CallOrigin:
    """Says what a tool call comes from: a run, and the client that its server may ask meanwhile.

    Args:
        requester: That client; None where nobody can be asked.
        standing_still: Gives a block inside which the run's time does not pass.
    """

    requester: Requester | None = None
    standing_still: Callable[[], AbstractContextManager[None]] = nullcontext


NOBODY: Final = CallOrigin()
"""Stands for the origin of a call that no client has caused."""
