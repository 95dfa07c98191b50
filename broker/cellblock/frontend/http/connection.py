"""One connection is uvicorn's, with the bounds that it lacks against clients that are slow or silent on purpose, and
with heads of requests that nobody can read in two ways.

h11 bounds a head only while it is incomplete, so that one which comes in a single piece may have any size; and of two
answers to where a body ends it takes one. A proxy in front of us may take the other, and what we then read as the next
request was a part of somebody's body (RFC 9112, sections 5.2, 6.1, 6.3 and 11.2).
"""

from __future__ import annotations

import asyncio
import re
from typing import Any, Final, cast

import h11
from uvicorn.config import Config
from uvicorn.protocols.http.h11_impl import H11Protocol, RequestResponseCycle
from uvicorn.server import ServerState

from cellblock.config.http import HttpSettings
from cellblock.frontend.http.places import Places

STRANGER_KEEP_ALIVE_SECONDS: Final = 5
"""Bounds the idle time of a connection that has shown no token: for the next request of a client that asks again at
once."""

MAX_HEADER_BYTES: Final = 32 * 1024
"""Bounds the request line and all headers; tokens of authorization servers take a few KiB."""

_END = re.compile(rb"\n\r?\n")
_FRAMING = re.compile(rb"\n(?:content-length|transfer-encoding)[ \t]*:([^\n]*)", re.IGNORECASE)
_LINE = re.compile(rb"[^\n]*HTTP/1\.1\r\n")


def connections_bounded_by(settings: HttpSettings, shared: Places) -> type[asyncio.Protocol]:
    """Returns the protocol class for uvicorn's `http` setting, for connections that share places."""

    class Bounded(BoundedConnection):
        bounds = settings
        places = shared

    return Bounded


class _Gathering:
    """Wraps a transport so that it sends what is written in one turn of the loop at once: uvicorn writes a response's
    head and its body by themselves, and each would wake the client."""

    def __init__(self, transport: asyncio.Transport, loop: asyncio.AbstractEventLoop) -> None:
        self._transport = transport
        self._loop = loop
        self._held: list[bytes] = []

    def write(self, data: bytes) -> None:
        """Sends at the end of this turn of the loop."""
        if not self._held:
            self._loop.call_soon(self._flush)
        self._held.append(data)

    def close(self) -> None:
        """Closes the transport once everything is sent."""
        self._flush()
        self._transport.close()

    def get_write_buffer_size(self) -> int:
        """Returns how many bytes are not yet sent."""
        return self._transport.get_write_buffer_size() + sum(map(len, self._held))

    def _flush(self) -> None:
        held, self._held = self._held, []
        if held:
            self._transport.write(b"".join(held))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._transport, name)


class StrictConnection(h11.Connection):
    """A strict connection is h11's, which here reads no request whose head is too large, or can be read in two
    ways."""

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Gives the next event as h11 does. Raises h11.RemoteProtocolError also for what `fault_of` finds."""
        if self.their_state is h11.IDLE and (fault := fault_of(self.trailing_data[0])) is not None:
            raise h11.RemoteProtocolError(fault, error_status_hint=400)
        return super().next_event()


def fault_of(data: bytes) -> str | None:
    """Says what is wrong with a head, or with as much of it as there is; None: nothing that is looked for here. `data`
    begins at the request line; what follows the head does no harm."""
    end = _END.search(data)
    if (len(data) if end is None else end.end()) > MAX_HEADER_BYTES:
        return "the head is too large"
    if end is None:
        return None
    head = data[: end.end()]
    if b"\n " in head or b"\n\t" in head:
        return "a header is folded"
    if head.count(b"\n") != head.count(b"\r\n"):
        return "a line ends without a carriage return"
    framing = _FRAMING.findall(head)
    if len(framing) > 1 or (framing and b"," in framing[0]):
        return "the length is said twice"
    # Before HTTP/1.1 nobody had to know chunks, and may take them for what comes next.
    if b"transfer-encoding" in head.lower() and _LINE.match(head) is None:
        return "chunks before HTTP/1.1"
    return None


class BoundedConnection(H11Protocol):
    """A connection is aborted when headers take too long, when its peer takes nothing of an answer for too long, or
    when its place goes to another; a `Place`."""

    bounds: HttpSettings
    places: Places

    def __init__(
        self,
        config: Config,
        server_state: ServerState,
        app_state: dict[str, Any],
        _loop: asyncio.AbstractEventLoop | None = None,
    ) -> None:
        super().__init__(config, server_state, app_state, _loop)
        self.conn = StrictConnection(h11.SERVER, MAX_HEADER_BYTES)
        self.timeout_keep_alive = min(config.timeout_keep_alive, STRANGER_KEEP_ALIVE_SECONDS)
        self._headers_due: asyncio.TimerHandle | None = None
        self._stall_check: asyncio.TimerHandle | None = None

    @property
    def idle(self) -> bool:
        """Says whether no request is being answered on this connection."""
        cycle = cast("RequestResponseCycle | None", self.cycle)
        return cycle is None or cycle.response_complete

    def welcome(self) -> None:
        """Allows a connection that has shown a token to be idle for longer."""
        self.timeout_keep_alive = self.config.timeout_keep_alive

    def give_up(self) -> None:
        """Aborts the connection, as its place goes to another one."""
        self.transport.abort()

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Takes a place, and starts the time for the first headers."""
        super().connection_made(cast("asyncio.Transport", _Gathering(transport, self.loop)))
        self._await_headers()
        self.places.enter(self)

    def data_received(self, data: bytes) -> None:
        """Reads data as uvicorn does, which stops its keep-alive timer at the first byte of the next request's
        headers."""
        super().data_received(data)
        if self.transport.is_closing() or self.conn.their_state is not h11.IDLE:
            self._stop_awaiting_headers()
        elif self._headers_due is None and self.timeout_keep_alive_task is None:
            self._await_headers()

    def connection_lost(self, exc: Exception | None) -> None:
        """Stops all timers, and gives the place back."""
        self.places.leave(self)
        self._stop_awaiting_headers()
        self._stop_stall_check()
        super().connection_lost(exc)
        # Both know the connection: else those of a burst would go together, when the collector comes by.
        self._unset_keepalive_if_required()
        self.cycle = cast("RequestResponseCycle", None)

    def send_400_response(self, msg: str) -> None:
        """Refuses what is no HTTP as the gate refuses: a bare status, or nothing behind an answer that has begun."""
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()
            return
        headers = [(b"content-length", b"0"), (b"connection", b"close")]
        response = h11.Response(status_code=400, headers=headers, reason=b"Bad Request")
        self.transport.write(self.conn.send(response) or b"")
        self.transport.write(self.conn.send(h11.EndOfMessage()) or b"")
        self.transport.close()

    def pause_writing(self) -> None:
        """Starts to watch a peer that is behind."""
        super().pause_writing()
        self._stop_stall_check()
        self._check_stall(None)

    def resume_writing(self) -> None:
        """Watches no more a peer that has caught up."""
        self._stop_stall_check()
        super().resume_writing()

    def _await_headers(self) -> None:
        self._headers_due = self.loop.call_later(self.bounds.header_timeout_ms / 1000, self.transport.abort)

    def _stop_awaiting_headers(self) -> None:
        if self._headers_due is not None:
            self._headers_due.cancel()
            self._headers_due = None

    def _check_stall(self, before: int | None) -> None:
        left = self.transport.get_write_buffer_size()
        if before is not None and left >= before:
            self.transport.abort()
            return
        self._stall_check = self.loop.call_later(self.bounds.stall_timeout_ms / 1000, self._check_stall, left)

    def _stop_stall_check(self) -> None:
        if self._stall_check is not None:
            self._stall_check.cancel()
            self._stall_check = None
