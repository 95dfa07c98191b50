"""Owns the ROUTER socket for worker hosts on other machines: TCP, always with CURVE and an allow-list of keys.

A host of this wire is known by a prefix and the identity that it chose, so that none can take the name of the host
that the broker has started itself. Two hosts of one identity cannot be: ZeroMQ ignores the later one as long as the
first is connected (ROUTER_HANDOVER stays off).
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Mapping
from typing import Final

import msgspec
import zmq

from cellblock.base.kept import Newest
from cellblock.pool.router import LinkEvents, read_parts
from cellblock_worker.wire import protocol
from cellblock_worker.wire.frames import MAX_HEADER_BYTES, FrameError
from cellblock_worker.wire.keys import ZAP_DOMAIN, KeyPair, prepare_listener
from cellblock_worker.wire.loop_socket import LoopSocket, Watch, explain

logger = logging.getLogger("cellblock.transport")

PREFIX: Final = b"tcp:"

PROBE_PAUSES_SECONDS: Final = (0.02, 0.5)
"""Sets when to look which host it was whose connection has ended: ZeroMQ tells of it a little before its own table of
peers is in order."""

LOG_INTERVAL_SECONDS: Final = 1.0
"""Sets the pause between two log lines of a kind about hosts that were not let in: neither a scanner nor a host must
fill the disk."""

REFUSED_KEPT: Final = 1_000
"""Caps the hosts that were not taken and are not heard again, the latest; one that comes back has a new identity."""

WHY_CHARS: Final = 500

_PROBE: Final = protocol.Cancel().packed()
"""Cancels no run: the least that a host can be sent."""


class CurveLink:
    """Binds at construction; implements `router.HostLink`.

    Args:
        endpoint: `tcp://ADDRESS:PORT`.
        own: The broker's key pair.
        allowed: Names of the hosts that may connect, by their public keys.
        max_message_bytes: Cap of one message part from a host.
        events: Told what hosts say.
        judge: Says why a host that greets is not taken, or None.
        on_gone: Told the identity of a host whose connection has ended, and why.

    Raises:
        EndpointError: It is no TCP endpoint.
        zmq.ZMQError: It cannot be bound.
    """

    def __init__(
        self,
        endpoint: str,
        *,
        own: KeyPair,
        allowed: Mapping[str, str],
        max_message_bytes: int,
        events: LinkEvents,
        judge: Callable[[protocol.Hello], str | None],
        on_gone: Callable[[bytes, str], None],
    ) -> None:
        self._events = events
        self._max_message_bytes = max_message_bytes
        self._judge = judge
        self._on_gone = on_gone
        self._loop = asyncio.get_running_loop()
        self._joined: set[bytes] = set()
        self._refused = Newest[bytes, None](REFUSED_KEPT)
        self._closed = False
        self._refusals = NowAndThen()
        self._explained = False
        self._ended = 0
        # A context of its own: what strangers send keeps no thread of the host on this machine busy.
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        with contextlib.ExitStack() as stack:
            stack.callback(self._context.destroy, linger=0)
            router = self._context.socket(zmq.ROUTER)
            router.setsockopt(zmq.ROUTER_MANDATORY, 1)
            prepare_listener(router, endpoint, own)
            self._guard = stack.enter_context(contextlib.closing(KeyGuard(self._context, allowed)))
            self._socket = LoopSocket(
                router, max_message_bytes=protocol.part_cap(max_message_bytes), on_message=self._on_parts
            )
            stack.callback(self._socket.close)
            stack.callback(Watch(router, self._on_wire).close)
            self._socket.bind(endpoint)
            self.endpoint = router.getsockopt_string(zmq.LAST_ENDPOINT)
            self._open = stack.pop_all()

    def reaches(self, host: bytes) -> bool:
        """Says whether a host has joined over this wire."""
        return host in self._joined

    def send(self, host: bytes, token: bytes, message: protocol.ToHost, body: bytes = b"") -> None:
        """Sends one message. Raises PeerUnreachable (an OSError)."""
        try:
            self._socket.send((host.removeprefix(PREFIX), token, message.packed(), body))
        except OSError:
            # Its other runs should know now, and no new one should come to it.
            self._loop.call_soon(self._probe)
            raise

    def dismiss(self, host: bytes, why: str, *, final: bool = False) -> None:
        """Tells a host to stop, if it can be told, and drops whatever still comes from it.

        Args:
            host: Its identity.
            why: For its log.
            final: Whether it need not come back.
        """
        self._joined.discard(host)
        try:
            self.send(host, b"", protocol.Shutdown(why=why[:WHY_CHARS], final=final))
        except OSError:
            logger.info("worker host %s is gone already", _short(host))

    def close(self) -> None:
        """Closes the sockets. Hosts notice, and come back when a broker listens again."""
        self._closed = True
        self._open.close()

    # ---- what comes in -------------------------------------------------------------------------------

    def _on_parts(self, parts: list[bytes]) -> None:
        host = PREFIX + parts[0]
        if host in self._refused:
            return
        is_joined, own = host in self._joined, protocol.PROTOCOL_VERSION
        if not is_joined and (version := _version_said(parts)) not in (None, own):
            why = f"it speaks protocol {version}, this broker {own}: install the same Cellblock"
            # For now: in an upgrade, this broker's successor may take it.
            self._refuse(host, why, final=False)
            return
        try:
            token, message, body = read_parts(parts, self._max_message_bytes)
        except FrameError as error:
            if is_joined:
                self._events.host_broke_protocol(host, str(error))
            else:
                self._refuse(host, str(error))
            return
        if is_joined:
            self._events.host_says(host, token, message, body)
        elif isinstance(message, protocol.Hello):
            self._on_hello(host, message)

    def _on_hello(self, host: bytes, hello: protocol.Hello) -> None:
        why = self._judge(hello)
        if why is not None:
            self._refuse(host, why)
            return
        logger.info("worker host %s has joined with %d places", _short(host), hello.capacity)
        self._joined.add(host)
        self._events.host_says(host, b"", hello, b"")

    def _refuse(self, host: bytes, why: str, *, final: bool = True) -> None:
        """Refuses a host: it is told once, and what else it says is dropped unread."""
        self._refused[host] = None
        self._refusals.say(f"worker host {_short(host)} is not taken: {why}")
        self.dismiss(host, why, final=final)

    def _on_wire(self, event: zmq.Event, value: int) -> None:
        if event is zmq.Event.DISCONNECTED:
            if self._explained:
                # The same connection's second event: ZeroMQ says why, and at once that it is closed.
                self._explained = False
                return
            self._ended += 1
            for pause in PROBE_PAUSES_SECONDS:
                self._loop.call_later(pause, self._probe)
            self._loop.call_later(PROBE_PAUSES_SECONDS[-1], self._account)
        elif event is not zmq.Event.HANDSHAKE_SUCCEEDED:
            self._explained = True
            self._refusals.say(f"refused a connection to {self.endpoint}: {explain(event, value)}")

    def _probe(self) -> None:
        """Finds the hosts whose connection has ended: no message can be sent to them."""
        if self._closed:
            return
        for host in list(self._joined):
            try:
                self._socket.send((host.removeprefix(PREFIX), b"", _PROBE, b""))
            except OSError:
                self._joined.discard(host)
                self._ended -= 1
                why = "its connection has ended"
                logger.error("worker host %s is gone: %s", _short(host), why)
                self._on_gone(host, f"the worker host is gone: {why}")

    def _account(self) -> None:
        if self._ended > 0:
            why = "it ended without having become a worker host"
            self._refusals.say(f"refused a connection to {self.endpoint}: {why}")
        self._ended = 0


def _short(host: bytes) -> str:
    return host.removeprefix(PREFIX).hex()[:8]


def _version_said(parts: list[bytes]) -> int | None:
    """Returns the protocol version in a greeting, also one that this broker cannot read otherwise."""
    try:
        return msgspec.msgpack.decode(parts[2][:MAX_HEADER_BYTES], type=_Greeting).protocol
    except (ValueError, RecursionError, IndexError):
        return None


class _Greeting(msgspec.Struct, tag_field="t", tag="hello"):
    """Is what the `Hello` of any version has."""

    protocol: int


ENDPOINT = "inproc://zeromq.zap.01"
VERSION = b"1.0"
REQUEST_CAP_BYTES = 4096
SHOWN_CHARS = 100


class NowAndThen:
    """Logs what was refused, one of many."""

    def __init__(self) -> None:
        self._not_before = 0.0
        self._unsaid = 0

    def say(self, what: str) -> None:
        """Logs it, or counts it."""
        now = time.monotonic()
        if now < self._not_before:
            self._unsaid += 1
            return
        more = f" ({self._unsaid} more were not logged)" if self._unsaid else ""
        self._not_before, self._unsaid = now + LOG_INTERVAL_SECONDS, 0
        logger.error("%s%s", what, more)


class KeyGuard:
    """Owns the socket that libzmq asks; answers for every CURVE socket of the context. Bound at construction.

    Args:
        context: A context for nothing but the sockets that this guards.
        allowed: Names by public key, 64 hexadecimal digits.
    """

    def __init__(self, context: zmq.Context[zmq.Socket[bytes]], allowed: Mapping[str, str]) -> None:
        # Apart: who knocks without a key does not hide whose key is missing.
        self._allowed, self._refusals = dict(allowed), NowAndThen()
        self._socket = LoopSocket(
            context.socket(zmq.REP), max_message_bytes=REQUEST_CAP_BYTES, on_message=self._on_request
        )
        self._socket.bind(ENDPOINT)

    def close(self) -> None:
        """Closes the socket; from now on nobody is let in."""
        self._socket.close()

    def _on_request(self, parts: list[bytes]) -> None:
        name = self._decide(parts)
        request_id = parts[1] if len(parts) > 1 else b""
        verdict = (b"400", b"refused", b"") if name is None else (b"200", b"", name.encode())
        self._socket.send((VERSION, request_id, *verdict, b""))

    def _decide(self, parts: list[bytes]) -> str | None:
        if len(parts) != 7 or parts[0] != VERSION:
            self._refusals.say("refused a connection: ZeroMQ asked in an unknown way")
            return None
        _, _, domain, address, _, mechanism, key = parts
        who = address.decode("utf-8", "replace")[:SHOWN_CHARS]
        if domain != ZAP_DOMAIN or mechanism != b"CURVE":
            self._refusals.say(f"refused a connection from {who}: it did not use CURVE")
            return None
        name = self._allowed.get(key.hex())
        if name is None:
            self._refusals.say(
                f"refused a worker host from {who}: its key {key.hex()} is not in cellblock.hosts.allowed_keys"
            )
            return None
        logger.info("let in worker host %s from %s", name, who)
        return name
