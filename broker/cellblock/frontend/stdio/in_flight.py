"""What stands between a client and a daemon that `connect` copies bytes between: the requests that wait for an answer,
and what becomes of them when the daemon ends.

A message is a line. One that is read at once or has up to `WHOLE_BYTES` is decoded, a longer one known by its ends.

A client's request waits until the daemon's answer to it is copied, or the client cancels it. When the daemon ends
(`lost`), those that may be sent twice go on waiting, and all others get an error; what is left of a line that is half
sent is dropped. The next daemon is given (`again`) the client's own greeting, whose answer is not copied, and what
still waits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

from cellblock.base.errors import shorten
from cellblock.base.json import is_object
from cellblock.frontend.misread import CONNECTION_CLOSED, ID, Misread, as_id, id_at_the_end, id_of

WHOLE_BYTES: Final = 64 * 1024
"""Bounds what is held of a line until its end comes."""

EDGE_BYTES: Final = 256

REPEATABLE: Final = frozenset(("initialize", "server/discover", "ping", "resources/read"))
"""Lists, with all `*/list`, requests that may be sent twice."""

STREAMS: Final = "subscriptions/listen"
"""Names the method of a request that has no answer for as long as it lasts."""

UNREAD: Final = "The daemon ended before it had the whole message: nothing was done. Send it again."

AGAIN: Final = "cellblock connect: initialize"
"""Is the id with which a client is greeted by another daemon."""

_START: Final = re.compile(
    rb'\s*\{\s*(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?(?:"id"\s*:\s*' + ID + rb"\s*,\s*)?"
    rb'(?:"jsonrpc"\s*:\s*"2\.0"\s*,\s*)?"(method|result|error)"\s*:\s*(?:"([^"\\]*)")?'
)


class Piece(NamedTuple):
    """Holds a line with its end, or a part of a long one."""

    data: bytes
    begins: bool = True
    ends: bool = True


class Pieces:
    """Cuts what is read into pieces."""

    def __init__(self) -> None:
        self._held = bytearray()
        self._begun = False

    def of(self, data: bytes) -> Iterator[Piece]:
        """Gives the pieces that are complete with more data; up to `WHOLE_BYTES` of a line are held until its end."""
        *lines, rest = data.split(b"\n")
        for line in lines:
            yield self._piece(line + b"\n", ends=True)
        self._held += rest
        if len(self._held) > WHOLE_BYTES or (self._begun and self._held):
            yield self._piece(b"", ends=False)

    def last(self) -> Iterator[Piece]:
        """Gives the last line, which has no end, at the end of all data."""
        if self._held or self._begun:
            yield self._piece(b"\n", ends=True)

    def _piece(self, end: bytes, *, ends: bool) -> Piece:
        piece = Piece(bytes(self._held) + end, not self._begun, ends)
        self._held.clear()
        self._begun = not ends
        return piece


class Refused(Exception):
    """Tells that another daemon does not greet the client as the first did."""


class _Message(NamedTuple):
    """Holds what is known of a message: `method` is None for an answer, and empty where it is not known."""

    id: int | str | None
    method: str | None
    body: dict[str, Any]

    @property
    def cancels(self) -> int | str | None:
        """Gives the id of the request that it cancels."""
        params = self.body.get("params") if self.method == "notifications/cancelled" else None
        return as_id(params.get("requestId")) if is_object(params) else None


class _Long:
    """Follows a line that comes in several pieces."""

    def __init__(self) -> None:
        self.open = self.dropped = False
        self._edge = b""
        self._start = _Message(None, "", {})

    def seen(self, piece: Piece, *, early: bool) -> _Message | None:
        """Returns its message once: with the last piece, or with the first where `early`, if that has the id."""
        if piece.begins:
            self._edge, self._start = b"", _started(piece.data)
        self._edge = (self._edge + piece.data[-EDGE_BYTES:])[-EDGE_BYTES:]
        self.open = not piece.ends
        if early and self._start.id is not None:
            return self._start if piece.begins else None
        if not piece.ends:
            return None
        return (
            self._start if self._start.id is not None else self._start._replace(id=id_at_the_end(self._edge))
        )


class _Waiting(NamedTuple):
    method: str
    line: bytes | None


class InFlight:
    """Follows the messages of one client and its daemons.

    Attributes:
        answered: Whether the client has had an answer.
    """

    def __init__(self) -> None:
        self.answered = False
        self._waiting: dict[int | str, _Waiting] = {}
        self._questions: set[int | str] = set()
        self._greeting: list[bytes] = []
        self._up, self._down = _Long(), _Long()
        self._later = b""

    @property
    def quiet(self) -> bool:
        """Says whether no request waits but for streams."""
        return all(one.method == STREAMS for one in self._waiting.values())

    @property
    def waits(self) -> bool:
        """Says whether any request waits."""
        return bool(self._waiting)

    def from_client(self, piece: Piece, *, connected: bool = True) -> tuple[bytes, bytes]:
        """Notes what comes from the client. Returns what is for the daemon, and what the client is told."""
        if piece.begins and piece.ends:
            self._asked(_decoded(piece.data), piece.data)
            return piece.data, b""
        if piece.begins:
            self._up.dropped = not connected
        told = b""
        if (message := self._up.seen(piece, early=True)) is not None:
            self._asked(message, None)
            if self._up.dropped and message.id in self._waiting and message.method:
                told = self._ended(message.id, UNREAD)
        if self._down.open:
            # Not in the middle of a line.
            self._later, told = self._later + told, b""
        return b"" if self._up.dropped else piece.data, told

    def from_daemon(self, piece: Piece) -> bytes:
        """Notes what comes from the daemon. Returns what is for the client.

        Raises:
            Refused: It does not greet the client again.
        """
        whole = piece.begins and piece.ends
        message = _decoded(piece.data) if whole else self._down.seen(piece, early=False)
        if message is None:
            return piece.data
        if message.id == AGAIN and message.method is None:
            if not is_object(message.body.get("result")):
                raise Refused(
                    f"it answers initialize with {shorten(str(message.body.get('error', 'nothing')))}"
                )
            return b""
        if message.method is None and message.id is not None:
            self.answered = self._waiting.pop(message.id, None) is not None or self.answered
        elif message.method and message.id is not None:
            self._questions.add(message.id)
        elif (cancelled := message.cancels) is not None:
            self._questions.discard(cancelled)
        later, self._later = self._later, b""
        return piece.data + later

    def lost(self, why: str) -> bytes:
        """Notes that the daemon has ended. Returns what the client is told."""
        told = [b"\n", self._later] if self._down.open else []
        self._later = b""
        for key in self._questions:
            params = {"requestId": key, "reason": "The daemon that has asked has ended."}
            note = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": params}
            told.append(_encoded(note))
        self._questions.clear()
        told += [self._ended(key, why) for key, one in list(self._waiting.items()) if not _is_repeatable(one)]
        self._down = _Long()
        self._up.dropped = self._up.open
        return b"".join(told)

    def again(self) -> bytes:
        """Returns what another daemon is told before all else."""
        lines = list(self._greeting)
        if lines and all(one.method != "initialize" for one in self._waiting.values()):
            lines[0] = _encoded({**json.loads(lines[0]), "id": AGAIN})
        waiting = [one.line for one in self._waiting.values() if one.line and one.method != "initialize"]
        return b"".join(lines + waiting)

    def all_ended(self, why: str) -> bytes:
        """Returns the errors of all requests that wait."""
        return b"".join([self._ended(key, why) for key in list(self._waiting)])

    # ---- inside ------------------------------------------------------------------------------------------

    def _asked(self, message: _Message, line: bytes | None) -> None:
        if message.method is None:
            if message.id is not None:
                self._questions.discard(message.id)
        elif message.id is None:
            if message.method == "notifications/initialized" and line is not None:
                self._greeting[1:] = [line]
            if (cancelled := message.cancels) is not None:
                self._waiting.pop(cancelled, None)
        elif message.method:
            self._waiting[message.id] = _Waiting(message.method, line)
            if message.method == "initialize":
                self._greeting = [] if line is None else [line]

    def _ended(self, key: int | str, why: str) -> bytes:
        del self._waiting[key]
        self.answered = True
        return _encoded(Misread(CONNECTION_CLOSED, key, why).answer())


def needs_daemon(piece: Piece) -> bool:
    """Says whether a client's message is answered: others are of no use to a daemon that has not seen what they are
    about."""
    if not piece.begins:
        return False
    message = _decoded(piece.data) if piece.ends else _started(piece.data)
    is_answer_or_note = message.method is None or message.method.startswith("notifications/")
    return not is_answer_or_note and bool(piece.data.strip())


# ---- inside ----------------------------------------------------------------------------------------------


def _is_repeatable(one: _Waiting) -> bool:
    return one.line is not None and (one.method in REPEATABLE or one.method.endswith("/list"))


def _decoded(line: bytes) -> _Message:
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


def _started(data: bytes) -> _Message:
    found = _START.match(data)
    if found is None:
        return _Message(None, "", {})
    key, kind, method = found.groups()
    known = None if key is None else json.loads(key)
    return _Message(known, (method or b"").decode("utf-8", "replace") if kind == b"method" else None, {})


def _encoded(body: dict[str, Any]) -> bytes:
    # With escapes, since half an emoji has no UTF-8.
    return json.dumps(body, separators=(",", ":")).encode() + b"\n"
