"""Checks scripts beside their runs, and keeps what was found by script and by what was known of its tools.

A script that comes again costs a look-up; its types are asked for again only when something else is known of a tool
that it names. What is found too late for a response comes with the client's next one.
"""

from __future__ import annotations

import asyncio
import time
from collections import Counter, OrderedDict
from collections.abc import Callable, Coroutine, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final

from cellblock.catalog.model import Catalog, ServerEntry, ToolEntry
from cellblock.catalog.modules import SERVERS_PREFIX
from cellblock.catalog.outputs import ToolOutput
from cellblock.execution.answers import Answers
from cellblock.execution.plan import Plan
from cellblock.execution.response import Diagnostic
from cellblock.typecheck.ambient import imported_servers
from cellblock.typecheck.checker import Checked, TypeChecker

MAX_KEPT: Final = 1_024
"""Bounds the scripts whose findings are kept; one takes some 300 bytes, and what was found."""

MAX_TOOLS: Final = 5_000
"""Bounds the definitions of tools that are held for them, of 3 KiB each: those of a server that changes are others each
time."""

MAX_UNDER_WAY: Final = 32
"""Bounds the checks that wait for the compiler; a script that comes then is not checked this time."""

MAX_CLIENTS: Final = 256
"""Bounds the clients for which something waits that was found too late."""

MAX_LATE: Final = 3
"""Bounds the diagnostics of one client that wait for its next response."""

Assumed = tuple[ServerEntry, ToolEntry, ToolOutput | None]
_KNOWN: Final[frozenset[tuple[str, str]]] = frozenset()
"""Stands for a run in which every tool has answered as was assumed."""

_Key = tuple[bytes, tuple[int, ...], frozenset[tuple[str, str]]]


@dataclass(slots=True)
class Kept:
    """Holds what was found in a script, and against what. The servers are held, so that their ids stay theirs."""

    servers: tuple[ServerEntry, ...]
    assumed: list[Assumed]
    revision: int
    checked: Checked
    certain: Checked | None = None


class SideChecks:
    """Makes and keeps all checks of a broker that run beside runs.

    Args:
        checker: Asks the compiler; None where type checking is switched off.
    """

    def __init__(self, checker: TypeChecker | None) -> None:
        self.checker = checker
        self._kept: OrderedDict[_Key, Kept] = OrderedDict()
        self._held: Counter[int] = Counter()
        self._tools = 0
        self._late: OrderedDict[str, tuple[bytes, list[Diagnostic]]] = OrderedDict()
        self._tasks: set[asyncio.Task[None]] = set()

    async def close(self) -> None:
        """Ends what is under way."""
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # ---- for the checks ------------------------------------------------------------------------------

    def kept(self, key: _Key) -> Kept | None:
        """Gives what was found the last time, if what was known then of the tools is still so."""
        held = self._kept.get(key)
        if held is None or self.checker is None:
            return None
        known = self.checker.declarations
        revision = known.revision()
        if held.revision != revision:
            if any(
                _version(was) != _version(known.outputs(server, tool)) for server, tool, was in held.assumed
            ):
                self._drop(key)
                return None
            held.revision = revision
        self._kept.move_to_end(key)
        return held

    def keep(self, key: _Key, found: Kept) -> None:
        """Keeps what was found."""
        self._drop(key)
        self._kept[key] = found
        for server in found.servers:
            tools = id(server.tools)
            self._tools += 0 if self._held[tools] else len(server.tools)
            self._held[tools] += 1
        while len(self._kept) > MAX_KEPT or (self._tools > MAX_TOOLS and len(self._kept) > 1):
            self._drop(next(iter(self._kept)))

    def _drop(self, key: _Key) -> None:
        if (found := self._kept.pop(key, None)) is not None:
            for server in found.servers:
                tools = id(server.tools)
                self._held[tools] -= 1
                if not self._held[tools]:
                    del self._held[tools]
                    self._tools -= len(server.tools)

    def spawn(self, work: Callable[[], Coroutine[Any, Any, None]]) -> asyncio.Task[None] | None:
        """Begins a check, or the wait for one, unless too many are under way."""
        if len(self._tasks) >= MAX_UNDER_WAY:
            return None
        task = asyncio.create_task(work(), name="side check")
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
        return task

    def tell_later(self, client: str, key: bytes, found: list[Diagnostic]) -> None:
        """Leaves something for the client's next response."""
        if found:
            self._late[client] = key, found[:MAX_LATE]
            self._late.move_to_end(client)
            if len(self._late) > MAX_CLIENTS:
                self._late.popitem(last=False)

    def take_late(self, client: str, key: bytes) -> list[Diagnostic]:
        """Takes out what has waited for this client; nothing of the script that it has just sent again."""
        said_of, found = self._late.pop(client, (key, []))
        return found if said_of != key else []


class SideCheck:
    """Checks one run's script, against closed types.

    Args:
        owner: Keeps what is found.
        plan: The script.
        catalog: The run's snapshot.
        client: Whose run it is.
    """

    def __init__(self, owner: SideChecks, plan: Plan, catalog: Catalog, client: str) -> None:
        self._owner = owner
        self._plan = plan
        self.code = plan.code
        self._catalog = catalog
        self._client = client
        self.imports = frozenset(plan.script.specifiers)
        if plan.script.computed:
            self.imports |= {SERVERS_PREFIX + server_id for server_id in catalog.servers}
        self._servers = tuple(imported_servers(catalog, self.imports))
        self._script = blake2b(self.code.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        self._key: _Key = self._script, tuple(map(id, self._servers)), _KNOWN
        self._found = kept = owner.kept(self._key)
        self._task: asyncio.Task[None] | None = None
        self._gave_up: Checked | None = None
        self._got: Mapping[tuple[str, str], ToolOutput] = {}
        self.answers = Answers(keeps=kept is None or any(fault.absent for fault in kept.checked.faults))

    @property
    def is_about_tools(self) -> bool:
        """Says whether the script can call any."""
        return bool(self._servers)

    def begin(self, bound_seconds: float) -> None:
        """Begins the check, unless its outcome is known or the script calls no tool."""
        if self._found is None and self._task is None and self._servers:
            self._start(bound_seconds)

    async def outcome(self, bound_seconds: float, most_seconds: float | None = None) -> Checked | None:
        """Waits for what was found; gives None when it has not been by then.

        Args:
            bound_seconds: Of the check, once the compiler is there.
            most_seconds: How long the caller waits for it; None: as long as the check takes.
        """
        until = None if most_seconds is None else time.monotonic() + most_seconds
        if self._found is None and self._task is None:
            self._start(bound_seconds)
        await self._wait(until)
        if self._found is not None and not self._got:
            self._got = self.answers.unlike(self._found.assumed)
            if self._got:
                # Tools have answered with texts that no one expected: what they are used as is another matter.
                self._key = (*self._key[:2], frozenset(self._got))
                self._found, self._task = self._owner.kept(self._key), None
                if self._found is None:
                    self._start(bound_seconds)
                    await self._wait(until)
        return self._found.checked if self._found is not None else self._gave_up

    async def certain(self, bound_seconds: float) -> Checked:
        """Gives what is found against types as they are, where an open object may have anything beside what is
        declared."""
        checker = self._owner.checker
        if checker is None or self._found is None:
            return Checked()
        if self._found.certain is None:
            checked = await self._check(checker, bound_seconds, closed=False)
            if checked.gave_up is not None:
                return Checked()
            self._found.certain = checked
        return self._found.certain

    def tell_later(self, bound_seconds: float, diagnostics: Callable[[Checked], list[Diagnostic]]) -> None:
        """Has what is still to be found told with the client's next response.

        Args:
            bound_seconds: As of `outcome`.
            diagnostics: Makes them.
        """

        async def wait() -> None:
            checked = await self.outcome(bound_seconds)
            if checked is not None:
                self._owner.tell_later(self._client, self._script, diagnostics(checked))

        self._owner.spawn(wait)

    def late(self) -> list[Diagnostic]:
        """Gives what was found too late for the client's last response."""
        return self._owner.take_late(self._client, self._script)

    async def _wait(self, until: float | None) -> None:
        left = None if until is None else until - time.monotonic()
        if self._task is not None and not self._task.done() and (left is None or left > 0):
            await asyncio.wait([self._task], timeout=left)

    def _start(self, bound_seconds: float) -> None:
        checker = self._owner.checker
        if checker is None:
            self._gave_up = Checked(gave_up="type checking is switched off")
            return
        key, known = self._key, checker.declarations
        revision = known.revision()
        named = known.named(self._catalog, self.imports, self.code)
        assumed = [(server, tool, known.outputs(server, tool)) for server, tool in named]

        async def work() -> None:
            checked = await self._check(checker, bound_seconds, closed=True)
            if checked.gave_up is not None:
                self._gave_up = checked
                return
            self._found = Kept(self._servers, assumed, revision, checked)
            self._owner.keep(key, self._found)

        self._task = self._owner.spawn(work)
        if self._task is None:
            self._gave_up = Checked(gave_up="too many scripts wait for the compiler")

    async def _check(self, checker: TypeChecker, bound_seconds: float, *, closed: bool) -> Checked:
        return await checker.check(
            self.code,
            typescript=self._plan.script.typescript,
            catalog=self._catalog,
            imports=self.imports,
            bound_seconds=bound_seconds,
            wait_for_start=True,
            closed=closed,
            got=self._got,
        )


def _version(output: ToolOutput | None) -> object:
    """Gives what of an answer about an output makes its types."""
    if output is None:
        return None
    return output.source, output.version, output.document is not None, output.text, output.result
