"""Hosts, leases and the admission queue: who gets a worker, and when.

The pool believes nothing a host says beyond the leases it gave that host: a message under another host's token,
or under none, is dropped.
"""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from cellblock.config import PoolSettings
from cellblock.errors import HostUnavailable, Overloaded
from cellblock.pool.lease import Lease, LeaseEvents
from cellblock.transport.link import HostLink
from cellblock_worker import protocol

logger = logging.getLogger("cellblock.pool")

TOKEN_BYTES: Final = 16

HOST_SILENCE_SECONDS: Final = 8.0
"""A host says `Status` every second; after this long without a word it is hung and is replaced."""


@dataclass
class _Host:
    identity: bytes
    capacity: int = 0
    leases: dict[bytes, Lease] = field(default_factory=dict[bytes, Lease])
    status: protocol.Status | None = None
    hello: protocol.Hello | None = None
    heard: float = field(default_factory=time.monotonic)


class _Waiting(NamedTuple):
    events: LeaseEvents
    lease: asyncio.Future[Lease]


class Pool:
    """Implements `transport.link.LinkEvents`.

    Args:
        settings: Sizes of the pool and its queue.
        on_host_failed: Told the identity of a host that must be replaced, and why.
    """

    def __init__(self, settings: PoolSettings, on_host_failed: Callable[[bytes, str], None]) -> None:
        self._settings = settings
        self._on_host_failed = on_host_failed
        self._hosts: dict[bytes, _Host] = {}
        self._queue: deque[_Waiting] = deque()
        self._link: HostLink | None = None
        self._closed = False

    def use(self, link: HostLink) -> None:
        """Sets the wire that hosts are reached by."""
        self._link = link

    @property
    def hosts(self) -> list[protocol.Hello]:
        """What the connected hosts said of themselves."""
        return [host.hello for host in self._hosts.values() if host.hello is not None]

    @property
    def running(self) -> int:
        """Leases that are out."""
        return sum(len(host.leases) for host in self._hosts.values())

    @property
    def queued(self) -> int:
        """Runs that wait for a place."""
        return len(self._queue)

    @property
    def warm(self) -> int:
        """Warm workers, as the hosts last said."""
        return sum(host.status.warm for host in self._hosts.values() if host.status)

    async def acquire(self, events: LeaseEvents) -> Lease:
        """Waits for a place at a host.

        Raises:
            Overloaded: The queue is full, or `queue_wait_ms` passed.
            HostUnavailable: The pool is closed, or there was no host when `queue_wait_ms` had passed.
        """
        if self._closed:
            raise HostUnavailable("Cellblock is stopping.", hint="Try again when it runs.")
        host = self._free_host() if not self._queue else None
        return self._grant(host, events) if host is not None else await self._wait_for_lease(events)

    def release(self, lease: Lease) -> None:
        """Takes a lease back and lets the next waiting run in."""
        if lease.released:
            return
        lease.released = True
        host = self._hosts.get(lease.host)
        if host is not None:
            host.leases.pop(lease.token, None)
        self._let_in()

    def send(self, lease: Lease, message: protocol.ToHost, body: bytes) -> None:
        """Sends under a lease. Raises OSError when the host cannot be reached."""
        if self._link is None or lease.host not in self._hosts:
            raise ConnectionError("the worker host is gone")
        self._link.send(lease.host, lease.token, message, body)

    def host_failed(self, identity: bytes, why: str) -> None:
        """A host broke its word or went silent: its runs end, and it is replaced."""
        if identity in self._hosts:
            logger.error("worker host %s failed: %s", identity.hex()[:8], why)
            self.host_gone(identity, why)
            self._on_host_failed(identity, why)

    def host_gone(self, identity: bytes, why: str) -> None:
        """A host's process is gone: every run it had is told."""
        host = self._hosts.pop(identity, None)
        if host is None:
            return
        for lease in list(host.leases.values()):
            lease.events.host_lost(why)

    def check_silence(self) -> None:
        """Fails hosts that have said nothing for `HOST_SILENCE_SECONDS`; call it now and then."""
        now = time.monotonic()
        for host in list(self._hosts.values()):
            if now - host.heard > HOST_SILENCE_SECONDS:
                self.host_failed(host.identity, f"silent for {HOST_SILENCE_SECONDS:g} s")

    def close(self) -> None:
        """Refuses everything that waits."""
        self._closed = True
        for waiting in self._queue:
            if not waiting.lease.done():
                error = HostUnavailable("Cellblock is stopping.", hint="Try again when it runs.")
                waiting.lease.set_exception(error)
        self._queue.clear()

    # ---- what hosts say (LinkEvents) -----------------------------------------------------------------

    def host_says(self, host: bytes, token: bytes, message: protocol.FromHost, body: bytes) -> None:
        """Routes a message to the run it belongs to, if that run is this host's."""
        state = self._hosts.get(host)
        if isinstance(message, protocol.Hello):
            self._on_hello(host, message)
            return
        if state is None:
            return
        state.heard = time.monotonic()
        if isinstance(message, protocol.Status):
            state.status = message
            return
        lease = state.leases.get(token)
        if lease is not None:
            lease.events.worker_says(message, body)

    def host_broke_protocol(self, host: bytes, why: str) -> None:
        """A host sent what is no message."""
        self.host_failed(host, f"broke the protocol: {why}")

    # ---- inside --------------------------------------------------------------------------------------

    def _on_hello(self, identity: bytes, hello: protocol.Hello) -> None:
        if hello.protocol != protocol.PROTOCOL_VERSION:
            why = f"speaks protocol {hello.protocol}, not {protocol.PROTOCOL_VERSION}"
            logger.error("worker host %s %s", identity.hex()[:8], why)
            self._on_host_failed(identity, why)
            return
        if identity in self._hosts:
            # A second greeting would forget the runs that the host has.
            self.host_failed(identity, "broke the protocol: a second hello")
            return
        self._hosts[identity] = _Host(identity, capacity=hello.capacity, hello=hello)
        self._let_in()

    def _free_host(self) -> _Host | None:
        best: _Host | None = None
        for host in self._hosts.values():
            if len(host.leases) < host.capacity and (best is None or len(host.leases) < len(best.leases)):
                best = host
        return best

    def _grant(self, host: _Host, events: LeaseEvents) -> Lease:
        lease = Lease(self, host.identity, secrets.token_bytes(TOKEN_BYTES), events)
        host.leases[lease.token] = lease
        return lease

    async def _wait_for_lease(self, events: LeaseEvents) -> Lease:
        if len(self._queue) >= self._settings.queue_size:
            raise Overloaded(
                f"All workers are busy and {len(self._queue)} runs wait already.",
                hint="Try again in a moment, or raise pool.capacity and pool.queue_size.",
            )
        waiting = _Waiting(events, asyncio.get_running_loop().create_future())
        self._queue.append(waiting)
        try:
            async with asyncio.timeout(self._settings.queue_wait_ms / 1000):
                return await waiting.lease
        except TimeoutError:
            self._take_back(waiting)
            if not self._hosts:
                raise HostUnavailable(
                    f"No worker host came back within {self._settings.queue_wait_ms} ms.",
                    hint="Run `cellblock doctor`, and see host.log in the state directory.",
                ) from None
            raise Overloaded(
                f"No worker was free within {self._settings.queue_wait_ms} ms.",
                hint="Try again in a moment, or raise pool.capacity.",
            ) from None
        except asyncio.CancelledError:
            self._take_back(waiting)
            raise
        finally:
            if waiting in self._queue:
                self._queue.remove(waiting)

    def _take_back(self, waiting: _Waiting) -> None:
        """A place that came at the moment at which its run gave up goes to the next in the queue."""
        future = waiting.lease
        if future.done() and not future.cancelled() and future.exception() is None:
            self.release(future.result())

    def _let_in(self) -> None:
        # The lease is made here, not when its run wakes: in between, a newcomer would take the place.
        while self._queue and (host := self._free_host()) is not None:
            waiting = self._queue.popleft()
            if not waiting.lease.done():
                waiting.lease.set_result(self._grant(host, waiting.events))
