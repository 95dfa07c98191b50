"""Constructs the parts of a broker in two steps, with what takes longest to start first.

Imports are in the functions: those of the second step are made while the processes that the first one started are
starting. A thread imports them, so that the loop serves meanwhile.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import importlib
import logging
import os
import resource
import secrets
import shutil
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cellblock.base.database import Tables
from cellblock.base.errors import MORE_THREADS, ConfigError, HostUnavailable
from cellblock.base.redaction import SecretForms
from cellblock.base.settings.sections import MIB
from cellblock.base.settings.settings import Audit, CellblockSettings, Settings
from cellblock.base.state_dir import LOGS, prepare_state_dir
from cellblock.base.store import LocalStore, Store
from cellblock.base.tasks import in_background
from cellblock.run.events import RunEvents
from cellblock.run.flows.rules import OnAlways
from cellblock.run.flows.secrets import Secrets
from cellblock.run.policy import counts
from cellblock.run.policy.counts import Counts
from cellblock.run.policy.named_tokens import NamedTokens
from cellblock.run.policy.policy import Policy
from cellblock.tools.catalog.model import Catalog
from cellblock.tools.catalog.naming import LOCAL_SERVER, module_paths, policy_ids

if TYPE_CHECKING:
    import zmq

    from cellblock.fleet.presence import Presence
    from cellblock.fleet.shared_state import SharedState
    from cellblock.pool.start import Terms, Workers
    from cellblock.record.journals import Journals
    from cellblock.record.kept import Keeper
    from cellblock.record.rows import RunOwner
    from cellblock.record.scripts.library import Library
    from cellblock.run.executor import Executor
    from cellblock.tools.upstream.registry import Registry
    from cellblock.types.learning.learner import Learner
    from cellblock.types.learning.outputs import KnownOutputs

WORKERS: Final = "cellblock.pool.start"
SESSIONS: Final = "cellblock.tools.upstream.session"
REACH: Final = ("cellblock.tools.upstream.registry", "cellblock.types.learning.outputs")
RUNS: Final = ("cellblock.types.check.checker", "cellblock.run.executor")
"""Names the modules of each step that import most of the others."""


DESCRIPTORS_NEEDED: Final = 24
"""Sets the file descriptors that must be free: a broker without servers opens about 15; past its start, ZeroMQ may
abort the process when it gets none."""

THREADS_NEEDED: Final = 26
"""Sets the threads that must be free: ours, and the processes and threads of a worker host and of one worker; ZeroMQ
aborts the process when it gets none."""

_FREE_SPACE: Final = "Free space on that disk, or use another --state-dir."
_MORE_FILES: Final = "Raise the number of open files: `ulimit -n 1024`, or LimitNOFILE= of the service."

_HINTS: Final = {
    errno.ENOSPC: _FREE_SPACE,
    errno.EDQUOT: _FREE_SPACE,
    errno.EROFS: "Use a --state-dir that can be written.",
    errno.EMFILE: _MORE_FILES,
    errno.ENFILE: _MORE_FILES,
}


@dataclass(frozen=True, slots=True)
class Reach:
    """Holds what a broker reaches: servers and workers, what it has learnt of their outputs, and what it keeps of
    runs."""

    registry: Registry
    workers: Workers
    learner: Learner
    outputs: KnownOutputs
    keeper: Keeper
    journals: Journals
    owner: RunOwner
    presence: Presence | None


def check_room() -> None:
    """Raises HostUnavailable or OSError where this process cannot have the files and threads that a broker needs."""
    with contextlib.ExitStack() as held:
        try:
            for _ in range(DESCRIPTORS_NEEDED):
                held.callback(os.close, os.open(os.devnull, os.O_RDONLY))
        except OSError as error:
            raise OSError(error.errno, f"{error.strerror} (it needs {DESCRIPTORS_NEEDED} more)") from None
    done = threading.Event()
    with ThreadPoolExecutor(THREADS_NEEDED) as threads, contextlib.ExitStack() as held:
        held.callback(done.set)
        try:
            for _ in range(THREADS_NEEDED):
                threads.submit(done.wait)
        except RuntimeError:
            bounded = resource.getrlimit(resource.RLIMIT_AS)[0] != resource.RLIM_INFINITY
            why = (
                "`ulimit -v` leaves too little for its threads" if bounded else "no more threads are allowed"
            )
            raise HostUnavailable(
                f"This machine does not let Cellblock start: {why} (it needs {THREADS_NEEDED} more).",
                hint="Set `ulimit -v` to unlimited." if bounded else MORE_THREADS,
            ) from None


def unavailable(error: OSError | zmq.ZMQError) -> HostUnavailable:
    """Makes the error that a broker raises when the machine does not let it start."""
    return HostUnavailable(
        f"This machine does not let Cellblock start: {error}.",
        hint=_HINTS.get(error.errno or 0, "Run `cellblock doctor`."),
    )


def tools_of(paths: Sequence[str], given: Sequence[Callable[..., Any]]) -> list[Callable[..., Any]]:
    """Returns the Python tools: those that are given, and those that the configuration names. Raises ConfigError."""
    if not paths and not given:
        return []
    from cellblock.tools.python.python_tools import load_tools

    return load_tools(paths, given)


def store_of(settings: Settings) -> LocalStore | SharedState:
    """Returns where a configuration keeps what outlives a broker. Raises ConfigError: Its PostgreSQL has no driver."""
    state = settings.cellblock.state
    if not state.is_shared:
        return LocalStore(settings.state_dir, state.keys)
    try:
        from cellblock.fleet.postgresql import PostgresServer
        from cellblock.fleet.shared_state import SharedState
    except ImportError as error:
        raise ConfigError(
            f"state.url names a PostgreSQL, and its driver is not installed ({error.name}).",
            hint="pip install 'cellblock[postgresql]'",
        ) from None
    return SharedState(PostgresServer(state.url), state.keys)


def library_of(settings: Settings, store: Store) -> Library:
    """Returns what knows the kept scripts of a configuration."""
    from cellblock.record.scripts.library import Library

    section = settings.cellblock
    return Library(store, section.auth, section.scripts.dir, settings.state_dir)


def policy_of(
    settings: Settings,
    tokens: NamedTokens,
    counts: Counts,
    on_always: OnAlways | None = None,
    later_secrets: SecretForms | None = None,
) -> Policy:
    """Returns what clients are granted, and where data may go. Raises ConfigError."""
    from cellblock.app.config.named_secrets import every_secret

    server_ids, policy = policy_ids(settings.servers), settings.cellblock.policy
    held = None
    if policy.secrets != "off":
        held = Secrets(policy.secrets, settings.servers, every_secret(), later_secrets)
    return Policy(
        policy,
        server_ids,
        tokens,
        asks=any(config.asks for config in settings.servers.values()),
        counts=counts,
        servers=settings.servers,
        on_always=on_always,
        secrets=held,
    )


def catalog_before_start(servers: Sequence[str], *, local: bool) -> Catalog:
    """Returns the catalog of a broker that has not begun: ids alone."""
    ids = module_paths([*servers, *([LOCAL_SERVER] if local else [])])
    waiting = dict.fromkeys(ids.values(), "not started yet")
    return Catalog(0, unavailable=waiting, ids=ids, starting=frozenset(waiting))


def host_terms(section: CellblockSettings) -> Terms:
    """Returns what worker hosts must do for the scripts of this configuration."""
    from cellblock.pool.start import Terms

    return Terms(
        section.max_message_bytes,
        section.limits.max_memory_bytes.maximum // MIB,
        section.isolation,
        reuse="principal" in section.pool.reuse.values(),
    )


def start_watchers(
    audit: Audit,
    traces: str | None,
    state_dir: Path,
    events: RunEvents,
    stack: contextlib.AsyncExitStack,
) -> None:
    """Adds the watchers; each is closed with `stack`, off the loop and within its bound.

    Raises:
        ConfigError: A file cannot be written, or a package is missing.
    """
    from cellblock.observe.logs import RunLog, tame_libraries

    # In an embedder's process, too.
    tame_libraries()
    if logging.getLogger("cellblock.run").isEnabledFor(logging.INFO):
        events.add(RunLog())
    if "calls" in audit:
        from cellblock.observe.audit import AuditLog

        log = AuditLog(audit, state_dir)
        stack.push_async_callback(asyncio.to_thread, log.close)
        events.add(log)
    if traces is not None:
        from importlib.metadata import version

        from cellblock.observe.traces import Tracer, make_exporter

        tracer = Tracer(make_exporter(traces), version("cellblock"))
        stack.push_async_callback(asyncio.to_thread, tracer.close)
        events.add(tracer)


async def start_reach(
    settings: Settings,
    store: LocalStore | SharedState,
    tools: Sequence[Callable[..., Any]],
    events: RunEvents,
    on_change: Callable[[], None],
    stack: contextlib.AsyncExitStack,
    login_pages: str | None,
    later_secrets: SecretForms,
) -> Reach:
    """Starts the sessions and the worker host, and waits for neither; `stack` stops them, and closes the store.
    `login_pages` and `later_secrets` are as for `kept_logins`.

    Raises:
        ConfigError: The state directory or an overlay cannot be used, or two tools share a name.
        OSError, HostUnavailable: The machine does not let it start.
    """
    # Imports take their time, and runs come meanwhile: how long they wait for servers counts from here.
    began = asyncio.get_running_loop().time()
    prepare_state_dir(settings.state_dir)
    workers = await _start_workers(settings, stack)
    # The SDK takes longest of all.
    await _imported(*REACH, *([SESSIONS] if settings.enabled else []))
    from cellblock.record.journals import Journals
    from cellblock.record.kept import Keeper
    from cellblock.record.rows import Owner
    from cellblock.tools.upstream.pins import PinStore, Reviewer
    from cellblock.tools.upstream.registry import Registry
    from cellblock.tools.upstream.server_logins import kept_logins
    from cellblock.types.learning.learner import Learner
    from cellblock.types.learning.outputs import KnownOutputs, load_overlays, refined

    section = settings.cellblock
    state_dir = settings.state_dir
    start_watchers(section.audit, section.traces, state_dir, events, stack)
    presence = None
    if not isinstance(store, LocalStore):
        presence = store.start(_tables(), section.state.broker_name)
        stack.callback(store.close)
    owner = presence or Owner(state_dir)
    stack.callback(owner.close)
    journals = Journals(store, section.auth, section.journal)
    stack.push_async_callback(journals.close)
    journals.start()
    overlays = load_overlays(settings.overlay_dir, settings.servers)
    learner = Learner(section.schemas, store)
    learner.start()
    stack.push_async_callback(learner.close)
    outputs = KnownOutputs(learner)
    registry = Registry(
        settings.servers,
        tools,
        section.upstream,
        max_message_bytes=section.max_message_bytes,
        log_dir=state_dir / LOGS,
        reviewer=Reviewer(section.pins, PinStore(store)),
        refine=partial(refined, section.schemas, overlays),
        logins=kept_logins(section.auth, store, section.http.oauth, login_pages, later_secrets),
        on_change=on_change,
    )
    stack.push_async_callback(registry.close)
    registry.start(since=began)
    await registry.recall()
    keeper = Keeper(journals, section.journal, owner, registry, settings.file)
    return Reach(registry, workers, learner, outputs, keeper, journals, owner, presence)


async def _start_workers(settings: Settings, stack: contextlib.AsyncExitStack) -> Workers:
    """Starts the worker side. Its processes take a third of a second, in which the rest is imported."""
    await _imported(WORKERS)
    import zmq

    from cellblock.pool.start import Workers

    section, state_dir = settings.cellblock, settings.state_dir
    terms = host_terms(section)
    remote = None
    if section.hosts.listen is not None:
        from cellblock.fleet.remote_hosts import open_hosts

        remote = partial(open_hosts, section.hosts, section.pool, terms, state_dir)
    try:
        return Workers(section.pool, terms, state_dir, stack, local=section.hosts.local, remote=remote)
    except zmq.ZMQError as error:
        raise unavailable(error) from None


def _tables() -> Sequence[Tables]:
    """Returns what a broker keeps in a PostgreSQL."""
    from cellblock.record.store import JOURNAL_TABLES
    from cellblock.serve import kept_outputs
    from cellblock.types.learning import store

    return (counts.TABLES, JOURNAL_TABLES, store.TABLES, kept_outputs.TABLES)


async def start_executor(
    settings: Settings,
    reach: Reach,
    policy: Policy,
    events: RunEvents,
    stack: contextlib.AsyncExitStack,
    store: LocalStore | SharedState,
) -> Executor:
    """Makes the one way to a worker; the caller closes it. `stack` stops what it needs."""
    await _imported(*RUNS)
    from cellblock.app import process_memory
    from cellblock.record.flow_labels import FlowLabels
    from cellblock.run.executor import Executor
    from cellblock.script.parsing import Parsers
    from cellblock.types.check.checker import TypeChecker

    section = settings.cellblock
    checker = None
    if section.typecheck != "off":
        checker = TypeChecker(
            section.isolation,
            outputs=reach.outputs.of,
            revision=lambda: reach.learner.revision,
        )
        stack.push_async_callback(checker.close)
        if section.typecheck == "before":
            checker.warm_up()
    memory = FlowLabels(store)
    stack.push_async_callback(memory.close)
    executor = Executor(
        section,
        reach.workers.pool,
        reach.registry,
        Parsers(section.pool.queue_wait_ms),
        checker=checker,
        learner=reach.learner,
        outputs=reach.outputs.of,
        policy=policy,
        events=events,
        keeper=reach.keeper,
        reuse=section.pool.reuse,
        memory=memory,
    )
    reach.learner.make_way_for(lambda: executor.busy)
    await stack.enter_async_context(in_background(process_memory.collect_when_idle(lambda: executor.busy)))
    if process_memory.is_own:
        await stack.enter_async_context(in_background(process_memory.give_back_when_grown()))
    return executor


async def _imported(*modules: str) -> None:
    for module in modules:
        await asyncio.to_thread(importlib.import_module, module)


StateDir = str | os.PathLike[str] | None
"""Names a folder, or is `user` for the user's own, or None: what the configuration names, else a private one."""

_HINT: Final = (
    'Give the broker a state_dir: a folder of the program\'s own, or "user" for that of the command line. '
    "Or set cellblock.state_dir."
)


class BrokerState:
    """Names a broker's state directory in every configuration that it takes over.

    Args:
        wanted: What the program wants.
    """

    def __init__(self, wanted: StateDir) -> None:
        self._wanted = wanted
        self._private: Path | None = None

    def named_in(self, settings: Settings) -> Settings:
        """Returns the settings with the state directory.

        Raises:
            ConfigError: They want something that must outlive a private one.
        """
        section = settings.cellblock
        if self._wanted is not None:
            return settings.with_state_dir(
                settings.state_dir if self._wanted == "user" else Path(self._wanted)
            )
        if section.state_dir is not None:
            return settings
        if "calls" in section.audit:
            raise ConfigError("The audit log would be removed with the broker's private state.", hint=_HINT)
        if section.journal.keeps and not section.state.is_shared:
            raise ConfigError("The kept runs would be removed with the broker's private state.", hint=_HINT)
        if "quarantine" in section.pins.values() and not section.state.is_shared:
            raise ConfigError(
                "cellblock.pins would hold definitions against nothing: the broker's private state begins empty.",
                hint=_HINT,
            )
        if self._private is None:
            # Nobody else can know its name.
            self._private = Path(tempfile.gettempdir()) / f"cellblock-{secrets.token_hex(16)}"
        # Overlays are the user's word, which is only read: "destructive" must not be lost with the folder.
        return settings.with_section(
            state_dir=self._private,
            schemas=section.schemas.model_copy(update={"overlays": settings.overlay_dir}),
        )

    def make(self, state_dir: Path, stack: contextlib.AsyncExitStack) -> None:
        """Makes the folder if it is the private one; `stack` removes it then. Raises OSError."""
        if state_dir == self._private:
            state_dir.mkdir(mode=0o700)
            stack.push_async_callback(asyncio.to_thread, shutil.rmtree, state_dir, True)
