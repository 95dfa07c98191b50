"""Everybody's own sessions: with a server of `"login": "each"` each person has one, and sees a catalog of the own.

A person is who `person_of` says. A session is made when its person first looks and has a login, rests when nobody has
called for a while, and begins anew with the next run that imports the server. Nothing that one person's server lists
is another's: only a list that equals another one is held once.
"""

from __future__ import annotations

import hashlib
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, Final

from cellblock.base.settings.sections import OF_PERSON
from cellblock.base.settings.settings import ServerConfig
from cellblock.tools.catalog.model import Catalog, ServerEntry
from cellblock.tools.upstream.auth.errors import login_hint
from cellblock.tools.upstream.lifecycle import NO_ROOM, State

if TYPE_CHECKING:
    from cellblock.tools.upstream.auth.bearer import Login
    from cellblock.tools.upstream.listing import ServerFacts
    from cellblock.tools.upstream.session import UpstreamSession

IDLE_SECONDS: Final = 600.0
"""Sets how long a person's session without a call is kept connected."""

MAX_CONNECTED: Final = 512
MAX_OF_SERVER: Final = 128
"""Bound the connections of all persons together, and with one server: one more ends that which is idle longest."""

NEEDS_LOGIN: Final = "it needs a login of your own"

MAX_PERSONS: Final = 1024
"""Bounds the persons whose sessions are known: who looks again after it begins anew."""


@dataclass(slots=True)
class PersonalSession:
    """Holds one person's session with one server.

    Attributes:
        login: What is known of the person's login; None where none is needed.
        number: Tells its entries from others'.
        session: None until there is a login.
    """

    login: Login | None
    number: int
    session: UpstreamSession | None = None
    entry: tuple[ServerEntry, ServerEntry] | None = None
    """Holds an entry of no session, and the same of this one."""


@dataclass(slots=True)
class _Person:
    own: dict[str, PersonalSession] = field(default_factory=dict[str, PersonalSession])
    catalogs: tuple[Catalog, Catalog, Catalog] | None = None
    """Holds the shared catalog of which they are made, and the person's two."""


Making = Callable[[str, str, "Login | None", int], "UpstreamSession"]
"""Makes the session of a server for a person, with a login and a number, under which it can be called; not started."""


class Persons:
    """Holds the sessions and the catalogs of all persons.

    Args:
        logins: Gives what is known of a person's login to a server.
        make: Makes a session.
        entry_of: Makes the entry of a server's facts, and of no session.
        numbers: Gives the next session's number.
        sessions: Holds those that somebody may call, by number, and not only those of persons.
        close: Ends a session that nobody is given any more.
    """

    def __init__(
        self,
        logins: Callable[[str, ServerConfig, str], Login | None],
        make: Making,
        entry_of: Callable[[str, ServerFacts], ServerEntry],
        numbers: Iterator[int],
        sessions: dict[int, UpstreamSession],
        close: Callable[[UpstreamSession], object],
    ) -> None:
        self._logins, self._make, self._entry_of = logins, make, entry_of
        self._numbers, self._sessions, self._close = numbers, sessions, close
        self.servers: Mapping[str, ServerConfig] = {}
        self._persons = OrderedDict[str, _Person]()
        self._entries: dict[str, list[tuple[ServerFacts, ServerEntry]]] = {}

    def of(self, person: str) -> dict[str, PersonalSession]:
        """Returns a person's sessions by the servers' names; those are made that are missing, where there is a login,
        or where everybody may know the tools."""
        if not self.servers:
            return {}
        known = self._persons.get(person)
        if known is None:
            if len(self._persons) >= MAX_PERSONS:
                self._forget_one()
            known = self._persons[person] = _Person()
        self._persons.move_to_end(person)
        for name, config in self.servers.items():
            own = known.own.get(name)
            if own is None:
                own = PersonalSession(self._logins(name, config, person), next(self._numbers))
                known.own[name] = own
            has_login = own.login is None or own.login.stamp() is not None
            if own.session is not None and not (has_login or config.login == "each-public-tools"):
                # Runs that have begun may go on to ask for it, and are told that a login is needed.
                own.session, known.catalogs = None, None
            if own.session is None and (has_login or config.login == "each-public-tools"):
                self._end(own)
                has_room = has_login and self.has_room(name)
                own.session = self._make(name, person, own.login, own.number)
                own.session.start(resting=not has_room)
                known.catalogs = None
        return known.own

    def catalogs(
        self, person: str, shared: Catalog, known: Catalog, paths: Mapping[str, str]
    ) -> tuple[Catalog, Catalog]:
        """Returns what `Registry.catalog` and `known_catalog` are for a person: the shared ones, with the person's own
        servers in their places."""
        sessions = self.of(person)
        if not sessions:
            return shared, known
        held = self._persons[person].catalogs
        if held is None or held[0] is not shared:
            made = self._made(person, sessions, shared, known, paths)
            held = self._persons[person].catalogs = shared, *made
        return held[1], held[2]

    def changed(self, person: str, name: str) -> None:
        """Has the catalogs made anew of a person whose session with a server is not as it was, and of those who see
        what it lists."""
        if (known := self._persons.get(person)) is not None:
            known.catalogs = None
        config = self.servers.get(name)
        if config is not None and config.login == "each-public-tools":
            for known in self._persons.values():
                own = known.own.get(name)
                if own is None or own.session is None or own.session.facts is None:
                    known.catalogs = None

    def held_once(self, name: str, facts: ServerFacts) -> ServerFacts:
        """Returns what equals a server's facts and is held already for another person, or the facts themselves."""
        known = (one.session.facts for one in self._of_server(name) if one.session is not None)
        listed = {id(one): one for one in known if one is not None}
        self._entries[name] = [one for one in self._entries.get(name, ()) if id(one[0]) in listed]
        return next((held for held in listed.values() if held == facts), facts)

    def forget(self, name: str | None = None) -> None:
        """Has the entries of a server made anew, or all."""
        for one in [*self._entries] if name is None else [name]:
            self._entries.pop(one, None)
        for person in self._persons.values():
            person.catalogs = None

    def use(self, servers: Mapping[str, ServerConfig], kept: Collection[str]) -> list[int]:
        """Goes over to other servers. Returns the numbers of the sessions with those that are not `kept`, which nobody
        is given any more."""
        self.servers = servers
        people = self._persons.values()
        ended = [person.own.pop(name).number for person in people for name in person.own.keys() - kept]
        self.forget()
        return [number for number in ended if number in self._sessions]

    def rest(self, name: str) -> bool:
        """Ends the connections of all persons with a server, until they need it. Says whether it is such a server."""
        for one in self._of_server(name):
            if one.session is not None:
                one.session.rest()
        return name in self.servers

    def has_room(self, name: str) -> bool:
        """Says whether one more connection with a server may be made; an idle one is ended for it."""
        connected = [(one, own) for one, own in self._all() if _is_connected(own)]
        of_server = [own for one, own in connected if one == name]
        full = of_server if len(of_server) >= MAX_OF_SERVER else [own for _, own in connected]
        if len(full) < (MAX_OF_SERVER if full is of_server else MAX_CONNECTED):
            return True
        idle = [(since, own) for own in full if own.session and (since := own.session.idle_since) is not None]
        if not idle:
            return False
        session = min(idle, key=lambda found: found[0])[1].session
        assert session is not None
        session.rest()
        return True

    def counts(self, name: str) -> tuple[int, int]:
        """Returns how many persons have a session with a server, and how many of these are connected."""
        own = [one for one in self._of_server(name) if one.session is not None]
        return len(own), sum(map(_is_connected, own))

    # ---- inside --------------------------------------------------------------------------------------

    def _made(
        self,
        person: str,
        sessions: Mapping[str, PersonalSession],
        shared: Catalog,
        known: Catalog,
        paths: Mapping[str, str],
    ) -> tuple[Catalog, Catalog]:
        servers, shown, away = {**shared.servers}, {**known.servers}, {**shared.unavailable}
        starting, lacking = set(shared.starting), dict[str, str]()
        for name, own in sessions.items():
            path, session = paths[name], own.session
            entry, state = self._entry(name, own, person), None if session is None else session.state
            if session is None or (state is State.RESTING and session.lacks_login):
                lacking[path] = own.login.hint if own.login is not None else login_hint(name)
            elif session.starting:
                starting.add(path)
            reason = session.reason if session is not None else ""
            if session is not None and state is State.RESTING and not session.lacks_login:
                reason = NO_ROOM
            away[path] = reason or (NEEDS_LOGIN if state in (None, State.RESTING) else str(state.value))
            if entry is None:
                continue
            shown[path] = entry
            if state in (State.READY, State.RESTING):
                servers[path] = entry
                del away[path]
        never = {path: why for path, why in away.items() if path not in shown}
        about: dict[str, Any] = {"starting": frozenset(starting), "logins": lacking}
        now = replace(shared, servers=_in_order(servers, paths), unavailable=away, **about)
        return now, replace(known, servers=_in_order(shown, paths), unavailable=never, **about)

    def _entry(self, name: str, own: PersonalSession, person: str) -> ServerEntry | None:
        """Returns what a person sees of a server: what it has listed for them, or, where that is nobody's secret, for
        others."""
        facts = own.session.facts if own.session is not None else None
        if facts is None and self.servers[name].login == "each-public-tools":
            listed = (one.session.facts for one in self._of_server(name) if one.session is not None)
            facts = next((one for one in listed if one is not None), None)
        if facts is None:
            return None
        made = self._entries.setdefault(name, [])
        entry = next((entry for held, entry in made if held is facts), None)
        if entry is None:
            entry = self._entry_of(name, facts)
            made.append((facts, entry))
        if own.entry is None or own.entry[0] is not entry:
            own.entry = entry, replace(entry, session=own.number, learnt_as=learnt_as(name, person))
        return own.entry[1]

    def _forget_one(self) -> None:
        """Forgets who has not looked for longest, of those with the least to lose: strangers end nobody's session."""
        people = self._persons.items()
        person = next(one for weight in range(3) for one, known in people if _weight(known) == weight)
        for own in self._persons.pop(person).own.values():
            self._end(own)

    def _end(self, own: PersonalSession) -> None:
        if (session := self._sessions.pop(own.number, None)) is not None:
            self._close(session)

    def _all(self) -> Iterator[tuple[str, PersonalSession]]:
        for person in self._persons.values():
            yield from person.own.items()

    def _of_server(self, name: str) -> Iterator[PersonalSession]:
        return (own for one, own in self._all() if one == name)


def learnt_as(name: str, person: str) -> str:
    """Names what results of a person's own server teach; of the user of this machine as of a shared one."""
    if not person:
        return name
    return f"{name}{OF_PERSON}{hashlib.sha256(person.encode('utf-8', 'surrogatepass')).hexdigest()[:16]}"


def _weight(person: _Person) -> int:
    sessions = [own.session for own in person.own.values() if own.session is not None]
    return max((2 if one.is_busy else int(one.facts is not None) for one in sessions), default=0)


def _is_connected(own: PersonalSession) -> bool:
    return own.session is not None and own.session.state in (State.READY, State.CONNECTING)


def _in_order(servers: Mapping[str, ServerEntry], paths: Mapping[str, str]) -> dict[str, ServerEntry]:
    return {path: servers[path] for path in paths.values() if path in servers}
