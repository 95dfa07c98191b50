"""The worker side of a broker: the pool, the socket of worker hosts, and the local host, started together."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import zmq

from cellblock.base.errors import HostUnavailable
from cellblock.base.socket_dir import SocketDir
from cellblock.base.state_dir import HOST_LOG, SOCKET_NAME
from cellblock.config.sections import PoolSettings
from cellblock.config.settings import Settings
from cellblock.workers.link.curve_link import CurveLink
from cellblock.workers.link.router import RouterLink
from cellblock.workers.pool.local_host import LocalHost
from cellblock.workers.pool.pool import Pool
from cellblock.workers.pool.remote_hosts import listen_for_hosts
from cellblock_worker.host.host import HostConfig
from cellblock_worker.scheduling import realtime
from cellblock_worker.scheduling.warm_target import MAX_WARM_SHARE, boots_at_once

SILENCE_CHECK_SECONDS: Final = 1.0

ZMQ_THREADS: Final = 2
"""Of a context: for input and output, and for closing sockets."""

ZMQ_START_BOUND_SECONDS: Final = 0.5
"""For them to run; it takes a fraction of a millisecond."""
ZMQ_LOOKS: Final = 100

MIB: Final = 1024 * 1024

logger = logging.getLogger("cellblock.pool")


@dataclass(frozen=True, slots=True)
class Workers:
    """What has been started; `remote` is None where no hosts on other machines are listened for.

    `ready` ends when the local host has greeted, and raises HostUnavailable when it refuses to serve.
    """

    pool: Pool
    host: LocalHost | None
    remote: CurveLink | None
    ready: asyncio.Task[None]


def most_warm(pool: PoolSettings) -> int:
    """Workers that the local host keeps warm after a burst."""
    return max(pool.warm, MAX_WARM_SHARE * pool.warm if pool.max_warm is None else pool.max_warm)


async def start_workers(settings: Settings, log_dir: Path, stack: contextlib.AsyncExitStack) -> Workers:
    """Starts them, and waits for none of them; `stack` stops them, in reverse order.

    Raises:
        OSError, zmq.ZMQError: A socket cannot be made.
        ConfigError: The keys for hosts on other machines cannot be used.
    """
    section = settings.cellblock
    foreign = realtime.zmq_threads() if section.pool.realtime else set[int]()
    socket_dir = SocketDir(settings.state_dir)
    stack.callback(socket_dir.close)
    endpoint = f"ipc://{socket_dir.path}/{SOCKET_NAME}"
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
    stack.callback(context.destroy, linger=0)

    remote: CurveLink | None = None

    def on_failed(identity: bytes, why: str) -> None:
        if remote is not None and remote.reaches(identity):
            remote.dismiss(identity, why)
        else:
            host.replace(identity)

    def on_greeted(identity: bytes) -> None:
        if remote is None or not remote.reaches(identity):
            host.greeted(identity)

    pool = Pool(section.pool, on_failed, on_greeted)
    link = RouterLink(context, endpoint, max_message_bytes=section.max_message_bytes, events=pool)
    stack.callback(link.close)
    pool.use(link)

    def make_config(identity: str) -> HostConfig:
        if not (socket_dir.path / SOCKET_NAME).is_socket():
            # Someone cleaned up: a host could never connect again.
            socket_dir.restore()
            link.bind_again()
        return HostConfig(
            connect=endpoint,
            identity=identity,
            capacity=section.pool.capacity,
            warm=section.pool.warm,
            max_warm=most_warm(section.pool),
            idle_warm=section.pool.warm if section.pool.idle_warm is None else section.pool.idle_warm,
            idle_after_ms=section.pool.idle_after_ms,
            boot_parallel=boots_at_once(),
            max_message_bytes=section.max_message_bytes,
            isolation=section.isolation.mode,
            seccomp=section.isolation.seccomp,
            realtime=section.pool.realtime,
            max_old_space_mb=max(16, section.limits.max_memory_bytes.maximum // MIB),
            total_memory_bytes=section.pool.total_memory_bytes,
        )

    def on_exit(identity: bytes, why: str) -> None:
        link.forget(identity)
        pool.host_gone(identity, why)

    host = LocalHost(make_config, log_file=log_dir / HOST_LOG, on_starting=link.expect, on_exit=on_exit)
    stack.push_async_callback(host.stop)
    stack.callback(pool.close)
    silence = asyncio.create_task(_watch_silence(pool))
    stack.callback(silence.cancel)
    if section.hosts.local:
        host.start()
    if section.hosts.listen is not None:
        remote = listen_for_hosts(section, pool)
        stack.callback(remote.close)
        pool.use(remote)
    claims = contextlib.ExitStack()
    stack.callback(claims.close)

    async def get_ready() -> None:
        if section.hosts.local:
            await _host_started(pool, host)
            host.established()
        if section.pool.realtime:
            claim = await _go_first(foreign, pool, contexts=1 if remote is None else 2)
            claims.callback(claim.give_back)

    ready = asyncio.create_task(get_ready(), name="worker host starts")
    stack.push_async_callback(_ended, ready)
    return Workers(pool, host if section.hosts.local else None, remote, ready)


async def _ended(task: asyncio.Task[None]) -> None:
    task.cancel()
    await asyncio.wait([task])
    if not task.cancelled():
        # Looked at, whoever has waited for it: a failure that nobody has seen would be logged at the end.
        task.exception()


async def _go_first(foreign: set[int], pool: Pool, *, contexts: int) -> realtime.Claim:
    """Claims real-time priority for this loop and ZeroMQ's threads, but for those of others."""
    for _ in range(ZMQ_LOOKS):
        if len(realtime.zmq_threads() - foreign) >= ZMQ_THREADS * contexts:
            break
        await asyncio.sleep(ZMQ_START_BOUND_SECONDS / ZMQ_LOOKS)
    claim = realtime.Claim(realtime.loop_threads() - foreign)
    refused = {claim.refused} | {
        why for hello in pool.hosts for why in hello.missing if realtime.is_refusal(why)
    }
    for why in filter(None, refused):
        logger.warning("pool.realtime has no effect, or not all of it: %s", why)
    return claim


async def _watch_silence(pool: Pool) -> None:
    loop = asyncio.get_running_loop()
    while True:
        due = loop.time() + SILENCE_CHECK_SECONDS
        await asyncio.sleep(SILENCE_CHECK_SECONDS)
        pool.check_silence(loop.time() - due)


async def _host_started(pool: Pool, host: LocalHost) -> None:
    while not pool.hosts:
        if host.refusal is not None:
            raise HostUnavailable(
                f"The worker host refuses to serve: {host.refusal}.", hint="Run `cellblock doctor`."
            )
        await asyncio.sleep(0.01)
