"""Decides how many places of a host each of its brokers may use. Sans-I/O.

A place is lent by a grant: how many runs a broker may have here at the same time. Lowering one is only asked for; until
the broker has repeated it, runs may be on the way under the old one. So what a broker may still use, and not what
it was last told, is what others cannot have, and the places in use are never more than there are.

The rule: brokers with work share the places evenly (max-min), however many runs each has waiting; what nobody wants
is spread over all, so that a run that comes need not ask first.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Final, Generic, TypeVar

RESERVED_SHARE: Final = 16
"""Keeps one place in so many for brokers that have no run: long runs of one broker do not keep another from running."""

T = TypeVar("T")


@dataclass(slots=True)
class _Share:
    running: int = 0
    waiting: int = 0
    limit: int = 0
    """Bounds the places that the broker may have, as it was told last."""
    held: int = 0
    """Holds the bound that the broker has last repeated."""
    asked: deque[tuple[int, float]] = field(default_factory=deque[tuple[int, float]])
    """Lists the grants that the broker has not repeated yet, each with its time."""
    served: int = 0
    """Says when the broker last began a run; unique among brokers that have."""
    retired: bool = False
    gone: bool = False

    @property
    def usable(self) -> int:
        """Returns how many runs the broker may have, by the bounds that it can have heard."""
        return max(self.held, *(places for places, _ in self.asked)) if self.asked else self.held

    @property
    def taken(self) -> int:
        """Returns how many places no other broker can have."""
        return max(self.usable, self.running)


class Places(Generic[T]):
    """Divides the places of one host among its brokers.

    Args:
        capacity: Places in all.
        grant: Tells a broker how many it may use.
        clock: Monotonic seconds.
    """

    def __init__(self, capacity: int, grant: Callable[[T, int], None], clock: Callable[[], float]) -> None:
        self._capacity = capacity
        self._grant = grant
        self._clock = clock
        self._shares: dict[T, _Share] = {}
        self._served = 0
        self._settled = True

    def join(self, broker: T) -> None:
        self._shares[broker] = _Share()
        self._divide()

    def leave(self, broker: T) -> None:
        """Gives a broker's places to others, those of its runs as these end."""
        share = self._shares.get(broker)
        if share is not None:
            share.gone = share.retired = True
            share.limit = share.held = share.waiting = 0
            share.asked.clear()
            self._forget(broker, share)
            self._divide()

    def retire(self, broker: T, retired: bool = True) -> None:
        """Has a broker begin no further run, or lets it again."""
        share = self._shares.get(broker)
        if share is not None and share.retired is not retired:
            share.retired = retired
            self._divide()

    def is_idle(self, broker: T) -> bool:
        """Says whether a broker has no run here, and can begin none."""
        share = self._shares.get(broker)
        return share is None or share.taken == 0

    def wants(self, broker: T, waiting: int) -> None:
        """Takes note of how many runs of a broker wait for a place."""
        share = self._shares.get(broker)
        if share is not None and share.waiting != waiting:
            share.waiting = waiting
            self._divide()

    def repeated(self, broker: T, places: int) -> bool:
        """Takes note that a broker keeps to a grant from now on; says whether it was the next one to repeat."""
        share = self._shares.get(broker)
        if share is None or not share.asked or share.asked[0][0] != places:
            return False
        share.held = share.asked.popleft()[0]
        if not self._settled:
            self._divide()
        return True

    def began(self, broker: T) -> bool:
        """Counts a run that has come; says whether the broker had a place for it."""
        share = self._shares.get(broker)
        if share is None or share.running >= share.usable:
            return False
        share.running += 1
        self._served += 1
        share.served = self._served
        if not self._settled:
            # It may have as many runs that wait as before, and says nothing then.
            self._divide()
        return True

    def ended(self, broker: T) -> None:
        """Counts out a run of a broker that is over."""
        share = self._shares.get(broker)
        if share is not None:
            share.running -= 1
            self._forget(broker, share)
            if not self._settled:
                self._divide()

    def overdue(self, seconds: float) -> list[T]:
        """Returns the brokers that have not repeated a grant for so long."""
        before = self._clock() - seconds
        return [
            broker for broker, share in self._shares.items() if share.asked and share.asked[0][1] < before
        ]

    def _forget(self, broker: T, share: _Share) -> None:
        if share.gone and not share.running:
            del self._shares[broker]

    def _divide(self) -> None:
        """Asks back what is over a broker's part, and grants what is free to those who have less than theirs."""
        shares = [(broker, share) for broker, share in self._shares.items() if not share.retired]
        parts = self._parts([share for _, share in shares])
        parts.update({id(share): 0 for share in self._shares.values() if share.retired})
        for broker, share in self._shares.items():
            if parts[id(share)] < share.limit:
                self._tell(broker, share, parts[id(share)])
        free = self._capacity - sum(share.taken for share in self._shares.values())
        self._settled = True
        for broker, share in sorted(shares, key=lambda one: one[1].served):
            part = parts[id(share)]
            now = min(part, share.taken + max(free, 0))
            if now > share.limit:
                free -= max(0, now - share.taken)
                self._tell(broker, share, now)
            self._settled = self._settled and share.limit == part and not share.waiting

    def _tell(self, broker: T, share: _Share, places: int) -> None:
        share.limit = places
        share.asked.append((places, self._clock()))
        self._grant(broker, places)

    def _parts(self, shares: list[_Share]) -> dict[int, int]:
        wanted = {id(share): share.running + share.waiting for share in shares}
        idle = [share for share in shares if not wanted[id(share)]]
        wanted.update({id(share): 1 for share in idle[: self._capacity // RESERVED_SHARE]})
        parts, left = dict.fromkeys(wanted, 0), self._capacity
        unmet = sorted((share for share in shares if wanted[id(share)]), key=lambda one: wanted[id(one)])
        while unmet and wanted[id(unmet[0])] <= left // len(unmet):
            share = unmet.pop(0)
            parts[id(share)] = wanted[id(share)]
            left -= wanted[id(share)]
        # Who is left wants more than an even part; of the rest, who was served longest ago has one more.
        for number, share in enumerate(sorted(unmet, key=lambda one: one.served)):
            each, rest = divmod(left, len(unmet))
            parts[id(share)] = each + (number < rest)
        if not unmet and shares:
            each, rest = divmod(left, len(shares))
            for number, share in enumerate(shares):
                parts[id(share)] += each + (number < rest)
        return parts
