"""The pool leases places at worker hosts to runs; `admission` says whose turn it is.

The pool believes nothing a host says beyond the leases it gave that host: a message under another host's token,
or under none, is dropped.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, NamedTuple, Protocol, TypeAlias

from cellblock.base.admission import DEFAULT_CLIENT, Admission, QueueBound, wait_turn
from cellblock.base.callbacks import tell
from cellblock.base.errors import HostUnavailable, Overloaded
from cellblock.base.settings.settings import PoolSettings
from cellblock.pool.router import HostLink
from cellblock_worker.wire import protocol

logger = logging.getLogger("cellblock.pool")

TOKEN_BYTES: Final = 16

RESERVED_SHARE: Final = 16
"""Keeps one place in so many for clients that hold none, so that long runs of one client do not keep another from
running at all; a pool smaller than this keeps none."""

DEMAND_PAUSE_SECONDS: Final = 0.01
"""Sets the pause between two words to shared hosts about how many runs wait."""

HOST_SILENCE_SECONDS: Final = 8.0
"""Passes until a host that says nothing counts as hung, and is replaced: a host says `Status` every second."""


class LeaseEvents(Protocol):
    """Hears, for a run, what the worker of its lease says."""

    def worker_says(self, message: protocol.FromHost, body: bytes) -> None:
        """Takes a message under this run's token, from the host that has the lease."""

    def host_lost(self, why: str) -> None:
        """Hears that the host is gone, and the run's worker with it. Nothing is told after this."""


class Lease:
    """A lease is one run's hold on one place at one host. The holder must call `release`.

    Attributes:
        token: Random name of the run on the wire, 16 bytes.
        host: Identity of the host.
        client: Who holds the place.
        began: Whether its run has been sent.
    """

    def __init__(self, pool: Pool, host: _Host, token: bytes, events: LeaseEvents, client: str) -> None:
        self._pool, self._of = pool, host
        self.host = host.identity
        self.token = token
        self.events = events
        self.client = client
        self.released = self.began = False

    def send(self, message: RunMessage, body: bytes = b"") -> None:
        """Sends the host a message of the run. Raises OSError when the host cannot be reached."""
        host = self._of
        if host.is_gone:
            raise ConnectionError("the worker host is gone")
        try:
            host.link.send(self.host, self.token, message, body)
        except OSError:
            host.is_reached = False
            raise
        if not self.began:
            self.began = True
            self._pool.repeat_grants(host)

    def release(self) -> None:
        """Gives the place back; later messages under the token are dropped."""
        self._pool.release(self)

    def host_failed(self, why: str) -> None:
        """Ends the runs of a host that broke its word or went silent, and has it replaced."""
        self._pool.host_failed(self.host, why)


RunMessage: TypeAlias = (
    protocol.Run
    | protocol.Reply
    | protocol.Pause
    | protocol.Resume
    | protocol.Lend
    | protocol.Repay
    | protocol.Last
    | protocol.Cancel
)
"""Names the messages of one run to its host."""


@dataclass
class _Host:
    identity: bytes
    link: HostLink
    capacity: int = 0
    leases: dict[bytes, Lease] = field(default_factory=dict[bytes, Lease])
    status: protocol.Status | None = None
    hello: protocol.Hello | None = None
    heard: float = field(default_factory=time.monotonic)
    grants: deque[int] = field(default_factory=deque[int])
    """Holds what a shared host has lent and is still to be told back."""
    is_reached: bool = True
    """Says whether the last message to the host could be sent: one whose death is not noticed yet gets no run."""
    is_gone: bool = False

    @property
    def free(self) -> int:
        # By host: one that has lent fewer places than it has runs takes none from the others.
        return max(0, self.capacity - len(self.leases))


class _Waiting(NamedTuple):
    events: LeaseEvents
    lease: asyncio.Future[Lease]


class Pool:
    """Leases places at hosts; implements `router.LinkEvents`.

    Args:
        settings: Sizes of the pool and its queue.
        on_host_failed: Told the identity of a host that must be replaced, and why.
        on_host_greeted: Told the identity of a host that may get runs now.
    """

    def __init__(
        self,
        settings: PoolSettings,
        on_host_failed: Callable[[bytes, str], None],
        on_host_greeted: Callable[[bytes], None] = lambda _: None,
    ) -> None:
        self._on_host_greeted = on_host_greeted
        self._settings = settings
        self._on_host_failed = on_host_failed
        self._hosts: dict[bytes, _Host] = {}
        self._admission: Admission[_Waiting] = Admission(settings.queue_size)
        self._links: list[HostLink] = []
        self._closed = False
        self._greeted = False
        self._last_failure = ""
        self._told_waiting = 0
        self._telling: asyncio.TimerHandle | None = None

    def use(self, link: HostLink) -> None:
        """Adds a wire that hosts are reached by."""
        self._links.append(link)

    @property
    def hosts(self) -> list[protocol.Hello]:
        """Returns the `Hello` of each connected host."""
        return [host.hello for host in self._hosts.values() if host.hello is not None]

    @property
    def running(self) -> int:
        """Returns how many runs have a lease."""
        return sum(len(host.leases) for host in self._hosts.values())

    @property
    def queued(self) -> int:
        """Returns how many runs wait for a place."""
        return self._admission.waiting

    @property
    def warm(self) -> int:
        """Returns how many workers are warm, as the hosts last said."""
        return sum(host.status.warm for host in self._hosts.values() if host.status)

    @property
    def warm_wanted(self) -> int:
        """Returns how many workers the hosts want to keep warm, as they last said."""
        return sum(host.status.wanted for host in self._hosts.values() if host.status)

    @property
    def is_warm(self) -> bool:
        """Says whether a host has a warm worker or wants none, as far as hosts have said how many they have."""
        told = (host.status for host in self._hosts.values() if host.status)
        return any(status.warm > 0 or status.wanted == 0 for status in told)

    @property
    def capacity(self) -> int:
        """Returns how many places all hosts have; of shared ones, what they have lent to this broker."""
        return sum(host.capacity for host in self._hosts.values())

    @property
    def booting(self) -> int:
        """Returns how many workers are being booted, as the hosts last said."""
        return sum(host.status.booting for host in self._hosts.values() if host.status)

    @property
    def queue_wait_ms(self) -> int:
        """Returns how long a run waits for a place at most, in milliseconds."""
        return self._settings.queue_wait_ms

    def check_room(self, client: str = DEFAULT_CLIENT) -> None:
        """Raises Overloaded when a run of `client` could neither start nor wait now: sooner than `acquire` would."""
        if not self._may_start(client):
            self._admission.bound.check(client)

    @property
    def bound(self) -> QueueBound:
        """Returns the bounds on runs that wait: who waits for something else that a run needs first counts as waiting
        here.
        """
        return self._admission.bound

    async def acquire(self, events: LeaseEvents, client: str = DEFAULT_CLIENT) -> Lease:
        """Waits for a place at a host, in fair turn with other clients.

        Raises:
            Overloaded: The queue is full in all or for this client, or `queue_wait_ms` passed.
            HostUnavailable: The pool is closed, or there was no host when `queue_wait_ms` had passed.
        """
        if self._closed:
            raise HostUnavailable("Cellblock is stopping.", hint="Try again when it runs.")
        host = self._free_host()
        if host is not None and self._may_start(client):
            self._admission.start(client)
            return self._grant(host, events, client)
        return await self._wait_for_lease(events, client)

    def release(self, lease: Lease) -> None:
        """Takes a lease back and lets the next waiting run in."""
        if lease.released:
            return
        lease.released = True
        host = self._hosts.get(lease.host)
        if host is not None:
            host.leases.pop(lease.token, None)
            self.repeat_grants(host)
        self._admission.end(lease.client)
        self._let_in()

    def keep_keys(self, prefix: str) -> None:
        """Has the hosts end what they keep for runs whose key begins otherwise: no such run will come."""
        for host in self._hosts.values():
            with contextlib.suppress(OSError):
                host.link.send(host.identity, b"", protocol.Keys(prefix=prefix))

    def host_failed(self, identity: bytes, why: str) -> None:
        """Ends the runs of a host that broke its word or went silent, and has it replaced."""
        if identity in self._hosts:
            logger.error("worker host %s failed: %s", identity.hex()[:8], why)
            self.host_gone(identity, why)
            tell(self._on_host_failed, identity, why)

    def host_gone(self, identity: bytes, why: str) -> None:
        """Tells every run of a host whose process is gone."""
        self._last_failure = why
        host = self._hosts.pop(identity, None)
        if host is None:
            return
        host.is_gone = True
        for lease in list(host.leases.values()):
            tell(lease.events.host_lost, why)

    def check_silence(self, late: float = 0.0) -> None:
        """Fails hosts that have said nothing for `HOST_SILENCE_SECONDS`; call it now and then.

        `late` is how many seconds later than it was due this is called: so long nobody here has listened.
        """
        now = time.monotonic()
        for host in list(self._hosts.values()):
            host.heard = min(now, host.heard + late)
            if now - host.heard > HOST_SILENCE_SECONDS:
                self.host_failed(host.identity, f"silent for {HOST_SILENCE_SECONDS:g} s")

    def close(self) -> None:
        """Refuses all runs that wait for a place."""
        self._closed = True
        if self._telling is not None:
            self._telling.cancel()
        for ticket in self._admission.clear():
            if not ticket.item.lease.done():
                error = HostUnavailable("Cellblock is stopping.", hint="Try again when it runs.")
                ticket.item.lease.set_exception(error)

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
        if not state.is_reached:
            state.is_reached = True
            self._let_in()
        if isinstance(message, protocol.Status):
            state.status = message
            return
        if isinstance(message, protocol.Grant):
            self._on_grant(state, message)
            return
        lease = state.leases.get(token)
        if lease is not None:
            lease.events.worker_says(message, body)

    def host_broke_protocol(self, host: bytes, why: str) -> None:
        """Fails a host that sent what is no message."""
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
        link = next((link for link in self._links if link.reaches(identity)), None)
        if link is None:
            # Let go while its greeting was on the way.
            return
        capacity = 0 if hello.shared else hello.capacity
        self._hosts[identity] = host = _Host(identity, link, capacity=capacity, hello=hello)
        self._greeted, self._last_failure = True, ""
        self._on_host_greeted(identity)
        if hello.shared and self._told_waiting:
            self._say(host, protocol.Demand(waiting=self._told_waiting))
        self._let_in()

    def _on_grant(self, host: _Host, grant: protocol.Grant) -> None:
        if host.hello is None or not host.hello.shared:
            self.host_failed(host.identity, "broke the protocol: a grant of a host that is not shared")
            return
        host.capacity = grant.places
        host.grants.append(grant.places)
        self.repeat_grants(host)
        self._let_in()

    def repeat_grants(self, host: _Host) -> None:
        """Repeats what the host has lent, behind every run that is over it: it may lend to others what this broker has
        no more, and a lease may have its run still to send."""
        while host.grants:
            places = host.grants[0]
            if len(host.leases) > places and not all(lease.began for lease in host.leases.values()):
                return
            host.grants.popleft()
            self._say(host, protocol.Granted(places=places))

    def _say(self, host: _Host, message: protocol.ToHost) -> None:
        with contextlib.suppress(OSError):
            host.link.send(host.identity, b"", message)

    def _note_demand(self) -> None:
        """Tells shared hosts soon how many runs wait, at once of the first."""
        if self._telling is not None or self._admission.waiting == self._told_waiting:
            return
        if not any(host.hello is not None and host.hello.shared for host in self._hosts.values()):
            self._told_waiting = self._admission.waiting
            return
        if self._told_waiting == 0:
            self._tell_demand()
        self._telling = asyncio.get_running_loop().call_later(DEMAND_PAUSE_SECONDS, self._tell_changes)

    def _tell_changes(self) -> None:
        self._telling = None
        if self._admission.waiting != self._told_waiting:
            self._tell_demand()

    def _tell_demand(self) -> None:
        self._told_waiting = self._admission.waiting
        for host in self._hosts.values():
            if host.hello is not None and host.hello.shared:
                self._say(host, protocol.Demand(waiting=self._told_waiting))

    def _free_host(self) -> _Host | None:
        """Returns the host that has the fewest runs, of those with a free place; of several the one that came
        first."""
        usable = (host for host in self._hosts.values() if host.is_reached and host.free)
        return min(usable, key=lambda host: len(host.leases), default=None)

    def _free_and_reserved(self) -> tuple[int, int]:
        free = sum(host.free for host in self._hosts.values())
        return free, self.capacity // RESERVED_SHARE

    def _may_start(self, client: str) -> bool:
        return self._admission.may_start(client, *self._free_and_reserved())

    def _grant(self, host: _Host, events: LeaseEvents, client: str) -> Lease:
        lease = Lease(self, host, secrets.token_bytes(TOKEN_BYTES), events, client)
        host.leases[lease.token] = lease
        return lease

    async def _wait_for_lease(self, events: LeaseEvents, client: str) -> Lease:
        waiting = _Waiting(events, asyncio.get_running_loop().create_future())
        ticket = self._admission.join(client, waiting)
        seconds = self._settings.queue_wait_ms / 1000
        self._note_demand()
        try:
            return await wait_turn(self._admission, ticket, waiting.lease, seconds, self.release)
        except TimeoutError:
            raise self._waited_too_long() from None
        finally:
            self._note_demand()

    def _waited_too_long(self) -> Overloaded | HostUnavailable:
        bound = f"within {self._settings.queue_wait_ms} ms (pool.queue_wait_ms)"
        if not self._hosts:
            what = "No worker host came back" if self._greeted else "The worker host was not ready"
            why = "" if self._greeted else ": it is still starting, or does not start"
            last = f" Last: {self._last_failure}." if self._last_failure else ""
            return HostUnavailable(
                f"{what} {bound}{why}.{last}",
                hint="Try again in a moment; `cellblock doctor`, and host.log in the state directory, say why.",
            )
        return Overloaded(
            f"No place came free {bound}: {self.running} runs hold all that this client may have.",
            hint="Try again in a moment, lower timeoutMs of long runs, or raise pool.capacity.",
        )

    def _let_in(self) -> None:
        # The lease is made here, not when its run wakes: in between, a newcomer would take the place.
        while (host := self._free_host()) is not None:
            ticket = self._admission.next_up(*self._free_and_reserved())
            if ticket is None:
                return
            if ticket.item.lease.done():
                # Cancelled, and not yet awake to leave by itself.
                self._admission.leave(ticket)
                continue
            self._admission.admit(ticket)
            ticket.item.lease.set_result(self._grant(host, ticket.item.events, ticket.client))
