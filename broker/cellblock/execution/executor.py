"""Runs requests: checks, plans, waits for a worker, runs, answers. The one way to a worker."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Coroutine, Mapping
from typing import Any, Final, NamedTuple, Protocol

from cellblock.apart.budget import ByteBudget
from cellblock.apart.pool import Apart
from cellblock.apart.share import ALL_BYTES, CLIENT_BYTES, Share
from cellblock.base.errors import HostUnavailable, Overloaded
from cellblock.catalog.discovery import DiscoveryCache
from cellblock.catalog.model import Catalog
from cellblock.catalog.modules import DISCOVERY_SPECIFIER, SERVERS_PREFIX, ModuleUrls
from cellblock.catalog.outputs import OutputLookup, stated_output
from cellblock.config.settings import CellblockSettings
from cellblock.execution.calls import ResultObserver, ToolCaller
from cellblock.execution.events import RunEvents, RunWatch, Watcher
from cellblock.execution.generation import Generation
from cellblock.execution.plan import capability_warnings, make_plan, named_servers, refused_plan
from cellblock.execution.request import RunRequest, read_request
from cellblock.execution.response import NOBODY, Diagnostic, Observer, RunResponse
from cellblock.execution.run import Run
from cellblock.execution.side_checks import SideChecks
from cellblock.execution.type_errors import TypeErrors
from cellblock.policy.asking import EMBEDDING, Grantee
from cellblock.policy.grants import Grants
from cellblock.policy.policy import Policy
from cellblock.policy.rules import RunRules
from cellblock.schemas.cache import ValidatorCache
from cellblock.script.imports import Imports, TooComplex
from cellblock.script.source import encoded, specifiers
from cellblock.script.source_apart import analysed
from cellblock.typecheck.checker import TypeChecker
from cellblock.workers.pool.admission import DEFAULT_CLIENT
from cellblock.workers.pool.pool import Pool

REFRESH_BOUND_SECONDS: Final = 5.0
"""How long a run waits for a tool list that was announced as changed; then it takes the one that is known."""

CLOSE_BOUND_SECONDS: Final = 5.0
"""From aborting the runs to going on with the shutdown; a run's own bound is 4 s."""


class Upstreams(ToolCaller, Protocol):
    """What the executor needs of the upstream registry."""

    @property
    def catalog(self) -> Catalog:
        """The newest snapshot."""
        ...

    @property
    def starting(self) -> bool:
        """Whether a server is in its first attempt to connect."""
        ...

    async def settled(
        self, bound: float, ids: Collection[str] | None = None, *, at_most: float | None = None
    ) -> None:
        """Waits until no server of `ids` is in its first attempt to connect: at most `bound` seconds from the start of
        that attempt, and `at_most` seconds from now."""
        ...

    async def refreshed(self, code: str, bound: float) -> None:
        """Waits, at most `bound` seconds, until announced changes of the tools that a script may use are read."""
        ...


class _Asked(NamedTuple):
    request: RunRequest
    grants: Grants | None
    grantee: Grantee
    observer: Observer
    client: str
    servers: set[str]


class Executor:
    """Shared by all front-ends.

    Args:
        settings: Limits and bounds.
        pool: Gives workers.
        upstreams: Gives the catalog and reaches the tools.
        apart: Reads what is too large for the loop; its owner refuses what waits for it before `close`.
        learner: Shown the results of tool calls.
        outputs: What is known about outputs, for discovery.
        checker: Checks scripts; None where that is switched off.
        policy: Says what clients are granted; None: the one of the settings.
        events: Who watches all runs.
    """

    def __init__(
        self,
        settings: CellblockSettings,
        pool: Pool,
        upstreams: Upstreams,
        apart: Apart,
        *,
        checker: TypeChecker | None = None,
        learner: ResultObserver | None = None,
        outputs: OutputLookup = stated_output,
        policy: Policy | None = None,
        events: RunEvents | None = None,
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._apart = apart
        self._budget = ByteBudget(CLIENT_BYTES, ALL_BYTES, "this client")
        self._upstreams = upstreams
        self._urls = ModuleUrls()
        self._learner = learner
        self._discovery = DiscoveryCache(outputs)
        self._schemas = ValidatorCache()
        self._types = TypeErrors(settings, checker)
        self._sides = SideChecks(checker)
        self._policy = policy or Policy(settings.policy)
        self._events = RunEvents() if events is None else events
        self._live: dict[asyncio.Task[RunResponse], Run] = {}
        self._checker = checker
        self._generation = Generation()
        self._at_work = 0

    @property
    def busy(self) -> bool:
        """Whether a run is at work, from its request to its response."""
        return self._at_work > 0

    def use(self, settings: CellblockSettings, policy: Policy) -> Generation:
        """Takes over other limits, bounds and grants for the runs that come, and gives the generation of those
        before."""
        self._settings = settings
        self._policy = policy
        self._types = TypeErrors(settings, self._checker)
        before, self._generation = self._generation, Generation(self._generation)
        return before

    async def close(self) -> None:
        """Aborts every run and waits for their ends, within `CLOSE_BOUND_SECONDS`; none starts after this."""
        # First: the place of a run that is aborted would go to one that waits.
        self._pool.close()
        for run in self._live.values():
            run.abort()
        if self._live:
            await asyncio.wait(self._live, timeout=CLOSE_BOUND_SECONDS)
        await self._sides.close()

    async def run(
        self,
        raw: Mapping[str, Any],
        *,
        observer: Observer = NOBODY,
        client: str = DEFAULT_CLIENT,
        grantee: Grantee = EMBEDDING,
        watcher: Watcher | None = None,
    ) -> RunResponse:
        """Runs one `codemode.run` request to its one response.

        Args:
            raw: The request (Code Mode specification, section 3.2).
            observer: Told what happens while it happens.
            client: Whose run it is; workers are shared fairly between clients.
            grantee: Which grants it has, and who is asked for approval.
            watcher: Watches this run beside those who watch all.

        Raises:
            InvalidRequest: The request is malformed. Every other failure is a diagnostic in the response.

        When the calling task is cancelled, the run is aborted: calls in flight are cancelled upstream, and its
        worker is killed.
        """
        self._at_work += 1
        try:
            request = read_request(raw, self._settings)
            grants = self._policy.grants_of(grantee.principal, request.grants)
            asked = _Asked(request, grants, grantee, observer, client, set())
            response = await self._told(asked, watcher)
            return response.model_copy(update={"servers": tuple(sorted(asked.servers))})
        finally:
            self._at_work -= 1

    async def _told(self, asked: _Asked, watcher: Watcher | None) -> RunResponse:
        watch = self._events.open(asked.client, asked.request.code, watcher)
        if watch is None:
            return await self._run(asked, None)
        try:
            response = await self._run(asked, watch)
        except BaseException:
            watch.given_up()
            raise
        watch.ended(response)
        return response

    async def _run(self, asked: _Asked, watch: RunWatch | None) -> RunResponse:
        request, client = asked.request, asked.client
        try:
            # Before the work of planning: a refusal must stay cheap when very many come.
            self._pool.check_room(client)
        except Overloaded as error:
            return _refused("OVERLOADED", error.message, error.hint, [*request.warnings])
        share = Share(self._apart, self._budget, client)
        try:
            found = await analysed(encoded(request.code), share, self._pool.room)
        except TooComplex as error:
            return RunResponse(
                logs=[], diagnostics=[*refused_plan(str(error)).errors, *self._warnings(asked)]
            )
        except Overloaded as error:
            return _refused("OVERLOADED", error.message, error.hint, self._warnings(asked))
        except HostUnavailable as error:
            return _refused("WORKER_UNAVAILABLE", error.message, error.hint, self._warnings(asked))
        except OSError as error:
            message = f"No process can be started to read the script ({error})."
            return _refused("WORKER_UNAVAILABLE", message, "Try again in a moment.", self._warnings(asked))
        if self._upstreams.starting:
            await self._used_have_started(request, found)
        await self._upstreams.refreshed(request.code, REFRESH_BOUND_SECONDS)
        # Together, without a pause between: who waits for this generation's runs waits for all with this catalog.
        with self._generation as generation:
            return await self._run_with(self._upstreams.catalog, found, share, generation, asked, watch)

    async def _used_have_started(self, request: RunRequest, found: Imports) -> None:
        """Waits for the servers that a script imports or requests; for all where it computes what it imports. What it
        can only look up is waited for as long as `tools/list` waits."""
        bounds = self._settings.upstream
        startup = bounds.startup_wait_ms / 1000
        imported, computed = specifiers(request.code, found)
        used = {name.removeprefix(SERVERS_PREFIX) for name in (*imported, *request.requested)}
        await self._upstreams.settled(startup, None if computed else used)
        if DISCOVERY_SPECIFIER in used:
            await self._upstreams.settled(startup, at_most=bounds.list_wait_ms / 1000)

    def _warnings(self, asked: _Asked) -> list[Diagnostic]:
        catalog = self._upstreams.catalog
        if asked.grants is not None:
            catalog = asked.grants.narrowed(catalog)
        return [*asked.request.warnings, *capability_warnings(asked.request.requested, catalog)]

    async def _run_with(
        self,
        catalog: Catalog,
        found: Imports,
        share: Share,
        generation: Generation,
        asked: _Asked,
        watch: RunWatch | None,
    ) -> RunResponse:
        request, rules = asked.request, None
        if asked.grants is not None:
            catalog = asked.grants.narrowed(catalog)
            rules = RunRules(asked.grants, self._policy.settings, asked.grantee.approver)
        warnings = self._warnings(asked)
        conventions = not self._settings.frontend.strict
        plan = make_plan(request.code, catalog, self._urls, found, conventions=conventions)
        asked.servers.update(named_servers(plan.script, request.requested, catalog))
        if plan.errors:
            return RunResponse(logs=[], diagnostics=[*plan.errors, *warnings])
        if len(plan.body) > (most := self._settings.max_message_bytes):
            # ZeroMQ would cut the host off, and with it every other run that it has.
            message = f"The script and the modules it imports take {len(plan.body)} bytes, over {most}."
            return _refused("SCRIPT_TOO_LARGE", message, "Import fewer servers, each by its name.", warnings)
        typecheck, side = self._types.mode(request), self._sides.of(plan, catalog, asked.client)
        if typecheck == "before":
            errors, notices = await self._types.before(side)
            warnings += notices
            if errors:
                return RunResponse(logs=[], diagnostics=[*errors, *warnings])
        run = Run(
            plan,
            request.limits,
            catalog,
            self._upstreams,
            concurrent_calls=self._settings.upstream.max_concurrent_calls,
            max_message_bytes=self._settings.max_message_bytes,
            discovery=self._discovery.of(catalog),
            schemas=self._schemas,
            learner=self._learner,
            observer=asked.observer,
            rules=rules,
            share=share,
            watch=watch,
            answers=side.answers,
        )
        if watch is not None:
            watch.queued()
        queued_at = time.monotonic()
        try:
            lease = await self._pool.acquire(run, asked.client)
        except Overloaded as error:
            return _refused("OVERLOADED", error.message, error.hint, warnings)
        except HostUnavailable as error:
            return _refused("WORKER_UNAVAILABLE", error.message, error.hint, warnings)
        if watch is not None:
            watch.leased()
        queue_ms = int((time.monotonic() - queued_at) * 1000)
        # Here, and not in the task that waits for its end: that would be one turn of the loop later.
        run.begin(lease)
        if typecheck != "off":
            self._types.beside(side)
        response = await self._watched(run, generation, run.outcome(queue_ms), watch)
        if typecheck != "off":
            response = await self._types.after(response, request, side)
        if warnings:
            response = response.model_copy(update={"diagnostics": [*response.diagnostics, *warnings]})
        return response

    async def _watched(
        self,
        run: Run,
        generation: Generation,
        work: Coroutine[Any, Any, RunResponse],
        watch: RunWatch | None,
    ) -> RunResponse:
        # A task of its own: a cancelled caller must not cut the clean-up short.
        task = asyncio.create_task(generation.holding(work), name="run")
        self._live[task] = run
        task.add_done_callback(lambda done: self._live.pop(done, None))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            if watch is not None:
                watch.ends_with(task)
            run.abort()
            raise


def _refused(code: str, message: str, hint: str, warnings: list[Diagnostic]) -> RunResponse:
    refusal = Diagnostic(
        severity="error", code=code, message=f"{message} The script was not started.", hint=hint
    )
    return RunResponse(logs=[], diagnostics=[refusal, *warnings])
