"""Sends answers to one worker no faster than it reads them, so that few wait for it in its host.

A script that computes while its answers come reads none of them, and is in its right: its calls wait then. What an
error says comes from scripts and servers: names as long as they like, results nested as deeply. It is cut here, as a
message over the cap would cut the worker host off, and with it every other run.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable
from typing import Final

from cellblock.base import payload
from cellblock.base.errors import Certainty, ScriptError, ToolCallError, shorten
from cellblock_worker.wire.protocol import TOOK_SHARE

HELD_FACTOR: Final = 4
"""Bounds the answers that wait here: they may have so many times the cap on one: calls that were on their way when the
first began to wait. One that does not fit is replaced by an error."""


_FORM: Final = ("certainty", "code", "fault", "limit")
"""Matches details that are one of a few words."""

_LAST_MESSAGE_CHARS: Final = 300
_LAST_HINT_CHARS: Final = 100


class Replies:
    """Sends all replies of one run.

    Args:
        send: Sends one to the worker: id, ok, JSON bytes.
        most: Cap of one, in bytes.
    """

    def __init__(self, send: Callable[[int, bool, bytes], None], most: int) -> None:
        self._send = send
        # What the worker has read and not told is in it, too: the largest answer must fit beside that.
        self._told_from = most // TOOK_SHARE
        self._window = most + self._told_from
        self._most = most
        self._unread = 0
        self._held = 0
        self._waiting = deque[tuple[int, bool, bytes]]()
        self._room = asyncio.Event()
        self._room.set()

    @property
    def has_room(self) -> bool:
        """Says whether no answer waits: what leads to more of them should wait, too."""
        return not self._waiting

    def room(self) -> Awaitable[object] | None:
        """Gives an awaitable that ends when there is room for further answers; None where there is room."""
        return self._room.wait() if self._waiting else None

    def reply(self, call_id: int, ok: bool, body: bytes) -> None:
        """Sends an answer in its turn."""
        if not self._waiting and self._unread + len(body) <= self._window:
            self._unread += len(body)
            self._send(call_id, ok, body)
            return
        if self._held + len(body) > HELD_FACTOR * self._most:
            ok, body = False, encode_error(_dropped(len(body)), self._most)
        self._waiting.append((call_id, ok, body))
        self._held += len(body)
        self._send_what_fits()

    def took(self, size: int) -> bool:
        """Notes that the worker has read so many bytes of answers; False: it has not, or says so too often."""
        if not self._told_from < size <= self._unread:
            return False
        self._unread -= size
        self._send_what_fits()
        return True

    def close(self) -> None:
        """Drops the answers that wait, unsent: nothing waits for room any more."""
        self._waiting.clear()
        self._held = 0
        self._room.set()

    def _send_what_fits(self) -> None:
        while self._waiting and self._unread + len(self._waiting[0][2]) <= self._window:
            call_id, ok, body = self._waiting.popleft()
            self._held -= len(body)
            self._unread += len(body)
            self._send(call_id, ok, body)
        if self._waiting:
            self._room.clear()
        else:
            self._room.set()


def _dropped(size: int) -> ToolCallError:
    return ToolCallError(
        f"An answer of {size} bytes was dropped: too many waited for the script, which did not read them.",
        hint="The tool has run. Await some of the calls before you make the next, or compute.",
        certainty=Certainty.COMPLETED,
    )


def encode_error(error: ScriptError, most: int) -> bytes:
    """Gives the error as JSON of at most `most` bytes (4,096 or more): the whole of it, else without the tool's
    result, else its words alone, cut."""
    whole = error.as_json()
    for body in (whole, {name: value for name, value in whole.items() if name != "result"}):
        try:
            encoded = payload.encode(body)
        except payload.PayloadError:
            continue
        if len(encoded) <= most:
            return encoded
    short: dict[str, object] = {name: whole[name] for name in _FORM if name in whole}
    return payload.encode(
        {
            "errorClass": error.error_class,
            "message": shorten(error.message, _LAST_MESSAGE_CHARS),
            "hint": shorten(error.hint, _LAST_HINT_CHARS),
            **short,
        }
    )
