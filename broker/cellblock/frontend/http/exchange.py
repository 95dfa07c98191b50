"""Holds what the gate knows of a request, and what runs for it: a client that hangs up ends its run."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Generator
from typing import Final, cast

import anyio
import mcp_types as types
from mcp import MCPError
from mcp.server.context import CallNext, HandlerResult
from starlette.requests import Request

from cellblock.frontend.client import Context, Owner

SCOPE_KEY: Final = "cellblock.exchange"
"""Names the exchange in the ASGI scope."""


class Broken(Exception):
    """Tells that an answer that had begun does not come to its end: the connection to the client ends, too."""


class Exchange:
    """Follows one HTTP request from its admission to the end of its response."""

    __slots__ = ("_cancel", "_ended", "owner")

    def __init__(self, owner: Owner) -> None:
        self.owner = owner
        self._ended: str | None = None
        self._cancel: Callable[[], object] | None = None

    @classmethod
    def from_context(cls, context: Context) -> Exchange:
        """Returns the exchange that an MCP request came in."""
        return cast("Request", context.request).scope[SCOPE_KEY]

    def end(self, why: str) -> None:
        """Ends what runs, since nobody waits for the response any more: it is sent, or the client has hung up, or must
        not wait longer."""
        self._ended = self._ended or why
        if self._cancel is not None:
            self._cancel()

    @contextlib.contextmanager
    def carried_by(self, cancel: Callable[[], object]) -> Generator[None]:
        """Has `cancel` called when the exchange ends inside the block."""
        self._cancel = cancel
        if self._ended:
            cancel()
        try:
            yield
        finally:
            self._cancel = None

    async def carry(self, context: Context, call_next: CallNext) -> HandlerResult:
        """Runs a handler, and cancels it when the exchange ends before it."""
        with anyio.CancelScope() as work:
            with self.carried_by(work.cancel):
                return await call_next(context)
        raise MCPError(types.INTERNAL_ERROR, self._ended or "Cancelled.")


def owner_of(context: Context) -> Owner:
    """Says whose an MCP request is, as its session and its token prove."""
    return Exchange.from_context(context).owner
