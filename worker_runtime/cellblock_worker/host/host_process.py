"""A host's process is confined before it serves, and its way out is an exit code."""

from __future__ import annotations

import asyncio
import logging
import os
import resource
import signal
import sys
from collections.abc import Awaitable, Callable, Coroutine, Generator
from contextlib import contextmanager, suppress
from typing import Any, Final

import zmq
from zmq import ZMQError

from cellblock_worker.base.logs import BoundedStderr
from cellblock_worker.confinement import cgroup
from cellblock_worker.confinement.bubblewrap import end_orphans
from cellblock_worker.confinement.confinement import (
    IsolationUnavailable,
    use_cgroup,
    use_isolation,
)
from cellblock_worker.confinement.selftest import SelfTestFailed, SelfTestNotMade, run_selftest
from cellblock_worker.host.host import Host
from cellblock_worker.host.host_config import CANNOT_PREFIX, EXIT_REFUSED, REFUSED_PREFIX, HostConfig
from cellblock_worker.host.warm import MAX_WARM_SHARE
from cellblock_worker.wire.endpoints import EndpointError

EXIT_FAILED: Final = 1
EXIT_USAGE: Final = 2

LINE_MAX_BYTES: Final = 64 * 1024
"""Caps what whoever starts a host tells it on stdin."""

logger = logging.getLogger("cellblock.host")


class RefusedByBroker(RuntimeError):
    """Tells that the broker will not have this host; starting it again would not help. The text says why."""


def first_line() -> bytes:
    """Returns the first line of stdin, read without a buffer: a buffered reader would swallow bytes of the lifeline,
    which the rest of stdin is."""
    line = bytearray()
    while not line.endswith(b"\n") and len(line) < LINE_MAX_BYTES:
        byte = os.read(0, 1)
        if not byte:
            break
        line += byte
    return bytes(line)


def watch_lifeline(on_end: Callable[[], object]) -> None:
    """Has `on_end` called, on the running loop, when stdin ends: who has started this process is gone then."""
    loop = asyncio.get_running_loop()

    def look() -> None:
        if not os.read(0, 4096):
            loop.remove_reader(0)
            on_end()

    os.set_blocking(0, False)
    loop.add_reader(0, look)


def run_confined(config: HostConfig, serve: Callable[[], Coroutine[Any, Any, None]]) -> int:
    """Gives this process its log, its cgroups, its isolation and as many open files as it may have, and serves.

    Returns:
        The exit code: 0 stopped, 1 it cannot start now, 2 its endpoint is wrong, 3 it will not serve, or its broker
        will not have it.
    """
    logging.basicConfig(
        level=config.log_level.upper(),
        format="%(asctime)s %(name)s %(levelname)s %(message)s",
        handlers=[BoundedStderr()],
    )
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    try:
        with _in_groups(config):
            use_isolation(config.isolation)
            if orphans := end_orphans():
                logger.info("ended %d workers that a host had left which was killed", len(orphans))
            asyncio.run(serve())
    except (EndpointError, ZMQError) as error:
        what = f"{config.connect} cannot be dialled: {error}" if isinstance(error, ZMQError) else error
        sys.stderr.write(f"cellblock_worker: {what}\n")
        return EXIT_USAGE
    except (FileNotFoundError, IsolationUnavailable, SelfTestFailed, RefusedByBroker) as error:
        # Past the buffers of sys.stderr: on a full disk they would fail once more at the exit, and change its code.
        with suppress(OSError):
            os.write(2, f"{REFUSED_PREFIX}{error}\n".encode())
        return EXIT_REFUSED
    except (OSError, SelfTestNotMade) as error:
        with suppress(OSError):
            os.write(2, f"{CANNOT_PREFIX}{error}\n".encode())
        return EXIT_FAILED
    return 0


@contextmanager
def zmq_context() -> Generator[zmq.Context[zmq.Socket[bytes]]]:
    """Gives a ZeroMQ context, which is destroyed with what is left of its sockets."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
    try:
        yield context
    finally:
        context.destroy(linger=0)


def on_signals(stop: Callable[[], object]) -> None:
    """Has `stop` called, on the running loop, on SIGTERM and SIGINT."""
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stop)


async def first_of(*events: asyncio.Event, seconds: float | None = None) -> None:
    """Waits until one of the events is set, for so many seconds at most."""
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


async def serve_tested(
    host: Host, config: HostConfig, stop: asyncio.Event, serve: Callable[[], Awaitable[None]]
) -> None:
    """Has a host serve once its isolation is tested, and stops it when `serve` ends, or `stop` is set before.

    Raises:
        SelfTestFailed, SelfTestNotMade: It does not serve.
        Exception: As `serve` raises.
    """
    loop = asyncio.get_running_loop()
    host.warm_up()
    testing = loop.create_task(run_selftest(config.max_old_space_mb, launcher=host.launcher))
    stopping = loop.create_task(stop.wait())
    try:
        await asyncio.wait((testing, stopping), return_when=asyncio.FIRST_COMPLETED)
        if testing.done():
            testing.result()
            await serve()
    finally:
        testing.cancel()
        stopping.cancel()
        await asyncio.gather(testing, stopping, return_exceptions=True)
        await host.stop()


@contextmanager
def _in_groups(config: HostConfig) -> Generator[None]:
    """Keeps this process in a cgroup of its own, with one for each worker, where machine and `isolation` allow it."""
    if config.isolation == "off":
        yield
        return
    caps = cgroup.caps_for(
        capacity=config.capacity,
        warm=MAX_WARM_SHARE * config.warm,
        boot_parallel=config.boot_parallel,
        memory_bytes=config.max_old_space_mb * cgroup.MIB,
        total_bytes=config.total_memory_bytes,
    )
    membership = cgroup.enter(caps)
    try:
        use_cgroup(membership)
        yield
    finally:
        use_cgroup(None)
        membership.leave()
