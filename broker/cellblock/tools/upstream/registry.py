"""The registry holds all upstream servers together: their sessions, the local Python tools, and the catalog made of
both.

A server has one session for all, or, with `"login": "each"`, one for each person, as `person_of` says who that is, and
who sees a catalog of the own. A person's session is made when its person first looks and has a login, rests when
nobody has called for a while, and begins anew with the next run that imports the server. Nothing that one person's
server lists is another's: only a list that equals another one is held once.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import count
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cellblock.base.budget import Budget
from cellblock.base.callbacks import tell
from cellblock.base.errors import ToolNotFound
from cellblock.base.settings.policy import person_of
from cellblock.base.settings.sections import Reaction
from cellblock.base.settings.settings import ServerConfig, UpstreamSettings
from cellblock.base.tasks import TaskSet, at_most as cut_off
from cellblock.tools.catalog.model import Catalog, Kind, RequestEntry, ServerEntry, ToolEntry, learnt_as
from cellblock.tools.catalog.naming import (
    LOCAL_SERVER,
    check_servers,
    module_paths,
)
from cellblock.tools.python.python_calls import TOOL_THREADS, PythonCalls
from cellblock.tools.upstream.auth.errors import login_hint
from cellblock.tools.upstream.installs import POLL_SECONDS
from cellblock.tools.upstream.lifecycle import NO_ROOM, State
from cellblock.tools.upstream.pins import Reviewer, fingerprint
from cellblock.tools.upstream.requester import CallOrigin
from cellblock.tools.upstream.server_entries import ServerEntries

if TYPE_CHECKING:
    from cellblock.tools.upstream.auth.bearer import Login
    from cellblock.tools.upstream.listing import ServerFacts
    from cellblock.tools.upstream.resources import Entry
    from cellblock.tools.upstream.session import UpstreamSession

MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""Caps one message of a server, whatever `max_message_bytes` says."""

STARTUP_WAIT_SECONDS: Final = 45.0
"""Bounds how long runs wait for servers in their first attempt to connect: clients give up after 60 s. What `npx`
installs first may take longer, and then the script is told so."""

QUIET_SECONDS: Final = 2.0
"""Passes until anything is said of a server that is being installed: what is installed already mostly takes less."""

TELL_SECONDS: Final = 5.0
"""Passes between two sentences about a server that is being installed."""

IDLE_SECONDS: Final = 600.0
"""Sets how long a person's session without a call is kept connected."""

MAX_CONNECTED: Final = 512
MAX_OF_SERVER: Final = 128
"""Bound the connections of all persons together, and with one server: one more ends that which is idle longest."""

MAX_PERSONS: Final = 1024
"""Bounds the persons whose sessions are known: who looks again after it begins anew."""

NEEDS_LOGIN: Final = "it needs a login of your own"

_NAMES_ANY: Final = "@codemode/discovery"
"""Names the module with which a script can come to any server."""


CallsScripts = Callable[[ToolEntry, Any, CallOrigin], Awaitable[Any]]
"""Calls a kept script: takes its entry, an input, and what the call comes from."""


@dataclass(eq=False, slots=True)
class Held:
    """Holds the session with one server of a person, or of all.

    Attributes:
        number: Tells its entries from those of other sessions.
        since: Counts the changes of servers before it.
        login: What is known of the login; None where none is needed.
        session: None until there is a login, where one is needed.
        recalled: What is shown of the server until it has said what it is.
        entry: An entry of no session, and the same of this one.
    """

    number: int
    since: int
    login: Login | None
    session: UpstreamSession | None = None
    recalled: ServerFacts | None = None
    entry: tuple[ServerEntry, ServerEntry] | None = None

    @property
    def facts(self) -> ServerFacts | None:
        """Gives what the server is and lists, as far as that is known."""
        if self.session is None:
            return None
        return self.session.tools.facts or (self.recalled if self.session.life.is_first else None)

    @property
    def is_connected(self) -> bool:
        """Says whether it takes the place of a connection."""
        return self.session is not None and self.session.life.state in (State.READY, State.CONNECTING)


@dataclass(slots=True)
class _Person:
    own: dict[str, Held] = field(default_factory=dict[str, Held])
    catalogs: tuple[Catalog, Catalog, Catalog] | None = None
    """Holds the catalog of all beside which they were made, and the person's two."""

    @property
    def weight(self) -> int:
        """Says how much there is to lose."""
        sessions = [held.session for held in self.own.values() if held.session is not None]
        return max((2 if one.is_busy else int(one.tools.facts is not None) for one in sessions), default=0)


@dataclass(slots=True)
class Change:
    """Says what became of the servers; `retired` has the sessions that are to be released when no run uses them any
    more."""

    added: list[str] = field(default_factory=list[str])
    changed: list[str] = field(default_factory=list[str])
    removed: list[str] = field(default_factory=list[str])
    ruled: list[str] = field(default_factory=list[str])
    retired: list[Held] = field(default_factory=list[Held])


class Registry:
    """Owns every upstream session.

    `catalog` has the servers that are connected, `known_catalog` also those that were, as they last were, and those
    that start, as they were pinned. Both are replaced, never changed.

    Args:
        servers: The configured servers, in order.
        tools: Python functions that become the server `local`.
        settings: Bounds.
        max_message_bytes: Caps a result.
        log_dir: For the stderr of started servers.
        reviewer: Holds tools against their pins.
        refine: Adds to a tool's entry what the configuration says of it; takes the server's name there.
        logins: Gives what is known of a server's OAuth login, of all or of a person (`person_of`).
        on_change: Called when the catalogs have been replaced.

    Raises:
        ConfigError: Two Python tools share a name, or a configured server is called `local` beside them.
    """

    def __init__(
        self,
        servers: Mapping[str, ServerConfig],
        tools: Sequence[Callable[..., Any]],
        settings: UpstreamSettings,
        *,
        max_message_bytes: int,
        log_dir: Path,
        reviewer: Reviewer,
        refine: Callable[[str, ToolEntry], ToolEntry] = lambda _server, tool: tool,
        logins: Callable[[str, ServerConfig, str], Login | None] = lambda _server, _config, _person: None,
        on_change: Callable[[], None] = lambda: None,
    ) -> None:
        self._on_change = on_change
        self._settings = settings
        self._max_message_bytes = max_message_bytes
        self._logins = logins
        self.servers = servers
        """Holds the entries of all servers, those that are off or lack something among them."""

        self._reviewer = reviewer
        bound = settings.for_server(LOCAL_SERVER).call_timeout_ms / 1000
        self._python = PythonCalls(tools, bound=bound, threads=TOOL_THREADS, most=max_message_bytes)
        self._local = self._python.tools
        check_servers(servers, local=bool(self._local))
        self._log_dir = log_dir
        self._budget = Budget.of_servers()
        self._count = count(1)
        self._changes = 0
        self._all: dict[int, UpstreamSession] = {}
        """Holds the sessions that somebody may call, by their numbers."""

        self._followed: dict[str, set[str]] = {}
        self.on_update: Callable[[str, str], object] | None = None
        """Is called with a server's name and a URI when a resource has changed that is subscribed to."""
        self._recalling = TaskSet()
        self._closing = TaskSet()
        self._people = OrderedDict[str, _Person]()
        self.personal = _started(servers, personal=True)
        """Holds the entries of the servers with which each person has a session."""

        self._shared = {name: self._for_all(name, config) for name, config in _started(servers).items()}
        self.sessions: dict[str, UpstreamSession] = {}
        """Holds the sessions that are everybody's, by the servers' names."""

        self._paths = self._module_paths()
        self._entries = ServerEntries(reviewer, refine)
        self._made: dict[str, list[tuple[ServerFacts, ServerEntry]]] = {}
        self._local_entry = (
            self._entries.of_python(self._local, self._paths[LOCAL_SERVER]) if self._local else None
        )
        self._scripts: tuple[ServerEntry, CallsScripts] | None = None
        self.catalog = Catalog()
        self._changed()

    def offer_scripts(self, entry: ServerEntry, call: CallsScripts) -> None:
        """Takes over which kept scripts there are, in place of those before.

        Args:
            entry: Has them as tools.
            call: Calls one.
        """
        if self._scripts is None or self._scripts[0] != entry:
            self._scripts = (entry, call)
            self._changed()

    def start(self, since: float | None = None) -> None:
        """Connects to every server, in parallel.

        Args:
            since: The loop's time from which `settled` counts its bound for them; None: now.
        """
        for session in self.sessions.values():
            session.start(since)

    async def recall(self) -> None:
        """Has `known_catalog` show servers that start as they were pinned; the pins are read beside the loop."""
        for name, held in [*self._shared.items()]:
            if held.session is None or not held.session.life.is_first or self._shared.get(name) is not held:
                continue
            if pinned := await asyncio.to_thread(self._reviewer.pinned, name, self.servers[name]):
                from cellblock.tools.upstream.listing import as_pinned

                held.recalled = as_pinned(pinned)
        self._changed()

    def reconfigure(
        self, servers: Mapping[str, ServerConfig], pins: Mapping[str, Reaction] | None = None
    ) -> Change:
        """Goes over to other servers: connects to those that are new or changed, and keeps the sessions of the rest.

        What runs in flight may still use is kept until `release`.

        Args:
            servers: All servers, in order.
            pins: Other reactions to tools that are not as pinned; None: as before.

        Raises:
            ConfigError: A server is called `local` beside Python tools; nothing has changed then.
        """
        check_servers(servers, local=bool(self._local))
        self._changes += 1
        before, old = self.servers, self._shared
        wanted = _started(servers)
        unchanged = _unchanged(before, servers)
        kept = {name for name in wanted if name in old and name in unchanged}
        change = Change(
            added=[name for name in wanted if name not in old],
            changed=[name for name in wanted if name in old and name not in kept],
            removed=[name for name in old if name not in wanted],
            ruled=[name for name in wanted if name in kept and before[name] != wanted[name]],
            retired=[held for name, held in old.items() if name not in kept],
        )
        for person in self._people.values():
            ended = [person.own.pop(name) for name in person.own.keys() - unchanged]
            change.retired += [held for held in ended if held.number in self._all]
        self.servers, self.personal = servers, _started(servers, personal=True)
        self._shared = {
            name: old[name] if name in kept else self._for_all(name, config)
            for name, config in wanted.items()
        }
        self._paths = self._module_paths()
        if pins is not None:
            self._reviewer.use(pins)
        self._forget()
        for name in (*change.added, *change.changed):
            self.sessions[name].start()
        self._recalling.cancel()
        self._recalling.start(self.recall())
        return change

    def restart(self, name: str) -> Coroutine[Any, Any, None] | None:
        """Ends a server's session at once, whatever it does, and begins another in its place; runs in flight go on with
        that one.

        Returns:
            What does it, to be awaited; None: no such server is connected to.
        """
        if name in self.personal:
            for held in self._of_server(name):
                if held.session is not None:
                    held.session.rest()
            return asyncio.sleep(0)
        held = self._shared.get(name)
        if held is None or held.session is None:
            return None
        held.recalled, old = held.session.tools.facts, held.session
        held.login = self._logins(name, self.servers[name], "")
        self._make(name, self.servers[name], held, None)
        self._changed()
        return self._begin_again(held, self._closing.start(old.close()))

    async def release(self, retired: Sequence[Held], unused: Callable[[int], Awaitable[None]]) -> None:
        """Closes sessions as soon as no run uses them any more.

        Args:
            retired: Of a `Change`.
            unused: Waits for the end of all runs from before that change, but not of those from before the one of the
                given number (the first is 1): they know nothing of sessions that began with it.
        """

        async def release(held: Held) -> None:
            await unused(held.since)
            if (ending := self._end(held)) is not None:
                await asyncio.wait([ending])

        await asyncio.gather(*map(release, retired))

    def catalogs_of(self, principal: str) -> tuple[Catalog, Catalog]:
        """Returns `catalog` and `known_catalog` for a principal: with its own sessions, which begin with its first look
        after its login."""
        if not self.personal:
            return self.catalog, self.known_catalog
        person = person_of(principal)
        own, known = self._own(person), self._people[person]
        if known.catalogs is None or known.catalogs[0] is not self.catalog:
            known.catalogs = self.catalog, *self._catalogs(own, person, self.catalog.version)
        return known.catalogs[1:]

    def sessions_of(self, principal: str) -> Mapping[str, UpstreamSession]:
        """Returns all sessions that a principal has, by the servers' names."""
        if not self.personal:
            return self.sessions
        own = self._own(person_of(principal)).items()
        return {**self.sessions, **{name: one.session for name, one in own if one.session is not None}}

    def counts(self, name: str) -> tuple[int, int]:
        """Returns how many persons have a session with a server, and how many of these are connected."""
        own = [one for one in self._of_server(name) if one.session is not None]
        return len(own), sum(one.is_connected for one in own)

    def starting(self, principal: str) -> bool:
        """Says whether a server of a principal's is in its first attempt to connect."""
        return any(session.life.is_first for session in self.sessions_of(principal).values())

    async def installed(
        self, tell: Callable[[str], object], code: str | Collection[str] | None = None, principal: str = ""
    ) -> None:
        """Waits for the end of servers' first attempts to connect, and before it for what their programs install
        (`npx`, `uvx`).

        Args:
            tell: Told a sentence of each that is being installed, after pauses that grow from `TELL_SECONDS`.
            code: Only the servers that this script names, or with these ids, are waited for; None: all.
            principal: Whose own sessions are waited for, too.
        """
        named = {
            name: session
            for name, session in self.sessions_of(principal).items()
            if code is None or self._paths[name] in code or _NAMES_ANY in code
        }
        now = asyncio.get_running_loop().time
        began, due = now(), dict[str, float]()
        while names := [name for name, one in named.items() if one.life.is_first and one.installing]:
            since = now() - began
            for name in names:
                if since >= due.get(name, QUIET_SECONDS):
                    due[name] = since + max(since, TELL_SECONDS)
                    so_far = f" ({since:.0f} s)" if since >= 1 else ""
                    tell(f"server {name} is being started or installed by its program{so_far}")
            await asyncio.sleep(POLL_SECONDS)
        await asyncio.gather(
            *(
                one.settled(inf, at_most=self._settings.for_server(name).connect_timeout_ms / 1000)
                for name, one in named.items()
            )
        )

    async def settled(
        self,
        ids: Collection[str] | None = None,
        *,
        principal: str = "",
        at_most: float | None = None,
    ) -> None:
        """Waits until no server is in its first attempt to connect, for `STARTUP_WAIT_SECONDS` at most: for all once,
        from the start of that attempt, or what `start` was given for it; for those that are named, from now.

        Args:
            ids: Of the only servers to wait for, or their names in the configuration; None: all.
            principal: Whose own sessions are waited for, too.
            at_most: Seconds from now, where that is less.
        """
        bound = STARTUP_WAIT_SECONDS if ids is None else inf
        most = STARTUP_WAIT_SECONDS if at_most is None else min(at_most, STARTUP_WAIT_SECONDS)
        named = self._named(self.sessions_of(principal), ids).values()
        await asyncio.gather(*(one.settled(bound, at_most=most) for one in named if one.life.is_first))

    async def refreshed(
        self, used: Collection[str] | None, bound: float, principal: str = ""
    ) -> frozenset[str]:
        """Waits, at most `bound` seconds, until the tools of every server that a script uses are those announced (Code
        Mode specification, section 8.1), and takes over what was approved since the last run.

        Args:
            used: The ids of servers, or their names in the configuration; None: all.
            bound: For all of them together.
            principal: Whose own sessions are meant, too.

        Returns:
            The ids of those whose announced tools are still unknown.
        """
        sessions = self.sessions_of(principal)
        named = self._named(sessions, used)
        shown = sessions if used is not None and _NAMES_ANY in used else named
        reading = {
            name: asyncio.create_task(one.tools.fresh()) for name, one in shown.items() if one.tools.stale
        }
        # One that is away is tried at once where a script names it (section 3.2.3), or is being tried.
        away = [
            session
            for session in named.values()
            if session.life.state is State.WAITING
            or (session.life.state is State.CONNECTING and not session.life.is_first)
            or (session.life.state is State.RESTING and session.has_login)
        ]
        awaited = [*reading.values(), *(asyncio.create_task(session.tried()) for session in away)]
        if awaited:
            async with cut_off(bound):
                await asyncio.gather(*awaited, return_exceptions=True)
        await self.approved(shown)
        return frozenset(
            self._paths[name]
            for name in named.keys() & reading.keys() & self._paths.keys()
            if reading[name].cancelled()
        )

    async def approved(self, sessions: Mapping[str, UpstreamSession]) -> None:
        """Takes over what was approved of these sessions' servers, by their names, since the last look."""
        for name in [name for name in sessions if self._reviewer.approved_meanwhile(name)]:
            session, config = sessions[name], self.servers.get(name)
            if session.tools.facts is not None and config is not None:
                await self._prepare(name, config, session.tools.facts)
            self._forget(name)

    async def close(self) -> None:
        """Closes every session, in parallel, within their bound."""
        self._recalling.cancel()
        self.personal = {}
        await asyncio.gather(self._python.close(), *(session.close() for session in self._all.values()))
        await self._closing.ended()

    def caller(
        self, server: ServerEntry, tool: ToolEntry, origin: CallOrigin
    ) -> Callable[[Any], Awaitable[Any]]:
        """Gives an async function that calls one tool for `origin`: its input to a `ToolResult` or `RawJson`.

        Raises:
            ToolNotFound: The server's session is closed.
        """
        # By its name: a run may have an entry with fewer tools.
        if self._local and server.config_name == LOCAL_SERVER:
            return partial(self._python.call, self._local[tool.tool_name], account=origin.account)
        if self._scripts is not None and server.is_scripts:
            call = self._scripts[1]
            return lambda arguments: call(tool, arguments, origin)
        session = self._all.get(server.session)
        if session is None:
            raise ToolNotFound(
                f"Server {server.config_name} is not configured any more.", hint="Run the script anew."
            )
        bound = self._settings.for_server(server.config_name).call_timeout_ms / 1000
        request = tool if isinstance(tool, RequestEntry) else None
        return lambda arguments: session.call(
            tool.tool_name, arguments, call_bound=bound, origin=origin, request=request
        )

    def knows(self, server: str, tool: str = "") -> bool:
        """Says whether there is a server of this module path, connected or not; and this tool, where they are Python
        tools, as nobody lists those of a server that is away. Any thread may ask."""
        if self._local_entry is not None and server == self._local_entry.server_id:
            return not tool or tool in self._local
        scripts = self.catalog.servers.get(server)
        if scripts is not None and scripts.is_scripts:
            return not tool or tool in scripts.by_export
        return server in self._paths.values()

    def absence(self, server: str) -> str | None:
        """Says why a server of this module path has not been there yet, which is nothing while it starts; None where it
        has, or wants a login. Any thread may ask."""
        known = self.known_catalog
        if server in known.starting:
            return ""
        return None if server in known.logins else known.unavailable.get(server)

    def origin(self, server: str) -> str:
        """Returns the fingerprint of the command or URL of a server of this module path; empty where it has none. Any
        thread may ask."""
        name = next((name for name, path in self._paths.items() if path == server), "")
        return fingerprint(self.servers[name]) if name in self.servers else ""

    @property
    def has_logins(self) -> bool:
        """Says whether there is a server to which a person can log in."""
        shared = (session.needed_login for session in self.sessions.values())
        return bool(self.personal) or any(one is not None for one in shared)

    async def is_logged_in(self, server: str, mark: str, principal: str) -> bool:
        """Says what `NeededLogin.is_there` does of a server of this name, for a principal; False where there is
        none."""
        session = self.sessions_of(principal).get(server)
        needed = None if session is None else session.needed_login
        return needed is not None and await needed.is_there(mark)

    async def entries(self, server: ServerEntry, kind: Kind, *, fresh: bool) -> list[Entry]:
        """Returns what a server lists beside tools; `fresh` asks it. Empty where it has no session any more, or one for
        each person."""
        session = self.sessions.get(server.config_name)
        if session is None:
            return []
        return await session.resources.entries(kind, session.client, fresh=fresh)

    async def unfollow(self, server: str, uri: str) -> None:
        """Ends the subscription to a resource, by the server's name."""
        self._followed.get(server, set()).discard(uri)
        session = self.sessions.get(server)
        if session is not None:
            await session.resources.unfollow(uri, session.client)

    # ---- inside --------------------------------------------------------------------------------------

    def _named(
        self, sessions: Mapping[str, UpstreamSession], ids: Collection[str] | None
    ) -> Mapping[str, UpstreamSession]:
        """Returns those of the servers with these ids, or names in the configuration; None: all."""
        if ids is None:
            return sessions
        return {name: one for name, one in sessions.items() if name in ids or self._paths[name] in ids}

    def _own(self, person: str) -> dict[str, Held]:
        """Returns a person's sessions by the servers' names; those are made that are missing, where there is a login,
        or where everybody may know the tools."""
        known = self._people.get(person)
        if known is None:
            if len(self._people) >= MAX_PERSONS:
                # Who has not looked for longest, of those with the least to lose: strangers end nobody's session.
                for held in self._people.pop(
                    min(self._people, key=lambda one: self._people[one].weight)
                ).own.values():
                    self._end(held)
            known = self._people[person] = _Person()
        self._people.move_to_end(person)
        for name, config in self.personal.items():
            if (held := known.own.get(name)) is None:
                login = self._logins(name, config, person)
                held = known.own[name] = Held(next(self._count), self._changes, login)
            has_login = held.login is None or held.login.stamp() is not None
            is_had = has_login or config.login == "each-public-tools"
            if held.session is not None and not is_had:
                # Runs that have begun may go on to ask for it, and are told that a login is needed.
                held.session, known.catalogs = None, None
            elif held.session is None and is_had:
                self._end(held)
                has_room = has_login and self._has_room(name)
                self._make(name, config, held, person).start(resting=not has_room)
                known.catalogs = None
        return known.own

    def _for_all(self, name: str, config: ServerConfig) -> Held:
        held = Held(next(self._count), self._changes, self._logins(name, config, ""))
        self._make(name, config, held, None)
        return held

    def _make(self, name: str, config: ServerConfig, held: Held, person: str | None) -> UpstreamSession:
        """Makes the session with a server of a person, or of all; it is not started."""
        # With the SDK, which takes half a second of CPU to load: who has no server does without it.
        from cellblock.tools.upstream.session import UpstreamSession

        for_all = person is None
        held.session = self._all[held.number] = UpstreamSession(
            name,
            config,
            self._settings.for_server(name),
            # Servers send a result as structured content and as text.
            max_message_bytes=min(2 * self._max_message_bytes, MESSAGE_BYTES),
            log_dir=self._log_dir,
            budget=self._budget,
            on_change=self._changed if person is None else partial(self._changed_for, person, name),
            login=held.login,
            prepare=partial(self._prepare, name, config),
            followed=self._followed.setdefault(name, set[str]()) if for_all else None,
            on_update=(lambda uri: tell(self.on_update, name, uri)) if for_all else None,
            rests_after=None if for_all else IDLE_SECONDS,
            has_room=(lambda: True) if for_all else partial(self._has_room, name),
        )
        return held.session

    def _end(self, held: Held) -> asyncio.Task[None] | None:
        """Ends a session that nobody is given any more."""
        session = self._all.pop(held.number, None)
        return None if session is None else self._closing.start(session.close())

    async def _begin_again(self, held: Held, ending: asyncio.Task[None]) -> None:
        session = held.session
        # Two of some servers cannot be: they have a port, or a lock.
        await asyncio.wait([ending])
        # Another change may have come meanwhile.
        if session is not None and session is held.session and held in self._shared.values():
            session.start()

    def _has_room(self, name: str) -> bool:
        """Says whether one more connection of a person with a server may be made; an idle one is ended for it."""
        for most, of in ((MAX_OF_SERVER, name), (MAX_CONNECTED, None)):
            full = [
                one.session for one in self._of_server(of) if one.is_connected and one.session is not None
            ]
            if len(full) >= most:
                idle = [one for one in full if one.idle_since is not None]
                if idle:
                    min(idle, key=lambda one: one.idle_since or 0.0).rest()
                return bool(idle)
        return True

    def _of_server(self, name: str | None) -> Iterator[Held]:
        """Yields what persons have with a server, or with all."""
        for person in self._people.values():
            yield from (held for one, held in person.own.items() if name in (None, one))

    def _listed(self, name: str) -> Iterator[ServerFacts]:
        """Yields what a server has listed, for all or for persons."""
        for held in (self._shared.get(name), *self._of_server(name)):
            if held is not None and (facts := held.facts) is not None:
                yield facts

    async def _prepare(self, name: str, config: ServerConfig, facts: ServerFacts) -> ServerFacts:
        # What is listed again, or for several persons, is held once.
        facts = next((held for held in self._listed(name) if held == facts), facts)
        # What one person has not, others have.
        whole = not (facts.notes or config.is_personal)
        await self._reviewer.prepare(name, config, facts.reviewed, whole=whole)
        return facts

    def _entry(self, name: str, held: Held, person: str | None) -> ServerEntry | None:
        """Returns what a person sees of a server, or all: what it has listed for them, or, where that is nobody's
        secret, for others."""
        config, facts = self.servers[name], held.facts
        if facts is None and config.login == "each-public-tools":
            facts = next(self._listed(name), None)
        if facts is None:
            return None
        made = self._made.get(name, [])
        entry = next((entry for known, entry in made if known is facts), None)
        if entry is None:
            listed = [*self._listed(name)]
            entry = self._entries.of(name, config, facts, self._paths[name])
            still = [one for one in made if any(one[0] is known for known in listed)]
            self._made[name] = [*still, (facts, entry)]
        revision = 0 if held.session is None else held.session.resources.revision
        if held.entry is None or held.entry[0] is not entry or held.entry[1].revision != revision:
            learnt = learnt_as(name, person or "")
            own = replace(entry, session=held.number, revision=revision, learnt_as=learnt)
            held.entry = entry, own
        return held.entry[1]

    def _forget(self, name: str | None = None) -> None:
        """Has the entry of a server made anew, or all: entries hold paths, which depend on all names, and the
        review."""
        self._reviewer.forget(name)
        for one in [*self._made] if name is None else [name]:
            self._made.pop(one, None)
        self._changed()

    def _module_paths(self) -> dict[str, str]:
        # Those that lack something have their place, too: paths depend on all names.
        names = [name for name, config in self.servers.items() if not config.disabled]
        return module_paths([*names, *([LOCAL_SERVER] if self._local else [])])

    def _changed(self) -> None:
        self.sessions = {name: one.session for name, one in self._shared.items() if one.session is not None}
        self.catalog, self.known_catalog = self._catalogs(self._shared, None, self.catalog.version + 1)
        self._on_change()

    def _changed_for(self, person: str, name: str) -> None:
        """Has the catalogs made anew of a person whose session with a server is not as it was, and of those who see
        what it lists."""
        config = self.servers.get(name)
        is_public = config is not None and config.login == "each-public-tools"
        for one, known in self._people.items():
            held = known.own.get(name)
            if one == person or (is_public and (held is None or held.facts is None)):
                known.catalogs = None
        self._on_change()

    def _catalogs(self, own: Mapping[str, Held], person: str | None, version: int) -> tuple[Catalog, Catalog]:
        """Makes `catalog` and `known_catalog` for a person with these own sessions, or for all."""
        servers, known = dict[str, ServerEntry](), dict[str, ServerEntry]()
        away, logins = dict[str, str](), dict[str, str]()
        starting, shut_out, wants = set[str](), set[str](), dict[str, str]()
        for name, path in self._paths.items():
            config, held = self.servers.get(name), self._shared.get(name) or own.get(name)
            if config is None:
                continue
            if config.missing is not None:
                away[path] = config.missing
                wants[path] = "set it where Cellblock is started"
                continue
            session = held.session if held is not None else None
            state = session.life.state if session is not None else None
            lacks_login = session is None or (state is State.RESTING and session.lacks_login)
            if lacks_login:
                login = held.login if held is not None else None
                logins[path] = login.hint if login is not None else login_hint(name)
            elif session is not None and session.life.is_first:
                starting.add(path)
            is_shared = name in self._shared
            entry = self._entry(name, held, None if is_shared else person) if held is not None else None
            if entry is not None:
                known[path] = entry
            if entry is not None and state in (State.READY, State.RESTING):
                servers[path] = entry
            elif state is State.RESTING and not lacks_login:
                away[path] = NO_ROOM
            else:
                reason = session.life.reason if session is not None else ""
                away[path] = reason or (NEEDS_LOGIN if lacks_login or state is None else state.value)
                if session is not None and session.remedy is not None:
                    shut_out.add(path)
                    wants[path] = session.remedy[1]
        for entry in self._apart():
            servers[entry.server_id] = known[entry.server_id] = entry
        ids = {name: path for name, path in self._paths.items() if name in self.servers}
        about: dict[str, Any] = {
            "ids": ids,
            "starting": frozenset(starting),
            "wants": wants,
            "logins": logins,
            "shut_out": frozenset(shut_out),
        }
        never = {path: reason for path, reason in away.items() if path not in known}
        return Catalog(version, servers, away, **about), Catalog(version, known, never, **about)

    def _apart(self) -> Iterator[ServerEntry]:
        """Yields the entries of what is no upstream server."""
        if self._local_entry is not None:
            yield self._local_entry
        if self._scripts is not None and self._scripts[0].tools:
            entry = self._scripts[0]
            # Whoever is called so already stays it.
            is_free = entry.server_id not in self._paths.values()
            yield entry if is_free else replace(entry, server_id=f"{entry.server_id}--2")


def _started(servers: Mapping[str, ServerConfig], *, personal: bool = False) -> dict[str, ServerConfig]:
    """Returns the servers that are to be connected, for all or for each person."""
    return {
        name: config
        for name, config in servers.items()
        if not config.disabled and config.missing is None and config.is_personal == personal
    }


def _unchanged(before: Mapping[str, ServerConfig], after: Mapping[str, ServerConfig]) -> set[str]:
    """Returns the servers whose sessions are kept: other lists of tools need no other session."""
    return {
        name
        for name, config in after.items()
        if name in before and before[name].under_rules_of(config) == config
    }
