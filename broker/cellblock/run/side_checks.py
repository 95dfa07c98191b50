"""Checks scripts beside their runs, notes what the tools of a run have answered, to tell afterwards whether the types
that its script was checked against are true, and keeps what was found by script and by what was known of its tools.

A script that comes again costs a look-up; its types are asked for again only when something else is known of a tool
that it names. What is found too late for a response comes with the client's next one.
"""

from __future__ import annotations

import asyncio
import json
import re
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Collection, Coroutine, Iterable, Iterator, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, Final, Literal
from weakref import WeakMethod

from cellblock.base.json import is_array, is_object
from cellblock.base.kept import Newest
from cellblock.base.tasks import TaskSet
from cellblock.run.plan import Plan
from cellblock.run.response import Diagnostic
from cellblock.tools.catalog.model import Catalog, ResultKind, ServerEntry, ToolEntry, ToolOutput
from cellblock.tools.catalog.modules import SERVERS_PREFIX
from cellblock.types.check.ambient import Got, imported_servers
from cellblock.types.check.checker import Checked, TypeChecker

MAX_KEPT_BYTES: Final = 2 * 1024 * 1024
"""Bounds the bytes of answers that one run keeps until its end, to look for fields in them, in 0.2 s; they are not
copied."""

What = Literal["json text", "text", "value"]
"""Names what a script has got; a value is anything that is no text."""

_Tool = tuple[str, str]
"""Names a tool by its server's id and its own name."""

_Place = tuple[_Tool, tuple[str, ...]]
"""Says where in the answers of a tool objects are: by the members on the way, and `_THROUGH` for elements and texts."""

_THROUGH: Final = ""
_NUMBER: Final = re.compile(rb"-?\d{1,30}(?:\.\d{1,30})?")


class Answers:
    """Keeps notes of one run's answers.

    Args:
        keeps: Whether fields will be looked for in them.
        on_text: Is called when a tool has answered with a text for the first time.
    """

    def __init__(self, keeps: bool, on_text: Callable[[], None] = lambda: None) -> None:
        self._on_text = on_text
        self._kinds: dict[_Tool, set[What]] = {}
        self._bodies: list[tuple[_Tool, bytes]] | None = [] if keeps else None
        self._places: dict[_Place, set[str]] | None = None
        self._bytes = 0

    def add(self, server_id: str, tool: str, kind: ResultKind, body: bytes) -> None:
        """Notes one successful answer, as the script got it."""
        kinds, what = self._kinds.setdefault((server_id, tool), set()), _what(kind, body)
        is_new = what not in kinds
        kinds.add(what)
        if self._bodies is not None:
            self._bytes += len(body)
            if self._bytes > MAX_KEPT_BYTES:
                self._bodies = None
            else:
                self._bodies.append(((server_id, tool), body))
        if is_new and what != "value":
            self._on_text()

    def may_have(self, field: str, tool: _Tool | None = None) -> bool:
        """Says whether an answer has a field of this name, or may have: they were too large to keep. `tool`: that
        whose answers count; None: of any."""
        return self._may_match(rb'"%s\\*"' % _written(field), tool)

    def holds(self, field: str, are_numbers: bool) -> bool:
        """Says whether all texts of the fields of this name are numbers, which are ordered otherwise than texts; or, of
        texts that are to be none, none is."""
        text = re.compile(rb'"%s\\*"\s*+:\s*+\\*"([^"\\]*+)' % _written(field))
        found = [number for _, body in self._bodies or () for number in text.findall(body)]
        if not are_numbers:
            return bool(found) and not any(map(_NUMBER.fullmatch, found))
        wholes = {len(number.partition(b".")[0]) for number in found}
        are_alike = len(wholes) < 2 and not any(b"." in number for number in found)
        return not are_alike and all(map(_NUMBER.fullmatch, found))

    def may_say(self, text: str) -> bool:
        """Says whether an answer has such characters, or may have."""
        return self._may_match(re.escape(text.encode()), None)

    def _may_match(self, pattern: bytes, tool: _Tool | None) -> bool:
        if self._bodies is None:
            return bool(self._kinds)
        found = re.compile(pattern)
        return any(found.search(body) for of, body in self._bodies if tool in (None, of))

    def place_of(
        self, field: str, beside: Collection[str], tool: _Tool | None, compared: str = ""
    ) -> str | None:
        """Says where a field is that an object with the members `beside` was read for: empty where it is in such an
        object, or may be; else the way from there to it, such as `owner`; None where it is nowhere. Of a text, with
        which the field `compared` was compared, the same."""
        pair = rb'"%s\\*"\s*+:\s*+\\*"%s\\*"' % (_written(compared), _written(field))
        if not (self._may_match(pair, tool) if compared else self.may_have(field, tool)):
            return None
        if compared:
            return ""
        if self._places is None:
            self._places = {}
            for of, body in self._bodies or ():
                for path, names in _objects(body):
                    self._places.setdefault((of, path), set()).update(names)
        known = {place: names for place, names in self._places.items() if tool in (None, place[0])}
        alike = {place for place, names in known.items() if _are_alike(names - {field}, {*beside})}
        if not alike or any(field in known[place] for place in alike):
            return ""
        ways = [
            path[depth:]
            for (of, path), names in known.items()
            for depth in range(len(path) if field in names else 0)
            if (of, path[:depth]) in alike
        ]
        return min((".".join(way) for way in ways if _THROUGH not in way), key=len, default=None)

    def may_be_text(self, tool: tuple[str, str] | None) -> bool:
        """Says whether a tool may have answered JSON in a text, as far as this run knows: it gave no value. None is any
        tool of those that were called."""
        if tool is None:
            return not self._kinds or any("json text" in kinds for kinds in self._kinds.values())
        return "value" not in self._kinds.get(tool, ())

    def texts(self) -> list[tuple[str, str]]:
        """Gives the tools that have answered JSON in a text each time, by the server's id and the tool's name."""
        return [tool for tool, kinds in self._kinds.items() if kinds == {"json text"}]

    def unlike(
        self, assumed: Iterable[tuple[ServerEntry, ToolEntry, ToolOutput | None]]
    ) -> Mapping[tuple[str, str], ToolOutput]:
        """Gives what tools have given that is a text where something else was assumed, or nothing was known.

        Args:
            assumed: What the script was checked against.
        """
        found: dict[tuple[str, str], ToolOutput] = {}
        for server, tool, output in assumed:
            key = server.server_id, tool.tool_name
            kinds = self._kinds.get(key)
            known_as_text = output is not None and (output.document is not None or output.text)
            if kinds and "value" not in kinds and not known_as_text:
                found[key] = as_text(output, is_json=kinds == {"json text"})
        return found


def _written(text: str) -> bytes:
    """Gives a pattern of a text in JSON. Quotes of JSON in a text are behind backslashes."""
    written = {json.dumps(text, ensure_ascii=ascii_only)[1:-1].encode() for ascii_only in (True, False)}
    return rb"(?:%s)" % b"|".join(re.escape(one) for one in sorted(written))


def _objects(body: bytes) -> Iterator[tuple[tuple[str, ...], Iterable[str]]]:
    """Gives the names of each object's members, with the way to it."""
    stack: list[tuple[tuple[str, ...], Any]] = [((), _parsed(body))]
    while stack:
        path, value = stack.pop()
        if isinstance(value, str) and value[:1] in ("{", "["):
            path, value = (*path, _THROUGH) if path else path, _parsed(value)
        if is_object(value):
            yield path, value.keys()
            stack += (((*path, name), member) for name, member in value.items())
        elif is_array(value):
            stack += (((*path, _THROUGH), element) for element in value)


def _parsed(text: str | bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _are_alike(names: set[str], others: set[str]) -> bool:
    """Says whether two kinds of objects may be one: of the smaller one's members, half are the other's."""
    return 0 < min(len(names), len(others)) <= 2 * len(names & others)


def _what(kind: ResultKind, body: bytes) -> What:
    if kind != "text":
        return "value"
    # A JSON string that is an object or an array by its ends; who learns of results parses it.
    return "json text" if (body[1:2], body[-2:-1]) in ((b"{", b"}"), (b"[", b"]")) else "text"


def as_text(output: ToolOutput | None, *, is_json: bool) -> ToolOutput:
    """Describes what a tool gives that was thought to give a value, or of which nothing was known."""
    if not is_json:
        return ToolOutput("observed", "A text, in this run.", text=True)
    inner = output.schema if output is not None and output.schema is not None else True
    return ToolOutput("observed", "JSON text, in this run.", document=inner)


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
    certain: Checked | None = None


class SideChecks:
    """Makes and keeps all checks of a broker that run beside runs.

    Args:
        checker: Asks the compiler; None where type checking is switched off.
    """

    def __init__(self, checker: TypeChecker | None) -> None:
        self.checker = checker
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
        self.code = plan.code
        self.typescript, self.name = plan.script.typescript, plan.script.name
        # A script's own types say nothing of what tools give, unless it says that this may be anything.
        is_untyped = plan.script.untyped is not None and _ANY.search(plan.code) is None
        self._untyped = plan.script.untyped if is_untyped else None
        self._catalog = catalog
        self._client, self._principal = client, principal
        self.imports = frozenset(plan.script.specifiers)
        if plan.script.computed:
            self.imports |= {SERVERS_PREFIX + server_id for server_id in catalog.servers}
        self._servers = tuple(imported_servers(catalog, self.imports))
        self._script = blake2b(self.code.encode("utf-8", "surrogatepass"), digest_size=16).digest()
        kept = owner.kept(self._key(_KNOWN))
        self._tries: dict[frozenset[tuple[str, str]], _Try] = {}
        self._assumed: list[Assumed] | None = None
        if kept is not None:
            self._tries[_KNOWN], self._assumed = _Try(kept), kept.assumed
        self._has_begun = False
        keeps = kept is None or any(
            fault.about.absent or fault.about.texts[0] for fault in kept.checked.faults
        )
        # Not held by what it holds: a check, and what it keeps, goes with its run.
        look_again = WeakMethod(self._look_again)
        self.answers = Answers(keeps, lambda: (look := look_again()) and look())

    @property
    def is_about_tools(self) -> bool:
        """Says whether the script can call any tool."""
        return bool(self._servers)

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

    def texts(self) -> dict[tuple[str, str], str]:
        """Gives the names of the tools that have answered JSON in a text each time, by server and export."""
        found = self.answers.texts()
        return {
            (server.server_id, tool.export_name): tool.tool_name
            for server in (self._servers if found else ())
            for tool in server.tools
            if (server.server_id, tool.tool_name) in found
        }

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
            check.found = PastCheck(self._servers, assumed, revision, checked)
            self._owner.keep(key, check.found)

        mine = sum(one.task is not None and not one.task.done() for one in self._tries.values())
        check.is_alone = self._owner.under_way == mine
        check.task = self._owner.spawn(work)
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
    is_certain = output.samples != 1
    return output.source, output.version, is_certain, output.document is not None, output.text, output.result
