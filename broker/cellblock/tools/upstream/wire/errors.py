"""Names how a request to a server can end without an answer to it."""

from __future__ import annotations

from typing import Any

import mcp_types as types
from mcp import MCPError


class ConnectionLost(MCPError):
    """Tells that the connection is over. `sent` says whether the request may have reached the server."""

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
