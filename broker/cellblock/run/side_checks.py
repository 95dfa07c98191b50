"""Checks scripts beside their runs, and keeps what was found by script and by what was known of its tools.

A script that comes again costs a look-up; its types are asked for again only when something else is known of a tool
that it names. What is found too late for a response comes with the client's next one.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Coroutine
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final
from weakref import WeakMethod

from cellblock.base.kept import Newest
from cellblock.base.tasks import TaskSet
from cellblock.run.answers import Answers, value_uses
from cellblock.run.plan import Plan
from cellblock.run.response import Diagnostic
from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry, ToolOutput
from cellblock.tools.catalog.modules import SERVERS_PREFIX
from cellblock.types.check.ambient import Got, imported_servers
from cellblock.types.check.checker import Checked, TypeChecker

MAX_KEPT: Final = 1_024
"""Bounds the scripts whose findings are kept; one takes some 300 bytes, and what was found."""

MAX_TOOLS: Final = 5_000
"""Bounds the definitions of tools that are held for them, of 3 KiB each: those of a server that changes are others each
time."""

MAX_UNDER_WAY: Final = 32
"""Bounds the checks that wait for the compiler; a script that comes then is not checked this time."""

MAX_CLIENTS: Final = 256
"""Bounds the clients for which diagnostics wait that were found too late."""

MAX_LATE: Final = 3
"""Bounds the diagnostics of one script that wait for its client's next response."""

MAX_LATE_SCRIPTS: Final = 16
"""Bounds the scripts of one client of which something waits: more have not been told between two of its responses."""

MAX_TOLD_LATE: Final = 9
"""Bounds the diagnostics of earlier scripts in one response; the others wait for the one after it."""

MAX_TRIES: Final = 4
"""Bounds the checks of one script that begin while it runs: one, and one more each time that a tool has answered with a
text that nobody expected."""

LEARN_SECONDS: Final = 0.1
"""Bounds how long a response waits until the first answers of a tool are looked at."""

Assumed = tuple[ServerEntry, ToolEntry, ToolOutput | None]
_ANY: Final = re.compile(r"\bany\b")
_KNOWN: Final[frozenset[tuple[str, str]]] = frozenset()
"""Stands for a run in which every tool has answered as was assumed."""

_Key = tuple[bytes, str, tuple[int, ...], frozenset[tuple[str, str]]]


@dataclass(slots=True)
class PastCheck:
    """Holds the findings of the check of one script, and what the script was checked against. The servers are held, so
    that their ids stay theirs."""

    servers: tuple[ServerEntry, ...]
    assumed: list[Assumed]
    revision: int
    checked: Checked
    value_uses: int
    certain: Checked | None = None


class SideChecks:
    """Makes and keeps all checks of a broker that run beside runs.

    Args:
        checker: Asks the compiler; None where type checking is switched off.
        learnt: Waits, at most so many seconds, until the results so far are looked at.
    """

    def __init__(
        self, checker: TypeChecker | None, learnt: Callable[[float], Awaitable[None]] | None = None
    ) -> None:
        self.checker = checker
        self.learnt = learnt
        self._kept: OrderedDict[_Key, PastCheck] = OrderedDict()
        self._held: Counter[int] = Counter()
        self._tools = 0
        self._late = Newest[str, OrderedDict[bytes, list[Diagnostic]]](MAX_CLIENTS)
        self._tasks = TaskSet()

    async def close(self) -> None:
        """Ends the checks that are under way."""
        self._tasks.cancel()
        await self._tasks.ended()

    @property
    def under_way(self) -> int:
        """Counts the checks that are under way."""
        return len(self._tasks)

    # ---- for the checks ------------------------------------------------------------------------------

    def kept(self, key: _Key) -> PastCheck | None:
        """Gives the findings of the last check of a script, if what was known then of the tools is still so."""
        held = self._kept.get(key)
        if held is None or self.checker is None:
            return None
        known = self.checker.declarations
        revision = known.revision()
        if held.revision != revision:
            outputs = known.outputs(key[1])
            if any(_version(was) != _version(outputs(server, tool)) for server, tool, was in held.assumed):
                self._drop(key)
                return None
            held.revision = revision
        self._kept.move_to_end(key)
        return held

    def keep(self, key: _Key, found: PastCheck) -> None:
        """Keeps the findings of one check."""
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
        if self.under_way >= MAX_UNDER_WAY:
            return None
        return self._tasks.start(work(), name="side check")

    def tell_later(self, client: str, key: bytes, found: list[Diagnostic]) -> None:
        """Leaves what was found in a script for the client's next response, behind what waits already."""
        if not found:
            return
        waiting = self._late[client] = self._late.get(client, OrderedDict())
        if key in waiting or len(waiting) < MAX_LATE_SCRIPTS:
            waiting[key] = found[:MAX_LATE]

    def take_late(self, client: str, key: bytes) -> list[Diagnostic]:
        """Takes out what has waited for this client, oldest first; nothing of the script that it has sent again."""
        waiting = self._late.get(client, OrderedDict())
        waiting.pop(key, None)
        told: list[Diagnostic] = []
        while waiting and len(told) + len(next(iter(waiting.values()))) <= MAX_TOLD_LATE:
            told += waiting.popitem(last=False)[1]
        if not waiting:
            self._late.pop(client, None)
        return told


@dataclass(slots=True)
class _Try:
    """Holds one check of a run's script: what it has found, or why nothing, and whether no other script's was under way
    when it began."""

    found: PastCheck | None = None
    gave_up: Checked | None = None
    task: asyncio.Task[None] | None = None
    is_alone: bool = False

    @property
    def outcome(self) -> Checked | None:
        return self.found.checked if self.found is not None else self.gave_up


class SideCheck:
    """Checks one run's script, against closed types.

    Args:
        owner: Keeps what is found.
        plan: The script.
        catalog: The run's snapshot.
        client: Whose run it is.
        principal: The identity of the client.
        bound_seconds: Of each check, once the compiler is there.
    """

    def __init__(
        self,
        owner: SideChecks,
        plan: Plan,
        catalog: Catalog,
        client: str,
        principal: str,
        bound_seconds: float,
    ) -> None:
        self._owner, self.bound_seconds = owner, bound_seconds
        script = plan.script
        self.code, self.typescript, self.name = script.code, script.typescript, script.name
        # A script's own types say nothing of what tools give, unless it says that this may be anything.
        is_untyped = script.untyped is not None and _ANY.search(script.code) is None
        self._untyped = script.untyped if is_untyped else None
        self._catalog = catalog
        self._client, self._principal = client, principal
        self.imports = frozenset(script.specifiers)
        if script.computed:
            self.imports |= {SERVERS_PREFIX + server_id for server_id in catalog.servers}
        self._servers = tuple(imported_servers(catalog, self.imports))
        self._script = blake2b(self.code.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        kept = owner.kept(self._key(_KNOWN))
        self._tries: dict[frozenset[tuple[str, str]], _Try] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._assumed: list[Assumed] | None = None
        if kept is not None:
            self._tries[_KNOWN], self._assumed = _Try(kept), kept.assumed
        self._has_begun = False
        is_checked = owner.checker is not None
        self.value_uses = kept.value_uses if kept else value_uses(self.code) if is_checked else 0
        keeps = (
            kept is None
            or self.value_uses > 0
            or any(fault.about.absent or fault.about.texts[0] for fault in kept.checked.faults)
        )
        # Not held by what it holds: a check, and what it keeps, goes with its run.
        look_again = WeakMethod(self._look_again)
        self.answers = Answers(keeps, lambda: (look := look_again()) and look())

    @property
    def is_about_tools(self) -> bool:
        """Says whether the script can call any tool."""
        return bool(self._servers)

    @property
    def schemas(self) -> list[object]:
        """Holds the schemas of the tools that the script names."""
        known = ((tool.input_schema, output and output.schema) for _, tool, output in self._assumed or ())
        return [schema for both in known for schema in both]

    def begin(self) -> None:
        """Begins the check, unless its outcome is known or the script calls no tool."""
        if self._servers:
            self._has_begun = True
            self._try({})

    async def outcome(self, most_seconds: float | None = None) -> Checked | None:
        """Waits for what a check has found, as long as the check takes, or at most `most_seconds`; as long as a check
        may take where no other script's was before it. Gives None when it has not been by then."""
        # Tools may have answered with texts that no one expected: what they are used as is another matter.
        check = self._try(self._unlike())
        if check.is_alone and most_seconds is not None:
            most_seconds = max(most_seconds, self.bound_seconds)
        if check.outcome is None and check.task is not None and (most_seconds is None or most_seconds > 0):
            await asyncio.wait([check.task], timeout=most_seconds)
        return check.outcome

    async def learn(self) -> None:
        """Has the script checked anew where this run has answers of tools of which nothing was known: against what
        these are like."""
        checker, learnt = self._owner.checker, self._owner.learnt
        first = [
            (server, tool, was)
            for server, tool, was in self._assumed or ()
            if (was is None or not was.samples) and self.answers.has(server.server_id, tool.tool_name)
        ]
        if checker is None or learnt is None or not first:
            return
        await learnt(LEARN_SECONDS)
        outputs = checker.declarations.outputs(self._principal)
        if any(_version(was) != _version(outputs(server, tool)) for server, tool, was in first):
            self._tries.clear()
            self._assumed = None

    async def certain(self) -> Checked:
        """Gives what is found against types as they are, where an open object may have anything beside what is
        declared."""
        checker, check = self._owner.checker, self._tries.get(_KNOWN)
        if checker is None or check is None or check.found is None:
            return Checked()
        if check.found.certain is None:
            checked = await self._check(checker, {}, closed=False)
            if checked.gave_up is not None:
                return Checked()
            check.found.certain = checked
        return check.found.certain

    def tell_later(self, diagnostics: Callable[[Checked], Awaitable[list[Diagnostic]]]) -> None:
        """Has what is still to be found told with the client's next response; `diagnostics` words it."""

        async def wait() -> None:
            checked = await self.outcome()
            if checked is not None:
                self._owner.tell_later(self._client, self._script, await diagnostics(checked))

        self._owner.spawn(wait)

    def late(self) -> list[Diagnostic]:
        """Gives what was found too late for the client's last response."""
        return self._owner.take_late(self._client, self._script)

    def _key(self, got: frozenset[tuple[str, str]]) -> _Key:
        return self._script, self._principal, tuple(map(id, self._servers)), got

    def _unlike(self) -> Got:
        """Gives the answers of this run that are not as was known of the tools."""
        return self.answers.unlike(self._assumed) if self._assumed is not None else {}

    def _look_again(self) -> None:
        """Begins another check where a tool has just answered with a text: when the run ends, it is ready."""
        if self._has_begun and len(self._tries) < MAX_TRIES:
            self._try(self._unlike())

    def _try(self, got: Got) -> _Try:
        """Gives the check against what a run has got, and begins it if that is still to do."""
        this = frozenset(got)
        check = self._tries.get(this)
        if check is None:
            check = self._tries[this] = _Try(self._owner.kept(self._key(this)))
            if check.found is None:
                self._start(check, got)
        return check

    def _start(self, check: _Try, got: Got) -> None:
        checker = self._owner.checker
        if checker is None:
            check.gave_up = Checked(gave_up="type checking is switched off")
            return
        key, known = self._key(frozenset(got)), checker.declarations
        revision = known.revision()
        named = known.named(self._catalog, self.imports, self.code)
        outputs = known.outputs(self._principal)
        assumed = [(server, tool, outputs(server, tool)) for server, tool in named]
        if self._assumed is None:
            self._assumed = assumed

        async def work() -> None:
            checked = await self._check(checker, got, closed=True)
            if checked.gave_up is not None:
                check.gave_up = checked
                return
            check.found = PastCheck(self._servers, assumed, revision, checked, self.value_uses)
            self._owner.keep(key, check.found)

        check.is_alone = self._owner.under_way == sum(not task.done() for task in self._tasks)
        check.task = self._owner.spawn(work)
        self._tasks += [] if check.task is None else [check.task]
        if check.task is None:
            check.gave_up = Checked(gave_up="too many scripts wait for the compiler")

    async def _check(self, checker: TypeChecker, got: Got, *, closed: bool) -> Checked:
        return await checker.check(
            self._untyped or self.code,
            typescript=self.typescript and self._untyped is None,
            catalog=self._catalog,
            imports=self.imports,
            bound_seconds=self.bound_seconds,
            wait_for_start=True,
            closed=closed,
            got=got,
            principal=self._principal,
        )


def _version(output: ToolOutput | None) -> object:
    """Gives what of an answer about an output makes its types."""
    if output is None:
        return None
    is_certain = output.samples != 1 or output.source != "observed"
    return output.source, output.version, is_certain, output.document is not None, output.text, output.result
