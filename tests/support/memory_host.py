"""A worker host in this process, scripted by a test, and the broker's parts above the wire around it.

A test gives the host an async function that plays one run: what the worker and the host say, in which order and
with what faults. Real are the link's codec, the pool, the executor and everything that it uses.
"""

import asyncio
import json
from collections.abc import Awaitable, Callable, Collection, Mapping
from typing import Any, Final

from cellblock.base import payload
from cellblock.base.raw_json import RawJson
from cellblock.base.settings.sections import SchemaSettings
from cellblock.base.settings.settings import CellblockSettings
from cellblock.pool.pool import Pool
from cellblock.pool.router import LinkEvents
from cellblock.run.context import RunContext
from cellblock.run.events import RunEvents, RunWatch, Watcher
from cellblock.run.executor import Executor
from cellblock.run.flows.labels import NOTHING, Label
from cellblock.run.hook import RunJournal, RunKeeper
from cellblock.run.plan import make_plan
from cellblock.run.policy.asking import EMBEDDING, Caller, Grantee
from cellblock.run.policy.policy import Policy
from cellblock.run.request import Limits
from cellblock.run.response import RunResponse
from cellblock.script.parsing import Parsers
from cellblock.tools.catalog.model import Catalog, JsonSchema, ServerEntry, ToolEntry, stated_of
from cellblock.tools.catalog.modules import ModuleUrls
from cellblock.tools.schemas.example import ValidatorCache
from cellblock.tools.upstream.registry import Registry
from cellblock.tools.upstream.requester import CallOrigin
from cellblock.tools.upstream.wire.results import ResourceResult, ToolResult
from cellblock.types.discovery import DiscoveryCache
from cellblock.types.learning.learner import Learner
from cellblock_worker.wire import protocol
from cellblock_worker.wire.frames import FrameError
from support.accounts import account_of
from support.waits import within

BOUND: Final = 60.0
"""Longest wait of any test, in seconds."""

Tool = Callable[[dict[str, Any]], Awaitable[Any]]
AskingTool = Callable[[dict[str, Any], CallOrigin], Awaitable[Any]]
"""Has the way back, too, as a session has that calls a server."""


class MemoryLink:
    """Implements `router.HostLink` for hosts that live in this process: the same messages, and no sockets.

    Messages still pass through the header codec both ways, so what cannot cross a wire cannot cross here.

    Args:
        events: Told what hosts say.
        max_message_bytes: Cap of one body from a host.
    """

    def __init__(self, events: LinkEvents, *, max_message_bytes: int) -> None:
        self._events = events
        self._max_message_bytes = max_message_bytes
        self._hosts: dict[bytes, ScriptedHost] = {}
        self._loop = asyncio.get_running_loop()

    def attach(self, identity: bytes, host: "ScriptedHost") -> None:
        """Connects a host."""
        self._hosts[identity] = host

    def detach(self, identity: bytes) -> None:
        """Cuts a host off: sends to it fail from now on, and what it says is dropped."""
        self._hosts.pop(identity, None)

    def send(self, host: bytes, token: bytes, message: protocol.ToHost, body: bytes = b"") -> None:
        """Delivers in a later turn of the loop. Raises ConnectionError for an unknown host."""
        target = self._hosts.get(host)
        if target is None:
            raise ConnectionError("no such host")
        self._loop.call_soon(target.broker_says, token, protocol.parse_to_host(message.packed()), body)

    def reaches(self, host: bytes) -> bool:
        """Says whether a host is attached."""
        return host in self._hosts

    def deliver(self, host: bytes, token: bytes, raw_header: bytes, body: bytes = b"") -> None:
        """Delivers what a host says, as encoded header and body, in a later turn of the loop."""
        self._loop.call_soon(self._deliver_now, host, token, raw_header, body)

    def close(self) -> None:
        """Drops every host."""
        self._hosts.clear()

    def _deliver_now(self, host: bytes, token: bytes, raw_header: bytes, body: bytes) -> None:
        if host not in self._hosts:
            return
        try:
            message = protocol.parse_from_host(raw_header)
            protocol.check_body(message, len(body), self._max_message_bytes)
        except FrameError as error:
            self._events.host_broke_protocol(host, str(error))
            return
        self._events.host_says(host, token, message, body)


class HostedRun:
    """One run as the host sees it."""

    def __init__(self, host: "ScriptedHost", token: bytes, message: protocol.Run, body: bytes) -> None:
        self.host, self.token, self.message, self.body = host, token, message, body
        self.cancelled = asyncio.Event()
        self.clock: list[str] = []
        """What the broker has said of the run's clock."""
        self.replied: set[int] = set()
        """The ids of the requests that were answered."""
        self._replies: dict[int, asyncio.Future[tuple[bool, Any]]] = {}

    def say(self, message: protocol.Message, body: bytes = b"", *, token: bytes | None = None) -> None:
        """Says anything under this run's token, or another."""
        self.host.say(message, body, token=self.token if token is None else token)

    def log(self, text: str) -> None:
        """A console entry."""
        self.say(protocol.Log(level="log", ms=1), text.encode())

    def call(self, call_id: int, tool: str = "echo", value: Any = None) -> asyncio.Future[tuple[bool, Any]]:
        """A tool call; the future gives `ok` and the decoded answer."""
        body = b"" if value is None else json.dumps(value).encode()
        return self._ask(protocol.Call(id=call_id, server="tools", tool=tool), body)

    def query(self, call_id: int, op: Any, *arguments: Any) -> asyncio.Future[tuple[bool, Any]]:
        """A discovery request; like `call`."""
        return self._ask(protocol.Query(id=call_id, op=op), json.dumps(list(arguments)).encode())

    def _ask(self, message: protocol.Call | protocol.Query, body: bytes) -> asyncio.Future[tuple[bool, Any]]:
        future = self._replies[message.id] = asyncio.get_running_loop().create_future()
        self.say(message, body)
        return future

    def done(self, value: Any = None, **fields: Any) -> None:
        """The script has settled, which is the run's end."""
        self.ended(body=json.dumps(value).encode(), outcome="done", **fields)

    def ended(self, reason: Any = "finished", body: bytes = b"", **fields: Any) -> None:
        """The run's last message."""
        self.say(protocol.Ended(reason=reason, **fields), body)

    def on_reply(self, reply: protocol.Reply, body: bytes) -> None:
        """An answer of the broker."""
        self.replied.add(reply.id)
        future = self._replies.get(reply.id)
        if future is not None and not future.done():
            future.set_result((reply.ok, json.loads(body)))


Play = Callable[[HostedRun], Awaitable[None]]


async def succeed(run: HostedRun) -> None:
    """Plays a run that gives 1."""
    run.done(1)


async def hold(run: HostedRun) -> None:
    """Plays a run that goes on until it is cancelled."""


class ScriptedHost:
    """The other end of a `MemoryLink`.

    Args:
        link: The wire.
        play: Plays each run; an exception in it fails the test at `close`.
        identity: The host's name.
        confirms: Whether a cancel is answered with `Ended`.
        leases: Whether a run is said to have a worker before it is played.
    """

    def __init__(
        self,
        link: MemoryLink,
        play: Play = succeed,
        *,
        identity: bytes = b"host",
        confirms: bool = True,
        leases: bool = True,
    ) -> None:
        self.play, self.identity, self.confirms, self.leases = play, identity, confirms, leases
        self.runs: list[HostedRun] = []
        self.keys: list[str] = []
        self.places: list[protocol.Granted | protocol.Demand] = []
        self._link = link
        self._by_token: dict[bytes, HostedRun] = {}
        self._tasks: list[asyncio.Task[None]] = []
        self._changed = asyncio.Event()
        link.attach(identity, self)

    def hello(
        self, capacity: int = 4, version: int = protocol.PROTOCOL_VERSION, *, shared: bool = False
    ) -> None:
        """Greets the broker."""
        self.say(
            protocol.Hello(protocol=version, pid=1, capacity=capacity, deno="deno", layers=[], shared=shared)
        )

    def say(self, message: protocol.Message, body: bytes = b"", *, token: bytes = b"") -> None:
        """Says anything."""
        self._link.deliver(self.identity, token, message.packed(), body)

    def broker_says(self, token: bytes, message: protocol.ToHost, body: bytes) -> None:
        """What the broker sends, from the event loop."""
        run = self._by_token.get(token)
        match message:
            case protocol.Run():
                run = self._by_token[token] = HostedRun(self, token, message, body)
                self.runs.append(run)
                self._tasks.append(asyncio.ensure_future(self._played(run)))
                self._changed.set()
            case protocol.Cancel() if run is not None:
                run.cancelled.set()
                if self.confirms:
                    run.ended("cancelled")
            case protocol.Pause() | protocol.Resume() if run is not None:
                run.clock.append(message.t)
            case protocol.Keys():
                self.keys.append(message.prefix)
            case protocol.Granted() | protocol.Demand():
                self.places.append(message)
            case protocol.Reply() if run is not None:
                run.on_reply(message, body)

    async def _played(self, run: HostedRun) -> None:
        if self.leases:
            run.say(protocol.Leased(wall_ms=0))
        await self.play(run)

    async def until_runs(self, count: int) -> None:
        """Waits until so many runs have come in all."""
        async with asyncio.timeout(BOUND):
            while len(self.runs) < count:
                self._changed.clear()
                await self._changed.wait()

    async def close(self) -> None:
        """Ends the plays; raises what went wrong in one."""
        for task in self._tasks:
            task.cancel()
        for result in await asyncio.gather(*self._tasks, return_exceptions=True):
            if isinstance(result, Exception):
                raise result


OBJECT: Final[JsonSchema] = {"type": "object"}


class FakeUpstreams:
    """One server `tools` of async functions, all with one schema; implements `execution.executor.Upstreams`."""

    def __init__(
        self,
        tools: Mapping[str, Tool],
        asking: Mapping[str, AskingTool] | None = None,
        schema: JsonSchema | None = OBJECT,
    ) -> None:
        self.tools = dict(tools)
        self._asking = dict(asking or {})
        entries = tuple(
            ToolEntry(name, name.replace("-", "_"), f"Tool {name}.", None, schema)
            for name in (*self.tools, *self._asking)
        )
        server = ServerEntry("tools", "Tools", "tools", tools=entries)
        self.catalog = Catalog(1, {"tools": server}, {"down": "it does not start"})

    def catalogs_of(self, principal: str) -> tuple[Catalog, Catalog]:
        """What everybody sees."""
        return self.catalog, self.catalog

    def starting(self, principal: str) -> bool:
        """Nothing connects here."""
        return False

    async def refreshed(
        self, used: Collection[str] | None, bound: float, principal: str = ""
    ) -> frozenset[str]:
        """Nothing changes here."""
        return frozenset()

    def caller(self, server: ServerEntry, tool: ToolEntry, origin: CallOrigin) -> Tool:
        """The function itself, whose plain data becomes JSON."""

        async def call(arguments: dict[str, Any]) -> Any:
            asks = self._asking.get(tool.tool_name)
            work = self.tools[tool.tool_name](arguments) if asks is None else asks(arguments, origin)
            result = await work
            is_raw = isinstance(result, ToolResult | ResourceResult)
            return result if is_raw else RawJson(payload.encode(result))

        return call


async def echo(arguments: dict[str, Any]) -> Any:
    """Gives back its input."""
    return arguments


async def hangs(_: dict[str, Any]) -> None:
    """Never answers."""
    await asyncio.Event().wait()


def run_context(
    catalog: Catalog,
    caller: Registry,
    *,
    calls: int = 5,
    max_message_bytes: int = 100_000,
    schemas: ValidatorCache | None = None,
    watch: RunWatch | None = None,
    learner: Learner | None = None,
) -> RunContext:
    """The context of a run of an empty script that may make so many `calls`."""
    code = ""
    return RunContext(
        plan=make_plan(code, catalog, ModuleUrls()),
        limits=Limits(1_000, 1_000, 1 << 20, 1_000, calls),
        catalog=catalog,
        discovery=DiscoveryCache().get_or_make(catalog),
        account=account_of(),
        upstreams=caller,
        schemas=schemas or ValidatorCache(),
        max_message_bytes=max_message_bytes,
        watch=watch or RunEvents().open("tests", code),
        learner=learner or Learner(SchemaSettings(), None),
    )


class NothingRead:
    """Implements `run.flows.run_flow.FlowMemory`: nobody has read anything."""

    async def of(self, reader: str) -> Label:
        return NOTHING

    def rises(self, reader: str, label: Label) -> None:
        pass

    async def read(self, reader: str, label: Label) -> None:
        pass


def make_executor(
    settings: CellblockSettings,
    pool: Pool,
    upstreams: Registry,
    parsers: Parsers,
    events: RunEvents,
    keeper: RunKeeper | None = None,
) -> Executor:
    """One that learns nothing, checks no types and remembers nobody."""
    return Executor(
        settings,
        pool,
        upstreams,
        parsers,
        checker=None,
        learner=Learner(settings.schemas, None),
        outputs=stated_of,
        policy=Policy(settings.policy),
        events=events,
        keeper=keeper,
        reuse=settings.pool.reuse,
        memory=NothingRead(),
    )


class World:
    """Pool, link and executor with scripted hosts.

    Args:
        tools: Of the server `tools`, beside `echo`.
        asking: Those whose server asks during a call.
        keeper: Keeps runs; None: none are kept.
        settings: The `"cellblock"` section of a configuration.
    """

    def __init__(
        self,
        *,
        tools: Mapping[str, Tool] | None = None,
        asking: Mapping[str, AskingTool] | None = None,
        keeper: RunKeeper | None = None,
        **settings: Any,
    ) -> None:
        self.settings = CellblockSettings.model_validate(settings)
        self.failed: list[tuple[bytes, str]] = []
        self.pool = Pool(self.settings.pool, lambda identity, why: self.failed.append((identity, why)))
        self.link = MemoryLink(self.pool, max_message_bytes=self.settings.max_message_bytes)
        self.pool.use(self.link)
        self.upstreams = FakeUpstreams({"echo": echo, **(tools or {})}, asking)
        self.events = RunEvents()
        self.parsers = Parsers(self.settings.pool.queue_wait_ms)
        self.executor = make_executor(
            self.settings, self.pool, self.upstreams, self.parsers, self.events, keeper
        )
        self.hosts: list[ScriptedHost] = []

    async def host(self, play: Play = succeed, *, capacity: int = 4, **options: Any) -> ScriptedHost:
        """A connected host."""
        host = ScriptedHost(self.link, play, **options)
        self.hosts.append(host)
        host.hello(capacity)
        await turns()
        return host

    def lose(self, host: ScriptedHost, why: str = "gone") -> None:
        """The host's process dies."""
        self.link.detach(host.identity)
        self.pool.host_gone(host.identity, why)

    async def run(
        self,
        code: str = "1",
        *,
        grantee: Grantee = EMBEDDING,
        observer: Watcher | None = None,
        journal: RunJournal | None = None,
        **request: Any,
    ) -> RunResponse:
        """One request to its response, within `BOUND`."""
        caller = Caller(grantee=grantee, observer=observer)
        return await within(self.executor.run({"code": code, **request}, caller, journal=journal), BOUND)

    async def played(self, play: Play, code: str = "1", **request: Any) -> RunResponse:
        """The same by a host that comes for it."""
        await self.host(play)
        return await self.run(code, **request)

    def begin(self, code: str = "1", **request: Any) -> asyncio.Task[RunResponse]:
        """The same as a task."""
        return asyncio.ensure_future(self.run(code, **request))

    async def close(self) -> None:
        """Stops everything; nothing may be left over."""
        for host in self.hosts:
            await host.close()
        await within(self.executor.close())
        self.pool.close()
        self.link.close()


MakeWorld = Callable[..., World]
"""Makes worlds for a test, which are closed after it."""


async def turns(count: int = 5) -> None:
    """Lets the loop deliver what is under way; every step of the wire is one turn."""
    for _ in range(count):
        await asyncio.sleep(0)


def codes(response: RunResponse) -> list[str]:
    """The codes of a response's diagnostics."""
    return [diagnostic.code for diagnostic in response.diagnostics]
