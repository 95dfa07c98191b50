"""The composition root: the only place that constructs and closes the broker's parts.

`Broker` is the embedding API and what every front-end is given.
"""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import logging
import os
import shutil
import tempfile
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Final

import zmq

from cellblock.catalog.model import Catalog, ServerEntry, ToolEntry
from cellblock.catalog.outputs import OutputLookup, ToolOutput, stated_output
from cellblock.config import Settings, load_settings
from cellblock.errors import ConfigError, HostUnavailable
from cellblock.execution.executor import NOBODY, Executor
from cellblock.execution.response import Observer, RunResponse
from cellblock.outputs import KnownOutputs, ToolRefiner, load_overlays
from cellblock.pool.local_host import LocalHost
from cellblock.pool.pool import Pool
from cellblock.schemas.learner import Learner
from cellblock.schemas.store import FILE_NAME
from cellblock.transport.router import RouterLink
from cellblock.upstream.python_tools import MARK
from cellblock.upstream.registry import Registry
from cellblock_worker import protocol
from cellblock_worker.host import HostConfig

logger = logging.getLogger("cellblock")

HOST_START_BOUND_SECONDS: Final = 15.0
"""From starting the worker host to its `Hello`; it takes about 0.3 s."""

SILENCE_CHECK_SECONDS: Final = 1.0

LEARN_BOUND_SECONDS: Final = 5.0
"""Longest wait for the store of observed schemas; it opens in milliseconds."""

SOCKET_PATH_CAP: Final = 100
"""sockaddr_un holds 108 bytes on Linux and 104 on macOS, including the file's name."""

MIB: Final = 1024 * 1024


class Broker:
    """Runs scripts against MCP servers and Python tools; an async context manager.

    Args:
        settings: A whole configuration.
        tools: Python functions that scripts can call as `@codemode/servers/local`.

    Example:
        >>> async with Broker.from_config("cellblock.json", tools=[add]) as broker:  # doctest: +SKIP
        ...     response = await broker.run("globalThis.__codemode_result__ = 1 + 1")
        ...     assert response.result == 2
    """

    def __init__(self, settings: Settings, *, tools: Sequence[Callable[..., Any]] = ()) -> None:
        self._settings = settings
        self._tools = [*tools, *_tools_of_modules(settings.cellblock.tools)]
        self._stack = contextlib.AsyncExitStack()
        self._executor: Executor | None = None
        self._registry: Registry | None = None
        self._pool: Pool | None = None
        self._host: LocalHost | None = None
        self._learner: Learner | None = None
        self._outputs: OutputLookup = stated_output

    @classmethod
    def from_config(
        cls,
        path: str | os.PathLike[str] | None = None,
        *,
        tools: Sequence[Callable[..., Any]] = (),
        state_dir: Path | None = None,
    ) -> Broker:
        """Makes a broker from a configuration file (None: the defaults, no servers).

        Raises:
            ConfigError: The file cannot be read or used.
        """
        return cls(load_settings(path).with_state_dir(state_dir), tools=tools)

    async def __aenter__(self) -> Broker:
        """Starts the worker host and begins to connect to every server.

        Raises:
            HostUnavailable: The worker host did not start.
            ConfigError: The state directory cannot be used, or two tools share a name.
        """
        async with contextlib.AsyncExitStack() as stack:
            await self._start(stack)
            self._stack = stack.pop_all()
        return self

    async def __aexit__(
        self,
        exc_type: type[BaseException] | None,
        exc: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """Stops everything, within bounds: runs end, sessions close, workers and hosts are killed."""
        await self._stack.aclose()

    async def run(
        self,
        code: str,
        *,
        limits: Mapping[str, Any] | None = None,
        requested_capabilities: Sequence[str] | None = None,
        observer: Observer = NOBODY,
    ) -> RunResponse:
        """Runs one script.

        Args:
            code: JavaScript or TypeScript, an ES module.
            limits: `timeoutMs`, `maxMemoryBytes`, `maxLogBytes`, `maxToolCalls`, `maxCpuMs`; unknown keys are
                ignored.
            requested_capabilities: Server ids that the script will want.
            observer: Told console entries and tool calls while they happen.

        Raises:
            InvalidRequest: The request is malformed. A script that fails does not raise: see `diagnostics`.
        """
        request: dict[str, Any] = {"code": code}
        if limits is not None:
            request["limits"] = limits
        if requested_capabilities is not None:
            request["requestedCapabilities"] = list(requested_capabilities)
        return await self.run_request(request, observer=observer)

    async def run_request(self, request: Mapping[str, Any], *, observer: Observer = NOBODY) -> RunResponse:
        """Runs a `codemode.run` request as it came (Code Mode specification, section 3.2). Raises as `run`."""
        if self._executor is None:
            raise HostUnavailable("The broker is not running.", hint="Use it inside `async with`.")
        return await self._executor.run(request, observer=observer)

    @property
    def settings(self) -> Settings:
        """The configuration."""
        return self._settings

    @property
    def catalog(self) -> Catalog:
        """What is known about the servers and tools now."""
        return self._registry.catalog if self._registry else Catalog()

    @property
    def known_catalog(self) -> Catalog:
        """The same with servers that are out of reach at the moment, as they last were."""
        return self._registry.known_catalog if self._registry else Catalog()

    @property
    def hosts(self) -> list[protocol.Hello]:
        """What the connected worker hosts said of themselves."""
        return self._pool.hosts if self._pool else []

    @property
    def warm_workers(self) -> int:
        """Workers that are booted and wait."""
        return self._pool.warm if self._pool else 0

    @property
    def host_pid(self) -> int | None:
        """Process id of the local worker host."""
        return self._host.pid if self._host else None

    def output_of(self, server: ServerEntry, tool: ToolEntry) -> ToolOutput | None:
        """What is known now of a tool's output: given, declared or observed; None when nothing is.

        An `OutputLookup`, for discovery and inspection: texts that a client caches must not be made with it.
        """
        return self._outputs(server, tool)

    async def learnt(self, bound: float = LEARN_BOUND_SECONDS) -> None:
        """Waits until all results so far are looked at and remembered, at most `bound` seconds."""
        if self._learner is not None:
            await self._learner.learnt(bound)

    async def settled(self) -> None:
        """Waits until every server's first attempt to connect is over, within the configured bound."""
        if self._learner is not None:
            await self._learner.loaded(LEARN_BOUND_SECONDS)
        if self._registry is not None:
            await self._registry.settled(self._settings.cellblock.upstream.startup_wait_ms / 1000)

    # ---- inside: construction, in the order of destruction reversed ----------------------------------

    async def _start(self, stack: contextlib.AsyncExitStack) -> None:
        section = self._settings.cellblock
        state_dir = self._settings.state_dir
        log_dir = state_dir / "logs"
        _make_private(state_dir, log_dir)
        overlays = load_overlays(self._settings)
        self._learner = self._start_learner(stack)
        self._outputs = KnownOutputs(self._learner)
        self._registry = Registry(
            self._settings.servers,
            self._tools,
            section.upstream,
            log_dir=log_dir,
            refine=ToolRefiner(section.schemas, overlays),
        )
        stack.push_async_callback(self._registry.close)
        self._registry.start()

        socket_dir = _socket_dir(state_dir)
        stack.callback(shutil.rmtree, socket_dir, ignore_errors=True)
        endpoint = f"ipc://{socket_dir}/hosts.sock"
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        stack.callback(context.destroy, linger=0)

        pool = Pool(section.pool, lambda identity, _why: host.replace(identity))
        link = RouterLink(context, endpoint, max_message_bytes=section.max_message_bytes, events=pool)
        stack.callback(link.close)
        pool.use(link)

        def make_config(identity: str) -> HostConfig:
            return HostConfig(
                connect=endpoint,
                identity=identity,
                capacity=section.pool.capacity,
                warm=section.pool.warm,
                boot_parallel=max(2, os.cpu_count() or 1),
                max_message_bytes=section.max_message_bytes,
                isolation=section.isolation,
                max_old_space_mb=max(16, section.limits.max_memory_bytes.maximum // MIB),
            )

        def on_exit(identity: bytes, why: str) -> None:
            link.forget(identity)
            pool.host_gone(identity, why)

        host = LocalHost(make_config, log_file=log_dir / "host.log", on_starting=link.expect, on_exit=on_exit)
        self._host = host
        stack.push_async_callback(host.stop)
        stack.callback(pool.close)
        host.start()
        silence = asyncio.create_task(_watch_silence(pool))
        stack.callback(silence.cancel)
        await _host_started(pool, host, log_dir / "host.log")
        self._pool = pool
        self._executor = Executor(section, pool, self._registry, learner=self._learner, outputs=self._outputs)
        stack.push_async_callback(self._stop_executor, self._executor)

    def _start_learner(self, stack: contextlib.AsyncExitStack) -> Learner:
        learner = Learner(self._settings.cellblock.schemas, self._settings.state_dir / FILE_NAME)
        learner.start()
        stack.push_async_callback(learner.close)
        return learner

    async def _stop_executor(self, executor: Executor) -> None:
        self._executor = None
        await executor.close()


async def _watch_silence(pool: Pool) -> None:
    while True:
        await asyncio.sleep(SILENCE_CHECK_SECONDS)
        pool.check_silence()


async def _host_started(pool: Pool, host: LocalHost, log_file: Path) -> None:
    deadline = asyncio.get_running_loop().time() + HOST_START_BOUND_SECONDS
    while not pool.hosts:
        if host.refusal is not None:
            raise HostUnavailable(
                f"The worker host refuses to serve: {host.refusal}.", hint="Run `cellblock doctor`."
            )
        if asyncio.get_running_loop().time() > deadline:
            raise HostUnavailable(
                f"The worker host did not start within {HOST_START_BOUND_SECONDS:g} s.",
                hint=f"See {log_file}.",
            )
        await asyncio.sleep(0.01)


def _make_private(*directories: Path) -> None:
    for directory in directories:
        try:
            directory.mkdir(parents=True, exist_ok=True, mode=0o700)
        except OSError as error:
            raise ConfigError(
                f"The state directory {directory} cannot be made: {error}.", hint="Use another --state-dir."
            ) from None


def _socket_dir(state_dir: Path) -> Path:
    """A fresh 0700 directory for sockets; in the system's temporary directory where the path would be too long."""
    parent = state_dir / "run"
    if len(str(parent)) + 40 > SOCKET_PATH_CAP:
        return Path(tempfile.mkdtemp(prefix="cellblock-"))
    _make_private(parent)
    _remove_stale(parent)
    return Path(tempfile.mkdtemp(prefix=f"{os.getpid()}-", dir=parent))


def _remove_stale(parent: Path) -> None:
    """Removes what brokers that were killed have left."""
    for directory in parent.iterdir():
        pid = directory.name.partition("-")[0]
        if pid.isdigit() and not _alive(int(pid)):
            shutil.rmtree(directory, ignore_errors=True)


def _alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True


def _tools_of_modules(names: Sequence[str]) -> list[Callable[..., Any]]:
    found: list[Callable[..., Any]] = []
    for name in names:
        try:
            module = importlib.import_module(name)
        except ImportError as error:
            raise ConfigError(
                f"cellblock.tools: the module {name} cannot be imported: {error}.",
                hint="Install it into Cellblock's environment, or correct its name.",
            ) from None
        marked = [value for value in vars(module).values() if callable(value) and hasattr(value, MARK)]
        if not marked:
            raise ConfigError(f"cellblock.tools: {name} has no @tool() function.", hint="Mark its functions.")
        found += marked
    return found
