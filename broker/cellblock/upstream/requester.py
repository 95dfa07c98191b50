"""Who caused a tool call: the way back to the client of a front-end, for what an upstream server asks meanwhile."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from typing import Final, Protocol

import mcp_types as types


class Requester(Protocol):
    """The client of one request. Its methods answer with `ErrorData` what the client does not support or refuses;
    they may take as long as a person does, and raise nothing but a cancellation."""

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
        """Whether `progress` is to be called; servers are asked for it only then."""
        ...

    def progress(
        self, server: str, tool: str, progress: float, total: float | None, message: str | None
    ) -> None:
        """Told how far a call is. Must neither block nor raise."""
        ...


PAUSE_MS: Final = 600_000
"""How long the clock of one run may stand still in all while its client answers what servers ask: a server must not
hold a worker without end."""

requester: Final[ContextVar[Requester | None]] = ContextVar("cellblock_requester", default=None)
"""Set by a front-end around a run; a run's tool calls see it."""

run_clock: Final[ContextVar[Callable[[], AbstractContextManager[None]] | None]] = ContextVar(
    "cellblock_run_clock", default=None
)
"""The clock of the run that made a call stands still inside what this gives. Set by a run whose client can be asked."""
