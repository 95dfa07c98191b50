"""Runs requests: checks, plans, waits for a worker, runs, answers. The one way to a worker."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections import Counter
from collections.abc import Callable, Collection, Coroutine, Mapping
from contextlib import AsyncExitStack
from dataclasses import asdict, dataclass, replace
from functools import partial
from typing import Any, Final

from cellblock.base.budget import ALL_BYTES, CLIENT_BYTES, Account, Budget
from cellblock.base.errors import HostUnavailable, Overloaded
from cellblock.base.kept import Newest
from cellblock.base.platforms import installed
from cellblock.base.settings.policy import Grant, Reuse
from cellblock.base.settings.sections import value_for
from cellblock.base.settings.settings import RunSettings
from cellblock.pool.pool import Lease, Pool
from cellblock.run.answers import Answers
from cellblock.run.call_inputs import CallInputs
from cellblock.run.calls import OuterCall
from cellblock.run.children import Callers
from cellblock.run.context import Generation, RunContext
from cellblock.run.direct import call_directly, learn
from cellblock.run.events import RunEvents, RunWatch
from cellblock.run.flows.labels import NOTHING, Label
from cellblock.run.flows.run_flow import FlowMemory, RunFlow
from cellblock.run.hook import KeptRun, RecordedCall, RunJournal, RunKeeper
from cellblock.run.outcome import run_losses
from cellblock.run.plan import (
    Plan,
    calls_scripts,
    capability_warnings,
    make_plan,
    named_servers,
    recorded_plan,
)
from cellblock.run.policy.asking import COMMAND_LINE, EMBEDDER, Caller, EarlierQuestions
from cellblock.run.policy.grants import UNRESTRICTED, Grants
from cellblock.run.policy.policy import Policy
from cellblock.run.policy.rules import RunRules
from cellblock.run.request import RunRequest, read_request
from cellblock.run.response import Diagnostic, RunResponse, error_diagnostic
from cellblock.run.run import Run
from cellblock.run.side_checks import SideCheck, SideChecks
from cellblock.run.type_errors import TypeErrors
from cellblock.script.imports import Imports, TooComplex
from cellblock.script.lines import SCRIPT_NAME, is_plain_name
from cellblock.script.parsing import Parsers
from cellblock.script.source import encoded
from cellblock.tools.catalog.model import Catalog, OutputsOf, ServerEntry, ToolEntry
from cellblock.tools.catalog.modules import DISCOVERY_SPECIFIER, SERVERS_PREFIX, ModuleUrls
from cellblock.tools.schemas.example import ValidatorCache
from cellblock.tools.upstream.registry import Registry
from cellblock.tools.upstream.requester import CallOrigin
from cellblock.types.check.checker import TypeChecker
from cellblock.types.discovery import DiscoveryCache
from cellblock.types.learning.learner import Learner

KEPT_KEYS: Final = 1024
"""Bounds the keys that are known; who comes back after it gets another one, and with it another process."""

NOBODY_IN_PARTICULAR: Final = frozenset({"embedding", "anybody"})
"""Names principals that may be several: of those, only the runs of one client have one process."""


SESSION_CLIENT: Final = "http session "
"""Begins the name of a client that is known by a session alone (`serve/http/sessions.py`)."""


class ReuseKeys:
    """Gives the keys by which runs may have one process. What a key stands for is held, so that it can never stand for
    something else.

    Args:
        on_renewed: Told how all keys begin from now on, where others were given.
    """

    def __init__(self, on_renewed: Callable[[str], None] = lambda _: None) -> None:
        self._keys = Newest[tuple[str, str, int, int, int, str], tuple[str, Any]](KEPT_KEYS)
        self._on_renewed = on_renewed
        self._prefix = secrets.token_hex(8)
        self._latest = (0, 0)

    def renew(self) -> None:
        """Forgets all keys: no run will have one of them."""
        if self._keys:
            self._keys.clear()
            self._prefix = secrets.token_hex(8)
            self._on_renewed(self._prefix)

    def key(
        self,
        principal: str,
        client: str,
        grants: Grants | None,
        catalog: Catalog,
        generation: int,
        label: str = "",
    ) -> str:
        """Gives the key of a run: it tells nothing, and nobody can guess it. The catalog is the newest, or a part of
        it; the label is of what the run knows at its start."""
        latest = (generation, catalog.version)
        if latest != self._latest:
            self._latest = latest
            self.renew()
        name = client if principal in NOBODY_IN_PARTICULAR else ""
        about = (principal, name, id(grants), id(catalog), generation, label)
        held = self._keys.get(about) or (self._prefix + secrets.token_hex(16), (grants, catalog))
        self._keys[about] = held
        return held[0]


def is_reused(principal: str, client: str, reuse: Mapping[str, Reuse]) -> bool:
    """Says whether a principal's runs may have one process, by what is set for all and for it.

    Without a session nobody in particular is known by an address, which may be a proxy's: there they may not.
    """
    if principal == "anybody" and not client.startswith(SESSION_CLIENT):
        return False
    return value_for(principal, reuse) == "principal"


WAIT_SHARE: Final = 0.8
"""Bounds the wait for servers that start, in parts of a run's time: where that counts from here, the script has the
rest."""

REFRESH_BOUND_SECONDS: Final = 5.0
"""Bounds how long a run waits for a tool list that was announced as changed, of servers that it imports; then it
fails."""

_CHANGING: Final = (
    f"the server has announced other tools, and has not listed them within {REFRESH_BOUND_SECONDS:g} s"
)

MAX_LOST: Final = 2
"""Bounds how often a run goes on whose process was lost: it may be what kills it."""

CLOSE_BOUND_SECONDS: Final = 5.0
"""Bounds the time from aborting the runs to going on with the shutdown; a run's own bound is 4 s."""

PARK_BOUND_SECONDS: Final = 8.0
"""Bounds the wait for runs that are being parked: a write has 5 s, and the end of a worker 2 s."""


class _Refused(Exception):
    """Ends a run whose script has not been started; `diagnostics` say why."""

    def __init__(self, *diagnostics: Diagnostic) -> None:
        self.diagnostics = diagnostics


NOT_STARTED: Final = (_Refused, TooComplex, Overloaded, HostUnavailable)
"""Lists the errors that mean that the script has certainly not been started."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Job:
    """Holds one request: what was asked for by whom. A run whose process is lost is attempted again with the same."""

    request: RunRequest
    raw: Mapping[str, Any]
    caller: Caller
    grants: Grants | None
    watch: RunWatch
    kept: KeptRun | None
    given: RunJournal | None
    script_name: str
    label: Label | None
    outer: OuterCall | None = None

    @property
    def journal(self) -> RunJournal | None:
        """The journal of the attempt that is under way: each has one of its own."""
        return self.given if self.kept is None else self.kept.journal

    @property
    def goes_on(self) -> bool:
        """Whether the script replays, or has begun in another process."""
        return self.journal is not None and self.journal.past is not None

    @property
    def earlier(self) -> EarlierQuestions | None:
        return None if self.kept is None else self.kept.earlier

    def seen(self, catalog: Catalog) -> Catalog:
        """Gives what the run may see of a snapshot."""
        if self.journal is not None:
            catalog = self.journal.catalog(catalog)
        return catalog if self.grants is None else self.grants.narrowed(catalog)


class Executor:
    """Runs the requests of all front-ends.

    Args:
        settings: Limits and bounds of runs.
        pool: Gives workers.
        upstreams: Gives the catalog and reaches the tools.
        parsers: Parses the scripts.
        learner: Shown the results of tool calls.
        outputs: What a principal knows about outputs, for discovery.
        checker: Checks scripts; None where that is switched off.
        policy: Says what clients are granted.
        events: Who watches all runs.
        keeper: Keeps runs when they have ended; None where none are kept.
        reuse: Whether a principal's runs may have one process, where the policy does not say it.
        memory: Keeps what the authors of runs have read, where flows are on.
    """

    def __init__(
        self,
        settings: RunSettings,
        pool: Pool,
        upstreams: Registry,
        parsers: Parsers,
        *,
        checker: TypeChecker | None,
        learner: Learner,
        outputs: OutputsOf,
        policy: Policy,
        events: RunEvents,
        keeper: RunKeeper | None,
        reuse: Mapping[str, Reuse],
        memory: FlowMemory,
    ) -> None:
        self._settings = settings
        self._pool = pool
        self._parsers = parsers
        self._budget = Budget(CLIENT_BYTES, ALL_BYTES, "this client")
        self._upstreams = upstreams
        self._urls = ModuleUrls()
        self._learner = learner
        self._discovery, self._outputs = DiscoveryCache(), outputs
        self._schemas = ValidatorCache()
        self._types = TypeErrors(settings, checker)
        self._sides = SideChecks(checker, learner.wait_until_learnt)
        self._policy = policy
        self._events = events
        self._keeper = keeper
        self._live: dict[asyncio.Task[RunResponse], Run] = {}
        self._checker = checker
        self._generation = Generation()
        self._callers = Callers(lambda: pool.capacity)
        self._keys = ReuseKeys(pool.keep_keys)
        self._reuse = reuse
        self._memory = memory
        self._at_work = 0
        self._closed = False

    @property
    def busy(self) -> bool:
        """Says whether a run is at work, from its request to its response."""
        return self._at_work > 0

    @property
    def places(self) -> int:
        """Gives the places for runs that the hosts have now."""
        return self._pool.capacity

    def use(self, settings: RunSettings, policy: Policy) -> Generation:
        """Takes over other limits, bounds and grants for the runs that come, and gives the generation of those
        before."""
        self._settings = settings
        self._policy = policy
        self._types = TypeErrors(settings, self._checker)
        self._keys.renew()
        before, self._generation = self._generation, Generation(self._generation)
        return before

    def allow_always(self, rule: str) -> None:
        """Puts a rule of flows, which a question has shown as JSON, before all others."""
        if self._policy.flows is not None:
            self._policy.flows.allow_always(rule)

    async def close(self) -> None:
        """Aborts every run, starts no other, and waits for the ends of all, within `CLOSE_BOUND_SECONDS`."""
        self._closed = True
        self._parsers.close()
        # First: the place of a run that is aborted would go to one that waits.
        self._pool.close()
        for run in self._live.values():
            run.leave()
        if self._live:
            await asyncio.wait(self._live, timeout=CLOSE_BOUND_SECONDS)
        await self._sides.close()

    async def park_waiting(self) -> bool:
        """Parks the runs that wait for people and for nothing else, and waits for their ends, within
        `PARK_BOUND_SECONDS`. Says whether there were any."""
        parking = [task for task, run in self._live.items() if run.park()]
        if parking:
            await asyncio.wait(parking, timeout=PARK_BOUND_SECONDS)
        return bool(parking)

    async def run(
        self,
        raw: Mapping[str, Any],
        caller: Caller = EMBEDDER,
        *,
        journal: RunJournal | None = None,
        kept: KeptRun | None = None,
        run_id: str = "",
        script_name: str = "",
        outer: OuterCall | None = None,
        label: Label = NOTHING,
    ) -> RunResponse:
        """Runs one `codemode.run` request to its one response.

        Args:
            raw: The request (Code Mode specification, section 3.2).
            caller: For whom it is.
            journal: Records the run; or goes on with a recorded one, whose request `raw` must be (`journal.request`).
            kept: The run that goes on, where it was parked or lost; with its own `journal`.
            run_id: Names a new run; empty: any name.
            script_name: What places in the script are told by, in the place of what was recorded; empty: it is no file.
                One that would have to be written otherwise within JSON counts as empty.
            outer: The call of another run that this one is: within its grants, and told of nowhere else.
            label: Of what the script's author knows besides what its principal is remembered to have read. What the run
                knows at its end is `response.label`.

        Raises:
            InvalidRequest: The request is malformed. Every other failure is a diagnostic in the response.

        When the calling task is cancelled, the run is aborted: calls in flight are cancelled upstream, and its
        worker is killed.
        """
        self._at_work += 1
        try:
            request = read_request(raw, self._settings)
            principal = caller.grantee.principal
            if outer is None:
                grants = self._policy.grants_of(principal, request.grants)
            else:
                rules = outer.calls.context.rules
                grants = (rules.grants if rules else UNRESTRICTED).narrowed_by(request.grants or Grant())
            if request.plan and grants is None:
                grants = UNRESTRICTED
            # A recording that is run again is not one more run.
            if kept is None and journal is None and outer is None and self._keeper is not None:
                kept = self._keeper.opened(
                    principal,
                    client=caller.client,
                    may_park=caller.grantee.returns,
                    durable=request.durable or request.plan,
                    may_leave=caller.leaves,
                )
            if kept is not None:
                journal, run_id = kept.journal, kept.run_id or run_id
            name = script_name or ("" if journal is None else journal.script_name)
            job = _Job(
                request=request,
                raw=raw,
                caller=caller,
                grants=grants,
                watch=self._events.open(
                    caller.client, request.code, caller.observer, kept, principal=principal, run_id=run_id
                ),
                kept=kept,
                given=journal,
                script_name=name if is_plain_name(name) else SCRIPT_NAME,
                outer=outer,
                label=await self._known_before(caller, journal, label),
            )
            try:
                response = await self._to_end(job)
            except BaseException:
                job.watch.given_up()
                raise
            if response.label is not None:
                await self._memory.read(caller.reader, response.label)
            job.watch.ended(response)
            return response if kept is None else await kept.named(response)
        finally:
            self._at_work -= 1

    async def call(
        self,
        server: ServerEntry,
        tool: ToolEntry,
        arguments: Any,
        caller: Caller,
        used: Counter[tuple[int, str]],
    ) -> Any:
        """Makes one tool call for a client, without a script: gives a `ToolResult`, or a Python tool's plain data.

        Args:
            server: The tool's server, of the newest snapshot.
            tool: The tool.
            arguments: The input, as JSON data.
            caller: For whom it is.
            used: What counts for budgets already.

        Raises:
            ScriptError: The call was refused, or has failed.
        """
        with self._generation:
            principal = caller.grantee.principal
            if self._upstreams.starting(principal):
                await self._upstreams.settled({server.server_id}, principal=principal)
            label, catalog = await self._known_before(caller), self._upstreams.catalogs_of(principal)[0]
            flow = self._flow(caller, label, catalog)
            rules = self._rules(caller, self._policy.grants_of(principal), used, flow=flow)
            account = Account(self._budget, caller.client)
            named = f"{server.server_id}.{tool.tool_name}"
            watch = self._events.open(caller.client, named, principal=principal)
            origin = CallOrigin(caller.requester, account=account, caller=caller)
            inputs = CallInputs(self._schemas, account)
            try:
                result = await call_directly(
                    server,
                    tool,
                    arguments,
                    self._upstreams,
                    inputs,
                    rules,
                    origin,
                    watch,
                    self._policy.secrets,
                )
            finally:
                if flow is not None:
                    await self._memory.read(caller.reader, flow.label)
            await learn(self._learner, server, tool, result, self._settings.max_message_bytes, principal)
            return result

    async def _to_end(self, job: _Job) -> RunResponse:
        """Attempts a run, again as often as its process is lost and it goes on in another one."""
        found: list[Diagnostic] = []
        response = await self._attempt(job, found)
        for _ in range(MAX_LOST):
            if not response.lost or not self._goes_on(job, response):
                break
            # What those before that had used is in there already.
            lost_cpu_ms, label = response.usage.cpu_ms, response.label
            response = await self._attempt(job, found)
            usage = response.usage.model_copy(update={"cpu_ms": response.usage.cpu_ms + lost_cpu_ms})
            label = label if label is None or response.label is None else label | response.label
            response = response.model_copy(update={"usage": usage, "label": label})
        return response

    async def _attempt(self, job: _Job, found: list[Diagnostic]) -> RunResponse:
        """Runs a script in one process. `found` takes what is found in scripts beside the outcome of the run."""
        catalog, servers = None, frozenset[str]()
        request, client = job.request, job.caller.client
        async with AsyncExitStack() as until_end:
            try:
                # Before the work of planning: a refusal must stay cheap when very many come.
                if job.outer is None:
                    self._pool.check_room(client)
                catalog = job.seen(self._upstreams.catalogs_of(job.caller.grantee.principal)[0])
                account = Account(self._budget, client)
                imports = await self._parsers.parsed(encoded(request.code), account, self._pool.bound)
                principal = job.caller.grantee.principal
                # A client that gives up waits for servers, too.
                job.watch.queued()
                late = await self._used_are_there(request, imports, principal)
                # Together, without a pause between: who waits for this generation's runs waits for all with this
                # catalog.
                generation = until_end.enter_context(self._generation)
                newest = self._upstreams.catalogs_of(principal)[0]
                catalog = job.seen(newest.without(late, _CHANGING))
                reuse = self._is_reused(job)
                plan = self._planned(job, imports, catalog, reuse=reuse)
                servers = named_servers(plan.script, request.requested, catalog)
                plan = self._sent(job, plan, catalog)
                side = SideCheck(self._sides, plan, catalog, client, principal, self._types.check_seconds)
                flow = self._flow(job.caller, job.label, catalog)
                context = self._context(job, plan, catalog, account, side.answers, flow, reuse=reuse)
                # One that goes on was checked before it began.
                typecheck = "off" if job.goes_on else self._types.mode(request)
                if typecheck == "before":
                    errors, notices = await self._types.before(side)
                    found += notices
                    if errors:
                        raise _Refused(*errors)
                if job.outer is None and calls_scripts(plan.script, catalog):
                    await until_end.enter_async_context(self._callers.inside(self._pool.queue_wait_ms))
                run = Run(context)
                lease, queue_ms = await self._leased(run, job)
            except NOT_STARTED as error:
                told = [*_reasons(error), *self._warnings(job, catalog, servers), *found]
                return RunResponse(logs=[], diagnostics=told, servers=tuple(sorted(servers)))
            # Here, and not in the task that waits for its end: that would be one turn of the loop later.
            run.begin(lease)
            if typecheck != "off":
                side.begin()
            response = await self._watched(run, generation, run.outcome(queue_ms), job.watch)
            if typecheck != "off":
                # Before the wait for its own check: what that finds late is for the next one.
                found += side.late()
                response = await self._types.after(response, request, side, is_last=principal == COMMAND_LINE)
            told = [*response.diagnostics, *self._warnings(job, catalog, servers), *found]
            about = {"servers": tuple(sorted(servers)), "label": None if flow is None else flow.label}
            return response.model_copy(update={"diagnostics": told, **about})

    def _warnings(self, job: _Job, catalog: Catalog | None, servers: Collection[str]) -> list[Diagnostic]:
        """Lists what a response says besides the outcome of its run, which names these servers."""
        told = list(job.request.warnings)
        if catalog is not None:
            told += capability_warnings(job.request.requested, servers, catalog)
        if job.kept is not None:
            told += run_losses(job.kept.losses, job.kept.adopted)
        principal = job.caller.grantee.principal
        if catalog is not None and (slips := self._policy.slips(principal, catalog, servers)):
            told.append(Diagnostic(severity="warning", code="POLICY_NAMES_NO_TOOL", message=slips))
        return told

    def _goes_on(self, job: _Job, response: RunResponse) -> bool:
        """Prepares a run whose process was lost to go on in another one; says whether it can: where it is written down
        as it goes."""
        kept = job.kept
        if self._closed or kept is None or not kept.is_durable or kept.journal.lost is not None:
            return False
        kept.goes_on()
        why = next((entry.message for entry in response.diagnostics if entry.severity == "error"), "")
        calls = len(response.tool_trace)
        said = f"The run's process was lost: {why} It goes on from where it was; {calls} calls are not made again."
        kept.losses += (said,)
        return True

    async def _used_are_there(self, request: RunRequest, found: Imports, principal: str) -> frozenset[str]:
        """Waits for the servers that a script imports or requests; for all where it looks servers up, or computes what
        it imports. Returns the ids of those whose changed tools are not known yet."""
        used = {name.removeprefix(SERVERS_PREFIX) for name in (*found.specifiers, *request.requested)}
        if self._upstreams.starting(principal):
            most = WAIT_SHARE * request.limits.timeout_ms / 1000
            until = time.monotonic() + most
            await self._upstreams.settled(used, principal=principal, at_most=most)
            if found.computed or DISCOVERY_SPECIFIER in used:
                await self._upstreams.settled(principal=principal, at_most=max(0.0, until - time.monotonic()))
        return await self._upstreams.refreshed(
            None if found.computed else used, REFRESH_BOUND_SECONDS, principal
        )

    def _is_reused(self, job: _Job) -> bool:
        """Says whether a run may have the process of others. One with a journal may not: its sources of time and chance
        are replaced in its process."""
        if job.journal is not None or job.request.own_process:
            return False
        caller = job.caller
        return is_reused(caller.grantee.principal, caller.client, self._reuse)

    def _rules(
        self,
        caller: Caller,
        grants: Grants | None,
        used: Counter[tuple[int, str]] | None = None,
        *,
        earlier: EarlierQuestions | None = None,
        stops: bool = False,
        flow: RunFlow | None = None,
    ) -> RunRules | None:
        """Gives the policy for a client's run or call; None where nothing is restricted."""
        quotas = self._policy.quotas_of(caller.grantee.principal)
        if grants is None and quotas is None and flow is None:
            return None
        approver = caller.grantee.approver
        return RunRules(
            grants or UNRESTRICTED, approver, used, earlier=earlier, stops=stops, quotas=quotas, flow=flow
        )

    async def _known_before(
        self, caller: Caller, journal: RunJournal | None = None, label: Label = NOTHING
    ) -> Label | None:
        """Gives the label of what the author of a run has read; None where flows are off."""
        if self._policy.flows is None:
            return None
        label |= await self._memory.of(caller.reader)
        if journal is not None and journal.past is not None:
            # A process that is lost on its way back knew all of it.
            packed = {journal.past.label, *(call.label for call in journal.past.calls)}
            for one in packed - {""}:
                label |= Label.unpack(one)
        return label

    def _flow(self, caller: Caller, label: Label | None, catalog: Catalog) -> RunFlow | None:
        """Follows the data of a run or call whose author has read what has this label; None where flows are off."""
        rules = self._policy.flows
        if rules is None or label is None:
            return None
        return RunFlow(rules, label, catalog, partial(self._memory.rises, caller.reader))

    def _planned(self, job: _Job, imports: Imports, catalog: Catalog, *, reuse: bool) -> Plan:
        code, journal = job.request.code, job.journal
        if journal is not None and journal.past is not None:
            rounds = frozenset[int]() if job.earlier is None else frozenset(job.earlier.rounds)
            journal.may_repeat = partial(_may_repeat, catalog, rounds)
        if journal is not None and journal.past is not None and not journal.is_live:
            return recorded_plan(journal, code, imports, job.script_name)
        return make_plan(
            code,
            catalog,
            self._urls,
            imports,
            conventions=not self._settings.frontend.strict,
            journaled=journal is not None,
            own_import=reuse,
            name=job.script_name,
        )

    def _sent(self, job: _Job, plan: Plan, catalog: Catalog) -> Plan:
        """Gives a plan with what the worker is sent of it. Raises _Refused."""
        if plan.errors:
            raise _Refused(*plan.errors)
        if job.journal is not None:
            plan = replace(plan, body=self._journal_begins(job.journal, plan, job, catalog))
        if len(plan.body) > (most := self._settings.max_message_bytes):
            # ZeroMQ would cut the host off, and with it every other run that it has.
            message = f"The script and the modules it imports take {len(plan.body)} bytes, over {most}."
            raise _Refused(
                _not_started("SCRIPT_TOO_LARGE", message, "Import fewer servers, each by its name.")
            )
        return plan

    def _context(
        self,
        job: _Job,
        plan: Plan,
        catalog: Catalog,
        account: Account,
        answers: Answers | None,
        flow: RunFlow | None,
        *,
        reuse: bool,
    ) -> RunContext:
        request, caller, kept, journal = job.request, job.caller, job.kept, job.journal
        key = ""
        if reuse and plan.script.fits_context:
            whose = caller.grantee.principal, caller.client, job.grants, catalog, self._generation.number
            key = self._keys.key(*whose, "" if flow is None else flow.label.pack())
        return RunContext(
            plan=plan,
            limits=request.limits,
            counts_queue=request.has_default_timeout,
            catalog=catalog,
            discovery=self._discovery.get_or_make(catalog).shown(self._outputs(caller.grantee.principal)),
            rules=self._rules_of(job, flow),
            requester=caller.requester,
            account=account,
            upstreams=self._upstreams,
            schemas=self._schemas,
            max_message_bytes=self._settings.max_message_bytes,
            watch=job.watch,
            learner=self._learner,
            answers=answers,
            journal=journal,
            kept=kept,
            approver=caller.grantee.approver,
            generation=self._generation,
            used_ms=0 if journal is None or journal.past is None else journal.past.used_ms,
            used_cpu_ms=0 if kept is None else kept.earlier_cpu_ms,
            secrets=self._policy.secrets,
            key=key,
            outer=job.outer,
        )

    def _rules_of(self, job: _Job, flow: RunFlow | None) -> RunRules | None:
        outer = None if job.outer is None else job.outer.calls.context.rules
        if outer is not None and job.grants is not None:
            return outer.of_child(job.grants, flow)
        return self._rules(job.caller, job.grants, earlier=job.earlier, stops=job.request.plan, flow=flow)

    def _journal_begins(self, journal: RunJournal, plan: Plan, job: _Job, catalog: Catalog) -> bytes:
        """Gives what the worker of a journaled run is sent."""
        return journal.begin(
            made_by=installed("cellblock"),
            deno=installed("deno"),
            request=dict(job.raw),
            script_name=job.script_name,
            body=plan.body,
            conventions=not self._settings.frontend.strict,
            limits=asdict(job.request.limits),
            message_bytes=self._settings.max_message_bytes,
            catalog=catalog,
            principal=job.caller.grantee.principal,
            grants=[] if job.grants is None else [layer.grant for layer in job.grants.layers],
            label="" if job.label is None else job.label.pack(),
        )

    async def _leased(self, run: Run, job: _Job) -> tuple[Lease, int]:
        """Waits for a worker; gives its lease, and how long the run has waited by then, in milliseconds."""
        facts, limits = job.watch.facts, job.request.limits
        queued_at = facts.queued or time.monotonic()
        left = limits.timeout_ms / 1000 - (time.monotonic() - queued_at)
        try:
            async with asyncio.timeout(left if job.request.has_default_timeout else None):
                # Its caller has a place already: a client of its own is served first.
                client = job.caller.client if job.outer is None else f"{job.caller.client} {facts.id}"
                lease = await self._pool.acquire(run, client)
        except TimeoutError:
            raise Overloaded(
                f"No place came free within the run's time, limits.timeoutMs = {limits.timeout_ms}.",
                hint="Try again in a moment, or give a timeoutMs: then only the script's own time counts.",
            ) from None
        job.watch.leased()
        return lease, int((time.monotonic() - queued_at) * 1000)

    async def _watched(
        self,
        run: Run,
        generation: Generation,
        work: Coroutine[Any, Any, RunResponse],
        watch: RunWatch,
    ) -> RunResponse:
        # A task of its own: a cancelled caller must not cut the clean-up short.
        task = asyncio.create_task(generation.holding(work), name="run")
        self._live[task] = run
        task.add_done_callback(lambda done: self._live.pop(done, None))
        try:
            return await asyncio.shield(task)
        except asyncio.CancelledError:
            watch.ends_with(task)
            run.abort()
            raise


def _reasons(error: _Refused | TooComplex | Overloaded | HostUnavailable) -> tuple[Diagnostic, ...]:
    match error:
        case _Refused():
            return error.diagnostics
        case TooComplex():
            hint = "Write a shorter, flatter script; let it fetch data through tools."
            why = f"The script was not started: {error}."
            return (error_diagnostic("SCRIPT_TOO_COMPLEX", why, hint),)
        case Overloaded():
            return (_not_started("OVERLOADED", error.message, error.hint),)
        case HostUnavailable():
            return (_not_started("WORKER_UNAVAILABLE", error.message, error.hint),)


def _may_repeat(catalog: Catalog, goes_on: Collection[int], call: RecordedCall) -> bool:
    """Says of a call that may have run whether it may be made again: only where the user has said so, or its server has
    answered it with a question in a round, and waits for nothing."""
    if call.id in goes_on:
        return True
    server = catalog.servers.get(call.server)
    tool = None if server is None else server.tool(call.tool)
    return tool is not None and tool.given is not None and tool.given.retry


def _not_started(code: str, message: str, hint: str) -> Diagnostic:
    return Diagnostic(
        severity="error", code=code, message=f"{message} The script was not started.", hint=hint
    )
