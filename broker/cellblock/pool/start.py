"""Makes the worker side of a broker: the pool, the sockets of worker hosts, and the local host."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol

import zmq

from cellblock.base.errors import HostUnavailable
from cellblock.base.settings.sections import IsolationMode, PoolSettings
from cellblock.base.state_dir import HOST_LOG, LOGS, SOCKET_NAME, SocketDir
from cellblock.base.tasks import end_tasks
from cellblock.pool.local_host import LocalHost
from cellblock.pool.pool import HostLink, Pool
from cellblock.pool.router import RouterLink
from cellblock_worker.host.host_config import HostConfig

SILENCE_CHECK_SECONDS: Final = 1.0

logger = logging.getLogger("cellblock.pool")


@dataclass(frozen=True, slots=True)
class Terms:
    """Holds what every worker host must do for this broker's scripts.

    Attributes:
        message_bytes: The largest message that it takes.
        heap_mb: The largest heap that a script may have, in MiB.
        isolation: What is around a worker.
        reuse: Whether one principal's runs may have one process; on other machines none have.
    """

    message_bytes: int
    heap_mb: int
    isolation: IsolationMode
    reuse: bool = False


class RemoteHosts(HostLink, Protocol):
    """The wire to hosts on other machines, where a broker has any; `fleet` has it."""

    @property
    def endpoint(self) -> str:
        """Where they connect."""
        ...

    def dismiss(self, host: bytes, why: str) -> None:
        """Sends a host away that has failed."""


class Workers:
    """Starts the worker side of a broker, and waits for none of it.

    Args:
        bounds: How many workers there may be, and what they may take.
        terms: What every host must do.
        state_dir: The folder of the sockets and of the local host's log.
        stack: Stops what has been started, in reverse order.
        local: Whether there is a host on this machine.
        remote: Opens the wire to hosts on other machines, whose end `stack` closes; None: there are none.

    Attributes:
        pool: Leases places at the hosts.
        host: The host on this machine, or None.
        remote: The socket of hosts on other machines; None where none are listened for.
        ready: Ends when the local host has greeted; raises HostUnavailable when it refuses to serve.

    Raises:
        OSError, zmq.ZMQError: A socket cannot be made.
        ConfigError: The keys for hosts on other machines cannot be used.
    """

    def __init__(
        self,
        bounds: PoolSettings,
        terms: Terms,
        state_dir: Path,
        stack: contextlib.AsyncExitStack,
        *,
        local: bool = True,
        remote: Callable[[Pool, contextlib.AsyncExitStack], RemoteHosts] | None = None,
    ) -> None:
        self._bounds, self._terms = bounds, terms
        self._socket_dir = SocketDir(state_dir)
        stack.callback(self._socket_dir.close)
        self._endpoint = f"ipc://{self._socket_dir.path}/{SOCKET_NAME}"
        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
        stack.callback(context.destroy, linger=0)
        self.pool = Pool(bounds, self._on_failed, self._on_greeted)
        self._link = RouterLink(
            context, self._endpoint, max_message_bytes=terms.message_bytes, events=self.pool
        )
        stack.callback(self._link.close)
        self.pool.use(self._link)
        self.host: LocalHost | None = None
        if local:
            self.host = LocalHost(
                self._make_config,
                log_file=state_dir / LOGS / HOST_LOG,
                on_starting=self._link.expect,
                on_exit=self._on_exit,
            )
            stack.push_async_callback(self.host.stop)
        stack.callback(self.pool.close)
        silence = asyncio.create_task(_watch_silence(self.pool))
        stack.callback(silence.cancel)
        if self.host is not None:
            self.host.start()
        self.remote = None if remote is None else remote(self.pool, stack)
        self.ready = asyncio.create_task(self._get_ready(), name="worker host starts")
        stack.push_async_callback(_ended, self.ready)

    async def _get_ready(self) -> None:
        if self.host is None:
            return
        while not self.pool.hosts:
            if self.host.refusal is not None:
                raise HostUnavailable(
                    f"The worker host refuses to serve: {self.host.refusal.rstrip('.')}.",
                    hint="Run `cellblock doctor`.",
                )
            await asyncio.sleep(0.01)
        self.host.established = True

    def _make_config(self, identity: str) -> HostConfig:
        if not (self._socket_dir.path / SOCKET_NAME).is_socket():
            # Someone cleaned up: a host could never connect again.
            self._socket_dir.restore()
            self._link.bind_again()
        pool, terms = self._bounds, self._terms
        return HostConfig(
            connect=self._endpoint,
            identity=identity,
            capacity=pool.capacity,
            warm=pool.warm,
            one_at_first="warm" not in pool.model_fields_set,
            max_message_bytes=terms.message_bytes,
            isolation=terms.isolation,
            max_old_space_mb=max(16, terms.heap_mb),
            total_memory_bytes=pool.total_memory_bytes,
            reuse=terms.reuse,
        )

    def _on_greeted(self, identity: bytes) -> None:
        if self.host is not None and self._link.reaches(identity):
            self.host.greeted(identity)

    def _on_failed(self, identity: bytes, why: str) -> None:
        if self.remote is not None and self.remote.reaches(identity):
            self.remote.dismiss(identity, why)
        elif self.host is not None:
            self.host.replace(identity)

    def _on_exit(self, identity: bytes, why: str) -> None:
        self._link.forget(identity)
        self.pool.host_gone(identity, why)


async def _ended(task: asyncio.Task[None]) -> None:
    await end_tasks(task)
    if not task.cancelled():
        # Looked at, whoever has waited for it: a failure that nobody has seen would be logged at the end.
        task.exception()


async def _watch_silence(pool: Pool) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + SILENCE_CHECK_SECONDS
        await asyncio.sleep(SILENCE_CHECK_SECONDS)
        pool.check_silence(loop.time() - due)
