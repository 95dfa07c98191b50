"""The registry holds all upstream servers together: their sessions, the local Python tools, and the catalog made of
both."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Collection, Coroutine, Mapping, Sequence
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
from cellblock.base.tasks import TaskSet, end_tasks
from cellblock.tools.catalog.model import Catalog, Kind, RequestEntry, ServerEntry, ToolEntry
from cellblock.tools.catalog.naming import (
    LOCAL_SERVER,
    check_servers,
    module_paths,
)
from cellblock.tools.python.python_calls import PythonServer
from cellblock.tools.upstream.auth.errors import login_hint
from cellblock.tools.upstream.installs import POLL_SECONDS
from cellblock.tools.upstream.lifecycle import State
from cellblock.tools.upstream.persons import IDLE_SECONDS, NEEDS_LOGIN, Persons
from cellblock.tools.upstream.pins import Reviewer
from cellblock.tools.upstream.requester import CallOrigin
from cellblock.tools.upstream.server_entries import ServerEntries

if TYPE_CHECKING:
    from cellblock.tools.upstream.auth.bearer import Login
    from cellblock.tools.upstream.listing import ServerFacts
    from cellblock.tools.upstream.resources import Entry
    from cellblock.tools.upstream.session import UpstreamSession

MESSAGE_BYTES: Final = 16 * 1024 * 1024
"""Caps one message of a server, whatever `max_message_bytes` says."""

STARTUP_WAIT_SECONDS: Final = 10.0
"""Bounds how long runs wait, after the start, for servers that are still connecting and that they import or request:
what `npx` installs first takes longer, and then the script is told so."""

QUIET_SECONDS: Final = 2.0
"""Passes until anything is said of a server that is being installed: what is installed already takes less."""

TELL_SECONDS: Final = 5.0
"""Passes between two sentences about a server that is being installed."""

_NAMES_ANY: Final = "@codemode/discovery"
"""Names the module with which a script can come to any server."""


CallsScripts = Callable[[ToolEntry, Any, CallOrigin], Awaitable[Any]]
"""Calls a kept script: takes its entry, an input, and what the call comes from."""


def _as_it_is(_server: str, tool: ToolEntry) -> ToolEntry:
    return tool


@dataclass(slots=True)
class Change:
    """Says what became of the servers; `retired` has the numbers of sessions that are to be released when no run uses
    them any more."""

    added: list[str] = field(default_factory=list[str])
    changed: list[str] = field(default_factory=list[str])
    removed: list[str] = field(default_factory=list[str])
    ruled: list[str] = field(default_factory=list[str])
    retired: list[int] = field(default_factory=list[int])


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
        reviewer: Holds tools against their pins; None takes them as they come.
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
        reviewer: Reviewer | None = None,
        refine: Callable[[str, ToolEntry], ToolEntry] = _as_it_is,
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
        self._python = PythonServer(tools, bound, max_message_bytes)
        self._local = self._python.tools
        check_servers(servers, local=bool(self._local))
        self._log_dir = log_dir
        self._budget = Budget.of_servers()
        self._count = count(1)
        self._changes = 0
        self._all: dict[int, UpstreamSession] = {}
        """Holds the sessions that somebody may call, by their numbers."""

        self._since: dict[int, int] = {}
        self._numbers: dict[str, int] = {}
        self._last_known: dict[str, ServerFacts] = {}
        self._followed: dict[str, set[str]] = {}
        self._on_update: Callable[[str, str], object] | None = None
        self._recalling: asyncio.Task[None] | None = None
        self._closing = TaskSet()
        self.persons = Persons(
            logins,
            self._session_for,
            self._entry_for,
            self._count,
            self._all,
            lambda session: self._closing.start(session.close()),
        )
        self.persons.use(_started(servers, personal=True), ())
        self.sessions: dict[str, UpstreamSession] = {
            name: self._new_session(name, config) for name, config in _started(servers).items()
        }
        self._paths = self._module_paths()
        self._entries = ServerEntries(reviewer, refine)
        self._local_entry = (
            self._entries.of_python(self._local, self._paths[LOCAL_SERVER]) if self._local else None
        )
        self._scripts: tuple[ServerEntry, CallsScripts] | None = None
        self.known_catalog = Catalog()
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
        if self._reviewer is None:
            return
        for name, session in [*self.sessions.items()]:
            if session.starting and self.sessions.get(name) is session:
                pinned = await asyncio.to_thread(self._reviewer.pinned, name, self.servers[name])
                if pinned and self.sessions.get(name) is session:
                    from cellblock.tools.upstream.listing import as_pinned

                    self._last_known[name] = as_pinned(pinned)
        if self._last_known:
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
        before, old = self.servers, self.sessions
        wanted = _started(servers)
        unchanged = _unchanged(before, servers)
        kept = {name for name in wanted if name in old and name in unchanged}
        change = Change(
            added=[name for name in wanted if name not in old],
            changed=[name for name in wanted if name in old and name not in kept],
            removed=[name for name in old if name not in wanted],
            ruled=[name for name in wanted if name in kept and before[name] != wanted[name]],
        )
        for name in (*change.changed, *change.removed):
            change.retired.append(self._numbers.pop(name))
        change.retired += self.persons.use(_started(servers, personal=True), unchanged)
        self.servers = servers
        self.sessions = {
            name: old[name] if name in kept else self._new_session(name, config)
            for name, config in wanted.items()
        }
        self._paths = self._module_paths()
        self._entries.forget()
        if self._reviewer is not None and pins is not None:
            self._reviewer.use(pins)
        for name in (*change.added, *change.changed):
            self.sessions[name].start()
        if self._recalling is not None:
            self._recalling.cancel()
        self._recalling = asyncio.create_task(self.recall())
        self._changed()
        return change

    def restart(self, name: str) -> Coroutine[Any, Any, None] | None:
        """Ends a server's session at once, whatever it does, and begins another in its place; runs in flight go on with
        that one.

        Returns:
            What does it, to be awaited; None: no such server is connected to.
        """
        if self.persons.rest(name):
            return asyncio.sleep(0)
        old = self.sessions.get(name)
        if old is None:
            return None
        number = self._numbers[name]
        session = self._new_session(name, self.servers[name])
        # The new number is the old session's, which is of no run any more.
        ended, self._numbers[name] = self._numbers[name], number
        del self._since[ended]
        self.sessions[name] = self._all[number] = session
        self._all[ended] = old
        if old.facts is not None:
            self._last_known[name] = old.facts
        self._changed()
        return self._begin_again(name, session, ended)

    async def release(self, retired: Sequence[int], unused: Callable[[int], Awaitable[None]]) -> None:
        """Closes sessions as soon as no run uses them any more.

        Args:
            retired: Of a `Change`.
            unused: Waits for the end of all runs from before that change, but not of those from before the one of the
                given number (the first is 1): they know nothing of sessions that began with it.
        """
        await asyncio.gather(*(self._release(number, unused) for number in retired))

    def catalogs_of(self, principal: str) -> tuple[Catalog, Catalog]:
        """Returns `catalog` and `known_catalog` for a principal: with its own sessions, which begin with its first look
        after its login."""
        if not self.persons.servers:
            return self.catalog, self.known_catalog
        return self.persons.catalogs(person_of(principal), self.catalog, self.known_catalog, self._paths)

    def sessions_of(self, principal: str) -> Mapping[str, UpstreamSession]:
        """Returns all sessions that a principal has, by the servers' names."""
        if not self.persons.servers:
            return self.sessions
        own = self.persons.of(person_of(principal)).items()
        return {**self.sessions, **{name: one.session for name, one in own if one.session is not None}}

    def starting(self, principal: str) -> bool:
        """Says whether a server of a principal's is in its first attempt to connect."""
        return any(session.starting for session in self.sessions_of(principal).values())

    async def installed(
        self, tell: Callable[[str], object], code: str | Collection[str] | None = None
    ) -> None:
        """Waits for the end of servers' first attempts to connect, and before it for what their programs install
        (`npx`, `uvx`).

        Args:
            tell: Told a sentence of each that is being installed, after pauses that grow from `TELL_SECONDS`.
            code: Only the servers that this script names, or with these ids, are waited for; None: all.
        """
        named = {
            name: session
            for name, session in self.sessions_of("").items()
            if code is None or self._paths[name] in code or _NAMES_ANY in code
        }
        now = asyncio.get_running_loop().time
        began: dict[str, float] = {}
        due: dict[str, float] = {}
        while names := [name for name, one in named.items() if one.starting and one.installing]:
            for name in names:
                since = now() - began.setdefault(name, now())
                if since >= due.get(name, QUIET_SECONDS):
                    due[name] = since + max(since, TELL_SECONDS)
                    so_far = f" ({since:.0f} s)" if since >= 1 else ""
                    tell(f"server {name} is being installed by its program{so_far}")
            await asyncio.sleep(POLL_SECONDS)
        await asyncio.gather(*(one.settled(inf, at_most=one.connect_seconds) for one in named.values()))

    async def settled(
        self,
        ids: Collection[str] | None = None,
        *,
        principal: str = "",
        bound: float | None = None,
        at_most: float | None = None,
    ) -> None:
        """Waits until no server is in its first attempt to connect.

        Args:
            principal: Whose own sessions are waited for, too.
            ids: Of the only servers to wait for, or their names in the configuration; None: all.
            bound: Seconds from the start of that attempt, or what `start` was given for it: it is waited for once.
                None: `STARTUP_WAIT_SECONDS`.
            at_most: Seconds from now.
        """
        waited_for = [
            session.settled(STARTUP_WAIT_SECONDS if bound is None else bound, at_most=at_most)
            for name, session in self.sessions_of(principal).items()
            if session.starting and (ids is None or name in ids or self._paths[name] in ids)
        ]
        if waited_for:
            await asyncio.gather(*waited_for)

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
        named = {
            name: session
            for name, session in sessions.items()
            if used is None or name in used or self._paths[name] in used
        }
        shown = sessions if used is not None and _NAMES_ANY in used else named
        reading = {
            name: asyncio.create_task(one.tools.fresh()) for name, one in shown.items() if one.tools.stale
        }
        # One that is away is tried at once where a script names it (section 3.2.3), or is being tried.
        away = [
            session
            for session in named.values()
            if session.state is State.WAITING
            or (session.state is State.CONNECTING and not session.starting)
            or (session.state is State.RESTING and session.has_login)
        ]
        awaited = [*reading.values(), *(asyncio.create_task(session.tried()) for session in away)]
        late = frozenset[str]()
        if awaited:
            try:
                done, _ = await asyncio.wait(awaited, timeout=bound)
            finally:
                await end_tasks(*awaited)
            late = frozenset(
                self._paths[name]
                for name in named.keys() & reading.keys() & self._paths.keys()
                if reading[name] not in done
            )
        if self._reviewer is not None:
            approved = [name for name in shown if self._reviewer.approved_meanwhile(name)]
            for name in approved:
                session, config = sessions.get(name), self.servers.get(name)
                if session is not None and session.facts is not None and config is not None:
                    await self._prepare(name, config, session.facts)
                self._entries.forget(name)
                self.persons.forget(name)
            if approved:
                self._changed()
        return late

    async def close(self) -> None:
        """Closes every session, in parallel, within their bound."""
        if self._recalling is not None:
            self._recalling.cancel()
        self.persons.use({}, ())
        await asyncio.gather(self._python.close(), *(session.close() for session in self._all.values()))
        await self._closing.ended()

    def caller(
        self, server: ServerEntry, tool: ToolEntry, origin: CallOrigin
    ) -> Callable[[Any], Awaitable[Any]]:
        """Gives an async function that calls one tool for `origin`: its input to a `ToolResult` or `RawJson`.

        Raises:
            ToolNotFound: The Python tool does not exist, or the server's session is closed.
        """
        # By its name: a run may have an entry with fewer tools.
        if self._local and server.config_name == LOCAL_SERVER:
            return self._python.caller(tool.tool_name, origin.account)
        if self._scripts is not None and server.is_scripts:
            call = self._scripts[1]
            return lambda arguments: call(tool, arguments, origin)
        session = self._all.get(server.session)
        if session is None:
            raise ToolNotFound(
                f"Server {server.config_name} is not configured any more.", hint="Run the script anew."
            )
        bound = self._settings.for_server(server.config_name).call_timeout_ms / 1000
        whom: dict[str, Any] = {"call_bound": bound, "origin": origin}
        if isinstance(tool, RequestEntry):
            whom["request"] = tool
        return lambda arguments: session.call(tool.tool_name, arguments, **whom)

    def knows(self, server: str, tool: str = "") -> bool:
        """Says whether there is a server of this module path, connected or not; and this tool, where they are Python
        tools, as nobody lists those of a server that is away. Any thread may ask."""
        if self._local_entry is not None and server == self._local_entry.server_id:
            return not tool or tool in self._local
        scripts = self.catalog.servers.get(server)
        if scripts is not None and scripts.is_scripts:
            return not tool or tool in scripts.by_export
        return server in self._paths.values()

    @property
    def has_logins(self) -> bool:
        """Says whether there is a server to which a person can log in."""
        shared = (session.needed_login for session in self.sessions.values())
        return bool(self.persons.servers) or any(one is not None for one in shared)

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
        return await session.entries(kind, fresh=fresh) if session is not None else []

    def watch_updates(self, listener: Callable[[str, str], object]) -> None:
        """Has `listener` called with a server's name and a URI when a resource has changed that is subscribed to."""
        self._on_update = listener

    async def unfollow(self, server: str, uri: str) -> None:
        """Ends the subscription to a resource, by the server's name."""
        self._followed.get(server, set()).discard(uri)
        session = self.sessions.get(server)
        if session is not None:
            await session.unfollow(uri)

    # ---- inside --------------------------------------------------------------------------------------

    async def _begin_again(self, name: str, session: UpstreamSession, ended: int) -> None:
        # Two of some servers cannot be: they have a port, or a lock.
        await self._close(ended)
        # Another change may have come meanwhile.
        if self.sessions.get(name) is session:
            session.start()

    async def _release(self, number: int, unused: Callable[[int], Awaitable[None]]) -> None:
        # Of a person's session it is not known; whoever waits for longer has lost nothing.
        await unused(self._since.pop(number, 0))
        await self._close(number)

    async def _close(self, number: int) -> None:
        await self._all[number].close()
        # Only now: whoever closes this registry meanwhile closes it, and waits for it, too.
        del self._all[number]

    def _new_session(self, name: str, config: ServerConfig) -> UpstreamSession:
        number = self._numbers[name] = next(self._count)
        self._since[number] = self._changes
        self._last_known.pop(name, None)
        session = self._all[number] = self._session_of(name, config)(
            on_change=self._changed,
            login=self._logins(name, config, ""),
            prepare=partial(self._prepare, name, config),
            followed=self._followed.setdefault(name, set[str]()),
            on_update=partial(self._tell_update, name),
        )
        return session

    def _session_for(self, name: str, person: str, login: Login | None, number: int) -> UpstreamSession:
        config = self.servers[name]

        def changed() -> None:
            self.persons.changed(person, name)
            self._on_change()

        async def prepare(facts: ServerFacts) -> ServerFacts:
            return await self._prepare(name, config, self.persons.held_once(name, facts))

        session = self._all[number] = self._session_of(name, config)(
            on_change=changed,
            login=login,
            prepare=prepare,
            rests_after=IDLE_SECONDS,
            has_room=partial(self.persons.has_room, name),
        )
        return session

    def _tell_update(self, name: str, uri: str) -> None:
        tell(self._on_update, name, uri)

    def _session_of(self, name: str, config: ServerConfig) -> partial[UpstreamSession]:
        """Gives what makes a session, with what is the same for all and for each person."""
        # With the SDK, which takes half a second of CPU to load: who has no server does without it.
        from cellblock.tools.upstream.session import UpstreamSession

        return partial(
            UpstreamSession,
            name,
            config,
            self._settings.for_server(name),
            # Servers send a result as structured content and as text.
            max_message_bytes=min(2 * self._max_message_bytes, MESSAGE_BYTES),
            log_dir=self._log_dir,
            budget=self._budget,
        )

    def _entry_for(self, name: str, facts: ServerFacts) -> ServerEntry:
        """Makes the entry of a server for persons; what it has beside tools is none of the profile `proxy`'s."""
        entry = self._entries.of(name, self.servers[name], facts, self._paths[name], 0, 0)
        return replace(entry, other_kinds=())

    async def _prepare(self, name: str, config: ServerConfig, facts: ServerFacts) -> ServerFacts:
        if self._reviewer is not None:
            # What one person has not, others have.
            whole = not (facts.notes or config.is_personal)
            await self._reviewer.prepare(name, config, facts.reviewed, whole=whole)
        return facts

    def _module_paths(self) -> dict[str, str]:
        # Those that lack something have their place, too: paths depend on all names.
        names = [name for name, config in self.servers.items() if not config.disabled]
        return module_paths([*names, *([LOCAL_SERVER] if self._local else [])])

    def _changed(self) -> None:
        servers: dict[str, ServerEntry] = {}
        known: dict[str, ServerEntry] = {}
        unavailable: dict[str, str] = {}
        for name, config in self.servers.items():
            if config.missing is not None and not config.disabled:
                unavailable[self._paths[name]] = config.missing
        lacking = frozenset(unavailable)
        logins = {self._paths[name]: login_hint(name) for name in self.persons.servers}
        unavailable |= dict.fromkeys(logins, NEEDS_LOGIN)
        for name, session in self.sessions.items():
            path = self._paths[name]
            if not session.starting:
                self._last_known.pop(name, None)
            facts = session.facts or self._last_known.get(name)
            if facts is not None:
                revision = session.resources.revision
                known[path] = self._entries.of(
                    name, self.servers[name], facts, path, self._numbers[name], revision
                )
            if session.state is State.READY and path in known:
                servers[path] = known[path]
            else:
                unavailable[path] = session.reason or session.state.value
        if self._local_entry is not None:
            servers[self._local_entry.server_id] = known[self._local_entry.server_id] = self._local_entry
        if self._scripts is not None and self._scripts[0].tools:
            entry = self._scripts[0]
            # Whoever is called so already stays it.
            path = entry.server_id if entry.server_id not in self._paths.values() else f"{entry.server_id}--2"
            if path != entry.server_id:
                entry = replace(entry, server_id=path)
            servers[path] = known[path] = entry
        version = self.catalog.version + 1
        ids = {name: path for name, path in self._paths.items() if name in self.servers}
        starting = frozenset(ids[name] for name, session in self.sessions.items() if session.starting)
        about: dict[str, Any] = {"ids": ids, "starting": starting, "lacking": lacking, "logins": logins}
        self.catalog = Catalog(version, servers, unavailable, **about)
        never = {path: reason for path, reason in unavailable.items() if path not in known}
        self.known_catalog = Catalog(version, known, never, **about)
        self._on_change()


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
