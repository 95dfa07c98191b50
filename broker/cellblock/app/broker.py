"""The broker is what programs embed, and what every front-end is given."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Collection, Mapping, Sequence
from functools import cached_property, partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from cellblock.app.assembly import (
    BrokerState,
    Reach,
    StateDir,
    catalog_before_start,
    check_room,
    library_of,
    policy_of,
    start_executor,
    start_reach,
    store_of,
    tools_of,
    unavailable,
)
from cellblock.app.config.load import applicable, described, keeping, load_settings
from cellblock.base.admission import DEFAULT_CLIENT
from cellblock.base.callbacks import Listeners
from cellblock.base.errors import CellblockError, ConfigError, HostUnavailable
from cellblock.base.internal import internal
from cellblock.base.json import is_object
from cellblock.base.redaction import MAX_FORMS, SecretForms
from cellblock.base.settings.settings import Settings, TypecheckMode
from cellblock.base.tasks import TaskSet
from cellblock.run.events import RunEvents, Watcher
from cellblock.run.flows.rules import OnAlways
from cellblock.run.policy.asking import EMBEDDER, Caller, Grantee
from cellblock.run.policy.counts import Counts
from cellblock.run.policy.named_tokens import NamedTokens
from cellblock.run.policy.policy import Policy, idle_patterns
from cellblock.run.request import request_of
from cellblock.run.response import RunResponse
from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry, ToolOutput, stated_output

if TYPE_CHECKING:
    from cellblock.base.questions import Answer, QuestionId, Reply
    from cellblock.fleet.presence import Presence
    from cellblock.observe.collector import MetricsCollector
    from cellblock.observe.facts import BrokerFacts
    from cellblock.observe.metrics import Tally
    from cellblock.record.journal import Journal
    from cellblock.record.kept import Keeper
    from cellblock.record.parked_runs import ParkedRuns
    from cellblock.record.recording import Recording
    from cellblock.record.views import ParkedRun
    from cellblock.run.executor import Executor
    from cellblock.serve.agent_tool import AgentTool, Api, ToolAnswer
    from cellblock.tools.upstream.registry import Registry
    from cellblock.types.learning.outputs import KnownOutputs
    from cellblock_worker.wire import protocol

logger = logging.getLogger("cellblock")


T = TypeVar("T")

LEARN_BOUND_SECONDS: Final = 5.0
"""Bounds the wait for the store of observed schemas; it opens in milliseconds."""

HOST_START_BOUND_SECONDS: Final = 15.0
"""Bounds the wait for the worker host's greeting before the embedding API goes on without it; it takes about 0.3 s."""


class Broker:
    """Runs scripts against MCP servers and Python tools; an async context manager, of one event loop and thread.

    Its coroutines and `reconfigure` raise CellblockError at once when they are called from another event loop.

    Args:
        settings: A whole configuration.
        tools: Python functions that scripts can call as `@codemode/servers/local`.
        state_dir: Where it keeps what it learns: a folder, or `user` for the one that the command line and daemons use.
            None: the configuration's, else a private one that is removed at the end.

    Raises:
        ConfigError: The configuration wants something that must outlive private state.

    Example:
        >>> async with Broker.from_config("cellblock.json", tools=[add]) as broker:  # doctest: +SKIP
        ...     response = await broker.run("globalThis.__codemode_result__ = 1 + 1")
        ...     assert response.result == 2
    """

    _tally: Tally | None = None

    def __init__(
        self,
        settings: Settings,
        *,
        tools: Sequence[Callable[..., Any]] = (),
        state_dir: StateDir = None,
    ) -> None:
        self._state = BrokerState(state_dir)
        settings = self._state.named_in(settings)
        self._settings: Settings = settings
        self._tools = tools_of(settings.cellblock.tools, tools)
        self.store = store_of(settings)
        self.login_pages: str | None = None
        self.tokens = NamedTokens(self.store)
        self.counts = Counts(self.store)
        self.on_always: OnAlways | None = None
        """Writes a rule of flows into the configuration file; None where there is none."""
        self._later_secrets = SecretForms(MAX_FORMS)
        self.policy = self._policy_of(settings)
        self._stack = contextlib.AsyncExitStack()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reach: Reach | None = None
        self._executor: Executor | None = None
        self._parked: ParkedRuns | None = None
        self._outputs: KnownOutputs | None = None
        """Knows also of a broker that has ended what was learnt."""
        self._releases = TaskSet()
        self._changed = Listeners()
        self._slips = set[str]()
        self._changed.add(self._log_slips)
        self._before_start = catalog_before_start(settings.enabled, local=bool(self._tools))
        self.events: Final = RunEvents()
        """Tells watchers of all runs while they run; add one to see them."""

    async def __aenter__(self) -> Self:
        """Starts the worker host and begins to connect to every server.

        Raises:
            HostUnavailable: The worker host refuses to serve, or the machine has no file descriptor or disk space left.
            ConfigError: The state directory cannot be used, or two tools share a name.
            CellblockError: It runs already. Once it has ended, it can be entered again.
        """
        await self._begin()
        try:
            async with asyncio.timeout(HOST_START_BOUND_SECONDS):
                await self.host_started()
        except TimeoutError:
            # A busy machine: runs wait for it within their own bound.
            logger.warning("the worker host has not started within %g s", HOST_START_BOUND_SECONDS)
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    @contextlib.asynccontextmanager
    @internal
    async def begun(self) -> AsyncGenerator[None]:
        """Runs the broker inside the block, as `async with` of itself, but its entry waits for no other process."""
        await self._begin()
        try:
            yield
        finally:
            await self._stack.aclose()

    async def _begin(self) -> None:
        if self._loop is not None:
            raise CellblockError("This broker is running already.", hint="Make a second Broker.")
        try:
            self._loop = asyncio.get_running_loop()
        except RuntimeError:
            raise CellblockError(
                "A broker needs a running event loop of asyncio, and trio's is none.",
                hint="Run it with asyncio.run, in a thread of its own.",
            ) from None
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._forget)
            try:
                check_room()
                self._state.make(self._settings.state_dir, stack)
                await self._start(stack)
            except OSError as error:
                raise unavailable(error) from None
            self._stack = stack.pop_all()

    @internal
    async def host_started(self) -> None:
        """Waits for the local worker host, where there is one.

        Raises:
            HostUnavailable: It refuses to serve.
        """
        if self._reach is not None:
            await asyncio.shield(self._reach.workers.ready)

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stops everything, within bounds: runs end, sessions close, workers and hosts are killed.

        Raises:
            CellblockError: It was entered in another event loop, where it goes on running.
        """
        self._check_loop()
        await self._stack.aclose()

    @classmethod
    def from_config(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        tools: Sequence[Callable[..., Any]] = (),
        state_dir: StateDir = None,
    ) -> Broker:
        """Makes a broker from a configuration file (None: the defaults, no servers); the rest is as for `Broker`.

        Raises:
            ConfigError: The file cannot be read or used.
        """
        settings = load_settings(path)
        for warning in settings.warnings:
            logger.warning("%s", warning)
        return cls(settings, tools=tools, state_dir=state_dir)

    async def run(
        self,
        code: str,
        *,
        limits: Mapping[str, Any] | None = None,
        requested_capabilities: Sequence[str] | None = None,
        typecheck: TypecheckMode | None = None,
        reuse: bool | None = None,
        durable: bool | None = None,
        plan: bool | None = None,
        observer: Watcher | None = None,
        client: str = DEFAULT_CLIENT,
        grants: Mapping[str, Any] | None = None,
        grantee: Grantee | None = None,
    ) -> RunResponse:
        """Runs one script. From another thread: `asyncio.run_coroutine_threadsafe(broker.run(…), loop)`.

        Args:
            code: JavaScript or TypeScript, an ES module.
            limits: `timeoutMs`, `maxMemoryBytes`, `maxLogBytes`, `maxToolCalls`, `maxCpuMs`; others are ignored.
            requested_capabilities: Server ids that the script will want: at most 200, of at most 200 characters.
            typecheck: When the script is type-checked; None: as configured.
            reuse: False for a process of its own; None: as configured (`pool.reuse`).
            durable: True: the run is written down as it goes, survives the loss of its process, and waits for a person
                whom `grantee` cannot ask: `response.parked` is true then, and `resume` has the answer.
            plan: True: the run stops before each call that is not known to be read-only, until it is allowed.
            observer: Watches this run alone, beside those of `events`: an `Observer`, or any `Watcher`.
            client: Whose run it is. Clients share the workers fairly; runs without a name are one client's. One that
                `cellblock.policy` has under this name, such as `team:readers`, has that grant, others `embedding`'s.
            grants: What this script may call, of what `grantee` is granted (see docs/howto-policy.md).
            grantee: Which grants of `cellblock.policy` it has otherwise, and who is asked for approval.

        Raises:
            InvalidRequest: The request is malformed. A script that fails does not raise: see `diagnostics`.
            HostUnavailable: The broker is not running.
            CellblockError: It runs in another event loop.
        """
        request = request_of(
            code,
            limits=limits,
            requestedCapabilities=requested_capabilities,
            typecheck=typecheck,
            reuse=reuse,
            durable=durable,
            plan=plan,
            grants=grants,
        )
        return (await self.run_request(request, self._caller_of(client, grantee, observer))).decoded()

    async def save(
        self,
        run_id: str,
        name: str,
        *,
        parameters: Mapping[str, Any] | None = None,
        description: str = "",
        replace: bool = False,
    ) -> str:
        """Keeps the script of a kept run in `scripts.dir`, as `cellblock save` does: it runs when a person has approved
        it. Returns the digest of the version.

        Args:
            run_id: The run: `usage.run_id` of its response.
            name: What scripts import it as.
            parameters: Literals of the script that become its input, by name.
            description: Says what it does; empty: its first comment does.
            replace: Whether it may take the place of another script's file.

        Raises:
            CellblockError: It cannot be kept.
            HostUnavailable: The broker is not running.
        """
        recording = await self.keeper.recording(run_id)
        if recording is None:
            raise ConfigError(
                f"Run {run_id} is not kept with a recording.", hint="`journal` says which runs are."
            )
        return await self._saved(
            recording, name, parameters=parameters, description=description, replace=replace
        )

    async def parked(self, client: str | None = None) -> list[ParkedRun]:
        """Returns the runs that wait for a person, the newest first.

        Args:
            client: As for `run`; None: of everybody.

        Raises:
            HostUnavailable: The broker is not running.
            CellblockError: They cannot be read.
        """
        self._check_loop()
        return await self.parked_runs.listed(self._principal_of(client))

    async def resume(
        self,
        run_id: str,
        answer: Answer | Mapping[QuestionId, Answer | Reply] | Mapping[int, Answer | Reply],
        *,
        client: str | None = None,
    ) -> RunResponse:
        """Answers the questions of a parked run, and gives its response when it has gone on.

        Args:
            run_id: The run: `usage.run_id` of its response, or `id` of `parked`.
            answer: `accepted`, `declined` or `cancelled`, for all that waits, or by the ids of the questions (an int is
                the number of a call that waits to be allowed); `always` is `accepted`, and has the rule of a question
                about a flow written; for a server also a whole result of MCP, such as
                `{"action": "accept", "content": {…}}`.
            client: As for `run`; None: whoever's it is.

        Returns:
            Its response; `parked` says whether it waits again, or still.

        Raises:
            InvalidRequest: No such run waits, or an answer does not fit its question.
            HostUnavailable: The broker is not running.
            CellblockError: It cannot be read.
        """
        self._check_loop()
        return await self.parked_runs.resume(run_id, answer, self._principal_of(client))

    async def tool_definition(
        self, api: Api, *, client: str = DEFAULT_CLIENT, budget: int | None = None, chars: int | None = None
    ) -> dict[str, Any]:
        """Describes the tool `codemode_run` for a model, once the servers have had their time to connect.

        Args:
            api: `mcp`, `openai` (Responses API) or `anthropic` (Messages API).
            client: For whom: the description names what that client is granted.
            budget: Characters for TypeScript declarations; None: `frontend.declaration_chars`. With 0 it names the
                functions alone; give `declarations` elsewhere then, such as in the system prompt.
            chars: Characters of the whole description, for an API that takes no more, such as 1,024; None: any.

        Raises:
            InvalidRequest: There is no such API.
        """
        self._check_loop()
        return await self._for_agents.definition(api, client, budget, chars)

    async def declarations(
        self,
        *,
        servers: Sequence[str] | None = None,
        budget: int | None = None,
        client: str = DEFAULT_CLIENT,
    ) -> str:
        """Declares in TypeScript what scripts can call, once the servers have had their time to connect.

        Args:
            servers: Names of the only servers to declare; None: all.
            budget: Characters; None: `frontend.declaration_chars`. Functions that have no room are named.
            client: For whom: only what that client is granted.

        Raises:
            InvalidRequest: The tools of a server that is named are not known.
        """
        self._check_loop()
        return await self._for_agents.declarations(client, servers, budget)

    async def handle_tool_call(
        self,
        name: str,
        arguments: Mapping[str, Any] | str | None,
        *,
        observer: Watcher | None = None,
        client: str = DEFAULT_CLIENT,
        grantee: Grantee | None = None,
    ) -> ToolAnswer:
        """Runs the script of a model's call of the tool; a call that is malformed is an answer, too. The first script
        that names a server whose declarations this client was not given brings them in its answer.

        Args:
            name: Of the tool that the model calls.
            arguments: As the model gives them: an object, or its JSON.
            observer: As for `run`.
            client: As for `run`.
            grantee: As for `run`.

        Raises:
            InvalidRequest: The tool is not Cellblock's.
            HostUnavailable: The broker is not running.
            CellblockError: It runs in another event loop.
        """
        self._check_loop()
        caller = self._caller_of(client, grantee, observer)
        return await self._for_agents.answer(name, arguments, caller)

    @internal
    def allow_always(self, rule: dict[str, Any]) -> None:
        """Has a rule of flows that a person wants always written down, beside the loop."""
        if self.on_always is not None:
            self._releases.start(asyncio.to_thread(self.on_always, rule), name="always")

    def _policy_of(self, settings: Settings) -> Policy:
        return policy_of(settings, self.tokens, self.counts, self.allow_always, self._later_secrets)

    @property
    def settings(self) -> Settings:
        """Gives the configuration in force."""
        return self._settings

    def reconfigure(self, settings: Settings) -> list[str]:
        """Takes over a changed configuration. Runs in flight keep their limits, and the sessions they began with.

        Returns:
            What has changed, a sentence each; settings that need a restart are named there, and keep their old values.

        Raises:
            ConfigError: The servers cannot be used together, or the policy not with them; nothing has changed then.
            HostUnavailable: The broker is not running.
            CellblockError: It runs in another event loop.
        """
        executor, registry = _running(self._executor), self.registry
        self._check_loop()
        settings, kept = keeping(self._settings, self._state.named_in(settings))
        settings, live, waiting = applicable(self._settings, settings)
        # Before anything changes: both can refuse.
        policy = self._policy_of(settings)
        change = registry.reconfigure(settings.servers, settings.cellblock.pins)
        self._settings, self.policy = settings, policy
        generation = executor.use(settings.cellblock, policy)
        self.keeper.use(settings.cellblock.journal)
        self._changed.tell()
        if change.retired:
            self._releases.start(registry.release(change.retired, generation.ended))
        return [*kept, *described(change, live, waiting)]

    def restart_server(self, name: str) -> bool:
        """Begins to end an upstream server and to start it again, whatever it does; calls that wait for it fail.

        Returns:
            Whether there is a server of this name in the configuration, which is not disabled.
        """
        self._check_loop()
        work = self._reach.registry.restart(name) if self._reach else None
        if work is None:
            return False
        self._releases.start(work)
        return True

    @property
    def catalog(self) -> Catalog:
        """Says what is known about the servers and tools now, for the user of this machine."""
        return self.catalogs_of("")[0]

    @property
    def known_catalog(self) -> Catalog:
        """Gives the catalog that all share, with servers that are out of reach at the moment, as they last were."""
        return self._reach.registry.known_catalog if self._reach else self._before_start

    @internal
    def catalogs_of(self, principal: str) -> tuple[Catalog, Catalog]:
        """Gives what a principal may know of the servers and tools, and that with servers as they last were."""
        before = self._before_start
        return self._reach.registry.catalogs_of(principal) if self._reach else (before, before)

    @property
    def running(self) -> int:
        """Returns scripts that run, or wait for their turn."""
        pool = None if self._reach is None else self._reach.workers.pool
        return 0 if pool is None else pool.running + pool.queued

    @property
    def warm_workers(self) -> int:
        """Returns workers that are booted and wait."""
        return self._reach.workers.pool.warm if self._reach else 0

    def metrics_collector(self) -> MetricsCollector:
        """Gives a collector for a Prometheus registry of the program's own; runs are counted from the first call on."""
        from cellblock.observe.collector import MetricsCollector
        from cellblock.observe.metrics import Tally

        if self._tally is None:
            self._tally = Tally()
            self.events.add(self._tally)
        return MetricsCollector(self._tally, self._running)

    @property
    def host_pid(self) -> int | None:
        """Returns the process id of the local worker host."""
        return self._reach.workers.host.pid if self._reach and self._reach.workers.host else None

    def watch_catalog(self, listener: Callable[[], object]) -> Callable[[], None]:
        """Has `listener` called, on the loop, when catalog, settings or policy change; the function that is returned
        ends that."""
        return self._changed.add(listener)

    def output_of(self, server: ServerEntry, tool: ToolEntry, principal: str = "") -> ToolOutput | None:
        """Says what is known now of a tool's output: given, declared or observed; None when nothing is.

        An `OutputLookup`. Names that one principal alone has got are told to that one; without a principal, what the
        user of this machine has got.
        """
        return (
            stated_output(server, tool) if self._outputs is None else self._outputs(server, tool, principal)
        )

    async def learnt(self, bound: float = LEARN_BOUND_SECONDS) -> None:
        """Waits until all results so far are looked at and remembered, at most `bound` seconds."""
        self._check_loop()
        if self._reach is not None:
            await self._reach.learner.wait_for_writes(bound)

    async def settled(self, names: Collection[str] | None = None, *, at_most: float | None = None) -> None:
        """Waits until every server's first attempt to connect is over, within 45 seconds of the start.

        Args:
            names: Of the only servers to wait for; None: all.
            at_most: Seconds from now.
        """
        self._check_loop()
        if self._reach is not None:
            await self._reach.learner.loaded(LEARN_BOUND_SECONDS)
            await self._reach.registry.settled(names, at_most=at_most)

    @internal
    async def approved(self) -> None:
        """Takes over what was approved since the last run."""
        if self._reach is not None:
            await self._reach.registry.approved(self._reach.registry.sessions)

    async def installed(
        self, tell: Callable[[str], object], code: str | Collection[str] | None = None
    ) -> None:
        """Waits until every server's first attempt to connect is over, and what programs such as `npx` install in it.

        Args:
            tell: Told, now and then, a sentence of each that is being installed.
            code: A script, which names the only servers to wait for, or their ids; None: all.
        """
        self._check_loop()
        if self._reach is not None:
            await self._reach.learner.loaded(LEARN_BOUND_SECONDS)
            await self._reach.registry.installed(tell, code)

    @internal
    async def about_to_answer(self, principal: str = "") -> None:
        """Waits, at most `upstream.list_wait_ms`, for servers of a principal's in their first attempt to connect, and
        for what was learnt earlier."""
        if self._reach is None:
            return
        await self._reach.learner.loaded(LEARN_BOUND_SECONDS)
        if self._reach.registry.starting(principal):
            await self._reach.registry.settled(
                principal=principal, at_most=self._settings.cellblock.upstream.list_wait_ms / 1000
            )

    @internal
    async def run_request(
        self,
        request: Mapping[str, Any],
        caller: Caller = EMBEDDER,
        *,
        journal: Journal | None = None,
        run_id: str = "",
        script_name: str = "",
    ) -> RunResponse:
        """Runs a `codemode.run` request as it came (Code Mode specification, section 3.2). Raises as `run`.

        A large result is a `RawJson`, to be passed on. `journal` records the run or goes on with another, whose request
        is given then (`journal.request`), `run_id` names a new run, and `script_name` names the script in the places
        that are told.
        """
        executor = _running(self._executor)
        self._check_loop()
        if journal is None and is_object(request) and request.get("propose") is not None:
            from cellblock.record.scripts.saving import proposed

            return await proposed(
                request,
                caller,
                self._settings.cellblock.scripts.propose,
                partial(executor.run, run_id=run_id),
                partial(self._saved, proposed=True),
            )
        return await executor.run(request, caller, journal=journal, run_id=run_id, script_name=script_name)

    @internal
    async def call_tool(
        self,
        server: ServerEntry,
        tool: ToolEntry,
        arguments: Any,
        caller: Caller,
        used: Counter[tuple[int, str]],
    ) -> Any:
        """Makes one tool call for a client, as `Executor.call` does. Raises HostUnavailable: The broker is not
        running."""
        return await _running(self._executor).call(server, tool, arguments, caller, used)

    @property
    @internal
    def registry(self) -> Registry:
        """Gives the sessions with servers. Raises HostUnavailable: The broker is not running."""
        return _running(self._reach).registry

    @property
    @internal
    def keeper(self) -> Keeper:
        """Gives the keeper of runs that are written down. Raises HostUnavailable: The broker is not running."""
        return _running(self._reach).keeper

    @property
    @internal
    def parked_runs(self) -> ParkedRuns:
        """Gives the parked runs. Raises HostUnavailable: The broker is not running."""
        return _running(self._parked)

    @internal
    def facts(self) -> BrokerFacts:
        """Returns the state of pool, servers and knowledge, to be asked for plain data. Raises HostUnavailable."""
        reach = _running(self._reach)
        from cellblock.observe.facts import BrokerFacts

        return BrokerFacts(
            self._settings.cellblock, reach.workers.pool, reach.registry, reach.outputs, self.store
        )

    @property
    @internal
    def presence(self) -> Presence | None:
        """Tells of the other brokers that share a PostgreSQL; None while it does not run, or shares none."""
        return None if self._reach is None else self._reach.presence

    @property
    @internal
    def hosts(self) -> list[protocol.Hello]:
        """Gives what the connected worker hosts said of themselves."""
        return [] if self._reach is None else self._reach.workers.pool.hosts

    @property
    @internal
    def is_warm(self) -> bool:
        """Says whether a connected host has a worker that waits, or keeps none."""
        return self._reach is not None and self._reach.workers.pool.is_warm

    @property
    @internal
    def hosts_endpoint(self) -> str | None:
        """Says where worker hosts on other machines connect, or None."""
        return self._reach.workers.remote.endpoint if self._reach and self._reach.workers.remote else None

    @internal
    def observed_of(self, server: ServerEntry, tool: ToolEntry, principal: str = "") -> ToolOutput | None:
        """Says what has been observed of a tool's output, whatever is given or declared; an `OutputLookup` too."""
        return None if self._outputs is None else self._outputs.observed(server, tool, principal)

    @internal
    async def wait_until_learnt(self, bound: float = LEARN_BOUND_SECONDS) -> None:
        """Waits until all results so far are looked at, at most `bound` seconds."""
        self._check_loop()
        if self._reach is not None:
            await self._reach.learner.wait_until_learnt(bound)

    # ---- inside ------------------------------------------------------------------------------------------

    def _check_loop(self) -> None:
        """Raises CellblockError in another event loop, or in none, while the broker runs: its sockets and futures would
        wait there for ever."""
        if self._loop is None:
            return
        try:
            here = asyncio.get_running_loop()
        except RuntimeError:
            here = None
        if here is not self._loop:
            raise CellblockError(
                "This broker runs in another event loop.",
                hint="Use asyncio.run_coroutine_threadsafe(broker.run(…), loop).",
            )

    async def _saved(self, recording: Recording, name: str, **told: Any) -> str:
        from cellblock.record.scripts.saving import save

        library = library_of(self._settings, self.store)
        return (
            await asyncio.to_thread(save, library, self._settings, self.catalog, recording, name, **told)
        ).digest

    def _log_slips(self) -> None:
        """Logs once what the policy names and a connected server does not have."""
        for fault in idle_patterns(self._settings.cellblock.policy, self.known_catalog):
            if fault.slip_at and fault.sentence not in self._slips:
                self._slips.add(fault.sentence)
                logger.warning("%s", fault.sentence)

    def _forget(self) -> None:
        """Lets go of the parts of a broker that has ended, which is then not taken for running; what it has learnt of
        outputs can still be asked."""
        self._reach = self._parked = self._loop = None

    async def _start(self, stack: contextlib.AsyncExitStack) -> None:
        reach = await start_reach(
            self._settings,
            self.store,
            self._tools,
            self.events,
            self._changed.tell,
            stack,
            self.login_pages,
            self._later_secrets,
        )
        self.counts.start()
        stack.push_async_callback(self.counts.close)
        self._reach, self._outputs = reach, reach.outputs
        self._changed.tell()
        executor = self._executor = await start_executor(
            self._settings, reach, self.policy, self.events, stack, self.store
        )
        from cellblock.record.parked_runs import ParkedRuns
        from cellblock.record.scripts.library import Approvals, serve_scripts

        await serve_scripts(
            Approvals(self.store),
            reach.registry,
            executor.run,
            lambda: executor.places,
            stack,
        )
        parked = self._parked = ParkedRuns(
            reach.journals, reach.keeper, reach.owner, executor, reach.registry
        )
        stack.push_async_callback(parked.going_on.close)
        stack.push_async_callback(self._stop_executor, executor)
        parked.going_on.start()
        stack.callback(self._changed.add(parked.going_on.try_again))
        stack.push_async_callback(parked.going_on.stop_looking)
        # The registry closes what they would have closed.
        stack.callback(self._releases.cancel)

    async def _stop_executor(self, executor: Executor) -> None:
        self._executor = None
        await executor.close()

    def _running(self) -> tuple[asyncio.AbstractEventLoop, BrokerFacts] | None:
        # Asked from any thread: each part is looked at once.
        loop = self._loop
        try:
            return None if loop is None else (loop, self.facts())
        except HostUnavailable:
            return None

    def _principal_of(self, client: str | None) -> str | None:
        return None if client is None else self.policy.principal_of(client)

    @cached_property
    def _for_agents(self) -> AgentTool:
        # Not at the top: a daemon's clients are greeted without it.
        from cellblock.serve.agent_tool import AgentTool

        return AgentTool(self)

    def _caller_of(self, client: str, grantee: Grantee | None, observer: Watcher | None) -> Caller:
        return Caller(client, grantee or Grantee(self.policy.principal_of(client)), observer)


def _running(part: T | None) -> T:
    if part is None:
        raise HostUnavailable("The broker is not running.", hint="Use it inside `async with`.")
    return part
