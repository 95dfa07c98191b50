"""Decides who may hold how many connections. Strangers, who have shown no token on theirs, never shut out those who
have: when places run out, a stranger's connection is closed, the oldest one of the address that holds most.

Sans-I/O: connections say whether they are idle, and are told to close.
"""

from __future__ import annotations

import ipaddress
from collections import OrderedDict
from typing import Final, Protocol

STRANGERS_PART: Final = 4
"""Keeps one in so many of all places for connections that have not shown anything yet: every connection starts as such
a stranger. With 64 of them, a client whose request comes right behind its connection is read before as many newer ones
push it out."""

Client = tuple[str, int]
"""Names a peer by address and port, as ASGI has it."""


class Place(Protocol):
    """Holds the facts of a connection that decide who keeps a place."""

    client: Client | None

    @property
    def idle(self) -> bool:
        """Says whether no request is being answered on the connection."""
        ...

    def welcome(self) -> None:
        """Allows a connection that has shown a token to be idle for longer."""
        ...

    def give_up(self) -> None:
        """Closes the connection at once."""
        ...


_Group = OrderedDict[Place, None]


class Places:
    """Holds all connections of a front-end.

    Args:
        total: How many there may be.
        share: How many of them one holder of tokens may have.
    """

    def __init__(self, total: int, share: int) -> None:
        self._total = total
        self.share = share
        self._for_holders = max(1, total - max(1, total // STRANGERS_PART))
        self._strangers: dict[str, _Group] = {}
        self._held: dict[str, _Group] = {}
        self._holder_of: dict[Place, str] = {}
        self._places: dict[Client, Place] = {}
        self._count = 0

    def enter(self, place: Place) -> None:
        """Gives a place to a connection that is a stranger still. When there is no place, a stranger goes, and that
        may be this one."""
        self._count += 1
        if place.client is not None:
            self._places[place.client] = place
        own = network_of(place.client)
        _put(self._strangers, own, place)
        if self._count > self._total:
            most = max(self._strangers, key=lambda name: (len(self._strangers[name]), name == own))
            self._send_away(next(iter(self._strangers[most])))

    def prove(self, client: Client | None, holder: str) -> bool:
        """Notes for whom the request on a connection is, and says whether it may stay: an idle connection of somebody
        who has more of them makes room for it."""
        place = self._places.get(client) if client is not None else None
        if place is None or self._holder_of.get(place) == holder:
            if place is not None:
                self._held[holder].move_to_end(place)
            return True
        if place not in self._holder_of and not self._make_room(holder):
            return False
        self._take_out(place)
        self._holder_of[place] = holder
        _put(self._held, holder, place)
        place.welcome()
        return True

    def leave(self, place: Place) -> None:
        """Forgets a connection that is closed; twice does no harm."""
        if not self._take_out(place):
            return
        self._count -= 1
        if place.client is not None and self._places.get(place.client) is place:
            del self._places[place.client]

    # ---- inside ------------------------------------------------------------------------------------------

    def _make_room(self, holder: str) -> bool:
        own = len(self._held.get(holder, ()))
        if own >= self.share:
            return self._close_idle_one(holder)
        if len(self._holder_of) < self._for_holders:
            return True
        most = sorted(self._held, key=lambda name: len(self._held[name]), reverse=True)
        return any(
            self._close_idle_one(name) for name in most if name == holder or len(self._held[name]) > own + 1
        )

    def _close_idle_one(self, holder: str) -> bool:
        idle = next((place for place in self._held.get(holder, ()) if place.idle), None)
        if idle is not None:
            self._send_away(idle)
        return idle is not None

    def _send_away(self, place: Place) -> None:
        self.leave(place)
        place.give_up()

    def _take_out(self, place: Place) -> bool:
        holder = self._holder_of.pop(place, None)
        groups = self._strangers if holder is None else self._held
        name = network_of(place.client) if holder is None else holder
        group = groups.get(name)
        if group is None or place not in group:
            return False
        del group[place]
        if not group:
            del groups[name]
        return True


def network_of(client: Client | None) -> str:
    """Says who is taken for one stranger: an address, and of IPv6, where a host may have 2**64 of them, a network."""
    if client is None or ":" not in client[0]:
        return "" if client is None else client[0]
    try:
        return str(ipaddress.ip_network((client[0].partition("%")[0], 64), strict=False))
    except ValueError:
        return client[0]


def _put(groups: dict[str, _Group], name: str, place: Place) -> None:
    groups.setdefault(name, OrderedDict())[place] = None
