"""Parts is the composition root: the only place that constructs and closes what a broker is made of."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import secrets
import shutil
import tempfile
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Literal, Self, TypeVar

from cellblock.app.assembly import (
    Reach,
    catalog_before_start,
    check_descriptors,
    front_config,
    policy_of,
    start_executor,
    start_reach,
    store_of,
    tools_of,
    unavailable,
)
from cellblock.base.callbacks import Listeners
from cellblock.base.errors import CellblockError, ConfigError, HostUnavailable
from cellblock.base.internal import internal
from cellblock.base.settings.settings import Settings
from cellblock.base.tasks import TaskSet
from cellblock.run.events import RunEvents
from cellblock.run.policy.asking import EMBEDDER, Caller
from cellblock.run.policy.counts import Counts
from cellblock.run.policy.named_tokens import NamedTokens
from cellblock.run.response import RunResponse
from cellblock.tools.catalog.model import ServerEntry, ToolEntry
from cellblock.tools.catalog.outputs import ToolOutput

if TYPE_CHECKING:
    from cellblock.fleet.presence import Presence
    from cellblock.observe.facts import BrokerFacts
    from cellblock.record.journal import Journal
    from cellblock.record.kept import Keeper
    from cellblock.record.parked_runs import ParkedRuns
    from cellblock.run.executor import Executor
    from cellblock.tools.upstream.registry import Registry
    from cellblock.types.learning.outputs import KnownOutputs
    from cellblock_worker.wire import protocol

T = TypeVar("T")

logger = logging.getLogger("cellblock")

LEARN_BOUND_SECONDS: Final = 5.0
"""Bounds the wait for the store of observed schemas; it opens in milliseconds."""

HOST_START_BOUND_SECONDS: Final = 15.0
"""Bounds the wait for the worker host's greeting before the embedding API goes on without it; it takes about 0.3 s."""


@internal
class Parts:
    """Makes a broker's parts in order, ends them in the reverse order, and gives them to front-ends and commands
    meanwhile. The arguments are as for `Broker`."""

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
        self.front_config = front_config(settings)
        self._tools = tools_of(settings.cellblock.tools, tools)
        self.store = store_of(settings)
        self.tokens = NamedTokens(self.store)
        self.counts = Counts(self.store)
        self.policy = policy_of(settings, self.tokens, self.counts)
        self._stack = contextlib.AsyncExitStack()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._reach: Reach | None = None
        self._executor: Executor | None = None
        self._parked: ParkedRuns | None = None
        self._outputs: KnownOutputs | None = None
        """Knows also of a broker that has ended what was learnt."""
        self._releases = TaskSet()
        self._changed = Listeners()
        self._before_start = catalog_before_start(self.front_config.servers, local=bool(self._tools))
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
        self._loop = asyncio.get_running_loop()
        async with contextlib.AsyncExitStack() as stack:
            stack.callback(self._forget)
            try:
                check_descriptors()
                self._state.make(self._settings.state_dir, stack)
                await self._start(stack)
            except OSError as error:
                raise unavailable(error) from None
            self._stack = stack.pop_all()

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
        return await executor.run(request, caller, journal=journal, run_id=run_id, script_name=script_name)

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
    def registry(self) -> Registry:
        """Gives the sessions with servers. Raises HostUnavailable: The broker is not running."""
        return _running(self._reach).registry

    @property
    def keeper(self) -> Keeper:
        """Gives the keeper of runs that are written down. Raises HostUnavailable: The broker is not running."""
        return _running(self._reach).keeper

    @property
    def parked_runs(self) -> ParkedRuns:
        """Gives the parked runs. Raises HostUnavailable: The broker is not running."""
        return _running(self._parked)

    def facts(self) -> BrokerFacts:
        """Returns the state of pool, servers and knowledge, to be asked for plain data. Raises HostUnavailable."""
        reach = _running(self._reach)
        from cellblock.observe.facts import BrokerFacts

        return BrokerFacts(self._settings.cellblock.pool, reach.workers.pool, reach.registry, reach.outputs)

    @property
    def presence(self) -> Presence | None:
        """Tells of the other brokers that share a PostgreSQL; None while it does not run, or shares none."""
        return None if self._reach is None else self._reach.presence

    @property
    def hosts(self) -> list[protocol.Hello]:
        """Gives what the connected worker hosts said of themselves."""
        return [] if self._reach is None else self._reach.workers.pool.hosts

    @property
    def is_warm(self) -> bool:
        """Says whether a connected host has a worker that waits, or keeps none."""
        return self._reach is not None and self._reach.workers.pool.is_warm

    @property
    def hosts_endpoint(self) -> str | None:
        """Says where worker hosts on other machines connect, or None."""
        remote = None if self._reach is None else self._reach.workers.remote
        return None if remote is None else remote.endpoint

    def meets(self, principal: str) -> None:
        """Hears of a principal before it is shown what is known of outputs."""
        if self._reach is not None:
            self._reach.learner.meets(principal)

    def observed_of(self, server: ServerEntry, tool: ToolEntry) -> ToolOutput | None:
        """Says what has been observed of a tool's output, whatever is given or declared; an `OutputLookup` too."""
        return None if self._outputs is None else self._outputs.observed(server, tool)

    async def wait_for_looks(self, bound: float = LEARN_BOUND_SECONDS) -> None:
        """Waits until all results so far are looked at, at most `bound` seconds."""
        self._check_loop()
        if self._reach is not None:
            await self._reach.learner.wait_for_looks(bound)

    # ---- inside: construction, in the order of destruction reversed ----------------------------------

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

    def _forget(self) -> None:
        """Lets go of the parts of a broker that has ended, which is then not taken for running; what it has learnt of
        outputs can still be asked."""
        self._reach = self._parked = self._loop = None

    async def _start(self, stack: contextlib.AsyncExitStack) -> None:
        notify = self._changed.tell
        reach = await start_reach(self._settings, self.store, self._tools, self.events, notify, stack)
        self.counts.start()
        stack.push_async_callback(self.counts.close)
        self._reach, self._outputs = reach, reach.outputs
        notify()
        executor = self._executor = await start_executor(
            self._settings, reach, self.policy, self.events, stack
        )
        from cellblock.record.parked_runs import ParkedRuns

        parked = self._parked = ParkedRuns(
            reach.journals, reach.keeper, reach.owner, executor, reach.registry
        )
        stack.push_async_callback(parked.going_on.close)
        stack.push_async_callback(self._stop_executor, executor)
        parked.going_on.start()
        stack.push_async_callback(parked.going_on.stop_looking)
        # The registry closes what they would have closed.
        stack.callback(self._releases.cancel)

    async def _stop_executor(self, executor: Executor) -> None:
        self._executor = None
        await executor.close()


def not_running() -> HostUnavailable:
    return HostUnavailable("The broker is not running.", hint="Use it inside `async with`.")


def _running(part: T | None) -> T:
    if part is None:
        raise not_running()
    return part


StateDir = Path | Literal["user"] | None
"""Names a folder, the user's own, or None: what the configuration names, else a private one."""

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
            named = self._wanted if isinstance(self._wanted, Path) else settings.state_dir
            section = section.model_copy(update={"state_dir": named})
        if section.state_dir is not None:
            return settings.model_copy(update={"cellblock": section})
        if section.audit.enabled:
            raise ConfigError("The audit log would be removed with the broker's private state.", hint=_HINT)
        if section.journal.keeps and not section.state.is_shared:
            raise ConfigError("The kept runs would be removed with the broker's private state.", hint=_HINT)
        if "quarantine" in section.pins.values() and not section.state.is_shared:
            said = "cellblock.pins would hold definitions against nothing: the broker's private state begins empty."
            raise ConfigError(said, hint=_HINT)
        if self._private is None:
            # Nobody else can know its name.
            self._private = Path(tempfile.gettempdir()) / f"cellblock-{secrets.token_hex(16)}"
        # Overlays are the user's word, which is only read: "destructive" must not be lost with the folder.
        schemas = section.schemas.model_copy(update={"overlays": settings.overlay_dir})
        section = section.model_copy(update={"state_dir": self._private, "schemas": schemas})
        return settings.model_copy(update={"cellblock": section})

    def make(self, state_dir: Path, stack: contextlib.AsyncExitStack) -> None:
        """Makes the folder if it is the private one; `stack` removes it then. Raises OSError."""
        if state_dir == self._private:
            state_dir.mkdir(mode=0o700)
            stack.push_async_callback(asyncio.to_thread, shutil.rmtree, state_dir, True)
