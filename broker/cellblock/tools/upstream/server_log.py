"""Writes log messages of upstream servers into Cellblock's own log: with the server's name, at their level, bounded."""

from __future__ import annotations

import json
import logging
import time
from typing import Any, Final

import mcp_types as types

from cellblock.base.redaction import Redactor
from cellblock.base.visible import visible
from cellblock.tools.upstream.definitions import shown

logger = logging.getLogger("cellblock.tools.upstream.messages")

MAX_CHARS: Final = 2_000
"""Bounds the characters of one message that a server logs."""

PER_SECOND: Final = 50.0
BURST: Final = 200.0
"""Bounds the messages of one server that are written; the rest are counted."""

LOOKED_AT_CHARS: Final = 64 * 1024
"""Bounds what is looked at of one message, before secrets are taken out: enough that none is cut within what is
shown."""

_LEVELS: Final[dict[str, int]] = {
    "debug": logging.DEBUG,
    "info": logging.INFO,
    "notice": logging.INFO,
    "warning": logging.WARNING,
    "error": logging.ERROR,
    "critical": logging.CRITICAL,
    "alert": logging.CRITICAL,
    "emergency": logging.CRITICAL,
}


def wanted_level() -> types.LoggingLevel:
    """Returns the level from which on messages are of use here; servers of MCP 2026-07-28 send none unasked."""
    if logger.isEnabledFor(logging.DEBUG):
        return "debug"
    if logger.isEnabledFor(logging.INFO):
        return "info"
    return "warning" if logger.isEnabledFor(logging.WARNING) else "error"


class ServerLog:
    """Writes one server's messages; a callback of the SDK's client.

    Args:
        server: Its name in the configuration.
        redactor: Keeps its secrets out.
    """

    def __init__(self, server: str, redactor: Redactor) -> None:
        self._server = server
        self._redactor = redactor
        self._room = BURST
        self._counted_at = time.monotonic()
        self._dropped = 0

    async def __call__(self, params: types.LoggingMessageNotificationParams) -> None:
        """Writes one message as `SERVER[LOGGER]: TEXT`; the record has them as `server` and `server_logger`, too."""
        level = _LEVELS[params.level]
        if not logger.isEnabledFor(level) or not self._has_room():
            return
        name = shown(self._redactor.text(params.logger)) if params.logger else None
        text = _one_line(self._redactor.text(_text(params.data)[:LOOKED_AT_CHARS]))
        if self._dropped:
            logger.warning("%s: %d messages were dropped, too many at once", self._server, self._dropped)
            self._dropped = 0
        where = f"{self._server}[{name}]" if name else self._server
        logger.log(level, "%s: %s", where, text, extra={"server": self._server, "server_logger": name})

    def _has_room(self) -> bool:
        now = time.monotonic()
        self._room = min(BURST, self._room + (now - self._counted_at) * PER_SECOND)
        self._counted_at = now
        if self._room < 1:
            self._dropped += 1
            return False
        self._room -= 1
        return True


def _text(data: Any) -> str:
    if isinstance(data, str):
        return data
    try:
        return json.dumps(data, ensure_ascii=False)
    except (TypeError, ValueError, RecursionError):
        return type(data).__name__


def _one_line(text: str) -> str:
    short = text if len(text) <= MAX_CHARS else text[: MAX_CHARS - 1] + "…"
    return visible(short, instead=" ")
