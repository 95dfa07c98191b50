"""What stands between a client and a daemon that `connect` copies lines between: the requests that wait for an answer,
and what becomes of them when the daemon ends.

A message is a line, which is copied as it is. One of up to `WHOLE_BYTES` is decoded, a longer one is known by its ends.

A client's request waits until the daemon's answer to it is copied, or the client cancels it. When the daemon ends
(`lost`), those that may be sent twice go on waiting, and all others get an error. The next daemon is given (`again`)
the client's own greeting, whose answer is not copied, and what still waits.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final, NamedTuple

from cellblock.base.errors import shorten
from cellblock.base.json import is_object
from cellblock.serve.misread import CONNECTION_CLOSED, ID, Misread, as_id, id_at_the_end, id_of

WHOLE_BYTES: Final = 64 * 1024

EDGE_BYTES: Final = 256

REPEATABLE: Final = frozenset(("initialize", "server/discover", "ping", "resources/read"))
"""Lists, with all `*/list`, requests that may be sent twice."""

STREAMS: Final = "subscriptions/listen"
"""Names the method of a request that has no answer for as long as it lasts."""

AGAIN: Final = "cellblock connect: initialize"
"""Is the id with which a client is greeted by another daemon."""

_START: Final = re.compile(
    rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?(?:"id"\s*:\s*' + ID + rb"\s*,\s*)?"
    rb'(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"(method|result|error)"\s*:\s*(?:"([^"\\]*)")?'
)


class Refused(Exception):
    """Tells that another daemon does not greet the client as the first did."""


class _Message(NamedTuple):
    """Holds what is known of a message: `method` is None for an answer, and empty where it is not known."""

    id: int | str | None
    method: str | None
    body: dict[str, Any]


class _Waiting(NamedTuple):
    method: str
    line: bytes


class InFlight:
    """Follows the messages of one client and its daemons.

    Attributes:
        answered: Whether the client has had an answer.
    """

    def __init__(self) -> None:
        self.answered = False
        self._waiting: dict[int | str, _Waiting] = {}
        self._greeting: list[bytes] = []

    @property
    def quiet(self) -> bool:
        """Says whether no request waits but for streams."""
        return all(one.method == STREAMS for one in self._waiting.values())

    @property
    def waits(self) -> bool:
        """Says whether any request waits."""
        return bool(self._waiting)

    def from_client(self, line: bytes) -> None:
        """Notes what the client says."""
        message = _read(line)
        if message.id is None:
            if message.method == "notifications/initialized":
                self._greeting[1:] = [line]
            params = message.body.get("params")
            if message.method == "notifications/cancelled" and is_object(params):
                key = as_id(params.get("requestId"))
                self._waiting = {one: request for one, request in self._waiting.items() if one != key}
        elif message.method:
            self._waiting[message.id] = _Waiting(
                message.method, line if _is_repeatable(message.method) else b""
            )
            if message.method == "initialize":
                self._greeting = [line]

    def from_daemon(self, line: bytes) -> bytes:
        """Notes what the daemon says. Returns what is for the client.

        Raises:
            Refused: It does not greet the client again.
        """
        message = _read(line)
        if message.method is None and message.id == AGAIN:
            if not is_object(message.body.get("result")):
                why = shorten(str(message.body.get("error", "nothing")))
                raise Refused(f"it answers initialize with {why}")
            return b""
        if message.method is None and message.id is not None:
            self.answered = self._waiting.pop(message.id, None) is not None or self.answered
        return line

    def lost(self, why: str) -> bytes:
        """Notes that the daemon has ended. Returns what the client is told."""
        lost = [key for key, one in self._waiting.items() if not one.line]
        return b"".join([self._ended(key, why) for key in lost])

    def again(self) -> bytes:
        """Returns what another daemon is told before all else."""
        lines = list(self._greeting)
        if lines and all(one.method != "initialize" for one in self._waiting.values()):
            lines[0] = _encoded({**json.loads(lines[0]), "id": AGAIN})
        return b"".join(lines + [one.line for one in self._waiting.values() if one.method != "initialize"])

    def all_ended(self, why: str) -> bytes:
        """Returns the errors of all requests that wait."""
        return b"".join([self._ended(key, why) for key in list(self._waiting)])

    def _ended(self, key: int | str, why: str) -> bytes:
        del self._waiting[key]
        self.answered = True
        return _encoded(Misread(CONNECTION_CLOSED, key, why).answer())


def needs_daemon(line: bytes) -> bool:
    """Says whether a client's message is answered: others are of no use to a daemon that has not seen what they are
    about."""
    message = _read(line)
    is_answer_or_note = message.method is None or message.method.startswith("notifications/")
    return not is_answer_or_note and bool(line.strip())


# ---- inside ----------------------------------------------------------------------------------------------


def _is_repeatable(method: str) -> bool:
    return method in REPEATABLE or method.endswith("/list")


def _read(line: bytes) -> _Message:
    if len(line) > WHOLE_BYTES:
        return _at_its_ends(line)
    try:
        body: object = json.loads(line)
    except (ValueError, RecursionError):
        body = None
    if not is_object(body):
        return _Message(None, "", {})
    method = body.get("method")
    if isinstance(method, str):
        return _Message(id_of(body), method, body)
    return _Message(id_of(body), None if "result" in body or "error" in body else "", body)


def _at_its_ends(line: bytes) -> _Message:
    found = _START.match(line)
    if found is None:
        return _Message(None, "", {})
    key, kind, method = found.groups()
    known = id_at_the_end(line[-EDGE_BYTES:]) if key is None else json.loads(key)
    return _Message(known, (method or b"").decode("utf-8", "replace") if kind == b"method" else None, {})


def _encoded(body: dict[str, Any]) -> bytes:
    # With escapes, since half an emoji has no UTF-8.
    return json.dumps(body, separators=(",", ":")).encode() + b"\n"
