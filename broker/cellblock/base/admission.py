"""Admission decides whose run is next: its queue is bounded, in all and per client, and fair across clients.

The rule: a free place goes to the waiting client that holds the fewest places, and among equals to the one that has
waited longest since it last got one. Within one client it is first come, first served. So clients that wait share the
places evenly (max-min), however many runs each has queued and however long its runs take; and between two consecutive
leases of one client, each other client that waited all along got one too, or holds more places.

Of a client nothing is kept once it neither waits nor holds a place; who comes back, comes as new and goes behind its
equals that wait already.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final, Generic, TypeVar

from cellblock.base.errors import Overloaded

DEFAULT_CLIENT: Final = "default"
"""Names the client of everyone who gives no name."""

T = TypeVar("T")


class QueueBound:
    """Bounds one queue, or several that a run stands in one after the other.

    Args:
        queue_size: Runs that may wait in all; those of one client may take half.
    """

    def __init__(self, queue_size: int) -> None:
        self._queue_size = queue_size
        # A client that fills its share leaves others theirs.
        self._client_queue_size = -(-queue_size // 2)
        self._waiting = 0
        self._own: dict[str, int] = {}

    def check(self, client: str) -> None:
        """Raises Overloaded when one more run of `client` may not wait."""
        own = self._own.get(client, 0)
        if own >= self._client_queue_size and self._waiting < self._queue_size:
            raise Overloaded(
                f"This client has {own} runs waiting, as many as one client may have (half of pool.queue_size); "
                f"{self._waiting} runs wait in all.",
                hint="Wait until some of them have ended before you start more.",
            )
        if self._waiting >= self._queue_size:
            raise Overloaded(
                f"No run can start now, and {self._waiting} runs wait, as many as may in all (pool.queue_size); "
                f"{own} of them are this client's.",
                hint="Try again in a few seconds, or raise pool.capacity and pool.queue_size.",
            )

    def enter(self, client: str) -> None:
        """Counts a run that begins to wait. Raises Overloaded as `check`."""
        self.check(client)
        self._waiting += 1
        self._own[client] = self._own.get(client, 0) + 1

    def leave(self, client: str) -> None:
        """Counts out a run that waits no more."""
        self._waiting -= 1
        left = self._own.pop(client) - 1
        if left:
            self._own[client] = left


@dataclass(eq=False, slots=True)
class Ticket(Generic[T]):
    """A ticket is one run's place in the queue."""

    client: str
    item: T
    bound: QueueBound


@dataclass(slots=True)
class _Client:
    tickets: OrderedDict[Ticket[Any], None] = field(default_factory=OrderedDict[Ticket[Any], None])
    places: int = 0
    since: int = 0
    """Says when the client last got a place or, if later, began to wait; unique among clients."""


class Admission(Generic[T]):
    """Admits runs; no operation waits.

    Args:
        queue_size: Runs that may wait in all; those of one client may take half.

    Attributes:
        bound: The queue's bounds; runs that wait in another queue first may count in them, too.
        waiting: How many runs wait.
    """

    def __init__(self, queue_size: int) -> None:
        self.bound = QueueBound(queue_size)
        self.waiting = 0
        self._clients: dict[str, _Client] = {}
        self._clock = 0

    def may_start(self, client: str, free: int, reserve: int) -> bool:
        """Says whether a run of `client` that comes now need not wait, `next_up` having been served to its end.

        Args:
            client: Its name.
            free: Free places.
            reserve: Free places that are kept for clients that hold none.
        """
        state = self._clients.get(client)
        if state is None:
            return free > 0
        return not state.tickets and free > (reserve if state.places else 0)

    def start(self, client: str) -> None:
        """Counts a place that a client got without waiting."""
        state = self._clients.setdefault(client, _Client())
        state.places += 1
        state.since = self._tick()

    def end(self, client: str) -> None:
        """Takes back one place of a client."""
        state = self._clients[client]
        state.places -= 1
        if not state.tickets and state.places == 0:
            del self._clients[client]

    def join(self, client: str, item: T, bound: QueueBound | None = None) -> Ticket[T]:
        """Puts a run at the end of its client's line, counted in another queue's `bound` if that is given.

        Raises:
            Overloaded: As `QueueBound.check`, of the bound in which it would count.
        """
        bound = bound or self.bound
        bound.enter(client)
        state = self._clients.setdefault(client, _Client())
        ticket = Ticket(client, item, bound)
        state.tickets[ticket] = None
        self.waiting += 1
        if len(state.tickets) == 1:
            state.since = self._tick()
        return ticket

    def leave(self, ticket: Ticket[T]) -> None:
        """Takes a run out of the queue, wherever it is; one that is out already stays out."""
        state = self._clients.get(ticket.client)
        if state is not None and ticket in state.tickets:
            self._remove(ticket, state)
            if not state.tickets and state.places == 0:
                del self._clients[ticket.client]

    def next_up(self, free: int, reserve: int) -> Ticket[T] | None:
        """Returns the run whose turn it is, or None: nobody waits, or what is free is kept for clients that hold no
        place.

        Args:
            free: Free places.
            reserve: As for `may_start`.
        """
        waiting = [state for state in self._clients.values() if state.tickets]
        first = min(waiting, key=lambda state: (state.places, state.since), default=None)
        # Whoever is first holds the fewest: if it may not have a place, nobody may.
        if first is None or free <= (reserve if first.places else 0):
            return None
        return next(iter(first.tickets))

    def admit(self, ticket: Ticket[T]) -> None:
        """Takes the run that `next_up` gave out of the queue and counts its place."""
        state = self._clients[ticket.client]
        self._remove(ticket, state)
        state.places += 1
        state.since = self._tick()

    def clear(self) -> list[Ticket[T]]:
        """Empties the queue; gives the tickets that were in it."""
        tickets = [ticket for state in self._clients.values() for ticket in state.tickets]
        for ticket in tickets:
            self.leave(ticket)
        return tickets

    def _remove(self, ticket: Ticket[T], state: _Client) -> None:
        del state.tickets[ticket]
        ticket.bound.leave(ticket.client)
        self.waiting -= 1

    def _tick(self) -> int:
        self._clock += 1
        return self._clock


async def wait_turn(
    queue: Admission[Any],
    ticket: Ticket[Any],
    turn: asyncio.Future[T],
    seconds: float,
    take_back: Callable[[T], object],
) -> T:
    """Waits for the turn of a run that has joined the queue, and takes the run out of it.

    Args:
        queue: The queue.
        ticket: The run's place in it.
        turn: Gets what the run waits for.
        seconds: The longest wait.
        take_back: Gets what came at the moment at which the run gave up: it goes to the next in the queue.

    Raises:
        TimeoutError: The turn did not come in time.
    """
    try:
        async with asyncio.timeout(seconds):
            return await turn
    except (TimeoutError, asyncio.CancelledError):
        if turn.done() and not turn.cancelled() and turn.exception() is None:
            take_back(turn.result())
        raise
    finally:
        queue.leave(ticket)
