"""A requester is the client that caused a tool call: the way back to it for what an upstream server asks meanwhile."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Protocol

from cellblock.base.budget import Account
from cellblock.base.questions import Round

if TYPE_CHECKING:
    import mcp_types as types
    from pydantic import BaseModel


class Requester(Protocol):
    """A requester is the client of one request. Its methods answer with `ErrorData` what the client does not support
    or refuses; they may take as long as a person does, and raise nothing but a cancellation. `key` names a question,
    also when its run was parked; empty: any name."""

    async def elicit(
        self, params: types.ElicitRequestParams, key: str = ""
    ) -> types.ElicitResult | types.ErrorData:
        """Asks the user (MCP, `elicitation/create`)."""
        ...

    async def sample(
        self, params: types.CreateMessageRequestParams, key: str = ""
    ) -> types.CreateMessageResult | types.CreateMessageResultWithTools | types.ErrorData:
        """Asks the client's model (MCP, `sampling/createMessage`)."""
        ...

    async def roots(self, key: str = "") -> types.ListRootsResult | types.ErrorData:
        """Asks for the client's roots (MCP, `roots/list`)."""
        ...

    @property
    def wants_progress(self) -> bool:
        """Says whether `progress` is to be called."""
        ...

    def progress(
        self, server: str, tool: str, progress: float, total: float | None, message: str | None
    ) -> None:
        """Hears of the progress of a call. Must neither block nor raise."""

    def logged(self, params: types.LoggingMessageNotificationParams) -> None:
        """Hears what the server has logged during a call. Must neither block nor raise."""


PAUSE_MS: Final = 600_000
"""Bounds the time that the clock of one run may stand still while its client answers what servers ask: a server must
not hold a worker without end."""


Live = Callable[[str], Awaitable["BaseModel | types.ErrorData"]]
"""Asks the client that is there now; takes the question's key."""


Asked = Callable[["types.InputRequest", Live, str], Awaitable["BaseModel | types.ErrorData"]]
"""Has an answer to what a server asks during a call of a run that can wait without its process: of the client or of
whoever answers later, which may take days. Takes the request, what asks the client now, and with what the call goes on
that asks in rounds, as `pack_round` has it."""


@dataclass(frozen=True, slots=True)
class CallOrigin:
    """Says what a tool call comes from: a run, and the client that its server may ask meanwhile.

    Args:
        requester: That client; None where nobody can be asked now.
        standing_still: Gives a block inside which the run's time does not pass.
        asked: Has answers; None where only the client has.
        run: Is the same object for all calls of a run; None where there is none.
        sends: Is waited for before a call that asks in rounds goes on with its answers.
        round: Where such a call goes on; None: it begins.
        account: Of the run, for what a Python tool computes.
        may_sample: Says whether the server may know what the client's model may say.
        caller: What a script that is called gets its caller's grants and caps from; nothing that tools look into.
    """

    requester: Requester | None = None
    standing_still: Callable[[], AbstractContextManager[None]] = nullcontext
    asked: Asked | None = None
    run: object = None
    sends: Callable[[], Awaitable[None]] | None = None
    round: Round | None = None
    account: Account | None = None
    may_sample: Callable[[], bool] = lambda: True
    caller: object = None

    @property
    def who(self) -> object:
        """Returns the run, or else the requester: calls that have it in common leave no doubt whom a server's question
        is for."""
        return self.run or self.requester

    @property
    def can_be_asked(self) -> bool:
        """Says whether there may be an answer to what a server asks."""
        return self.requester is not None or self.asked is not None


NOBODY: Final = CallOrigin()
"""Stands for the origin of a call that no client has caused."""
