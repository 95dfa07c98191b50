"""`python -m cellblock_worker --connect tcp://…` runs a worker host that dials a broker on another machine.

It greets once the CURVE handshake is over. When the connection is lost, the broker gives up this host's runs, and so
does the host: it kills its workers and comes back under a new identity.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import secrets
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import zmq
from pydantic import ValidationError

from cellblock_worker.confinement import confinement
from cellblock_worker.confinement.selftest import run_selftest
from cellblock_worker.host.deno_dir import DenoDir
from cellblock_worker.host.host import Host, HostConfig
from cellblock_worker.host.host_process import EXIT_USAGE, RefusedByBroker, run_confined
from cellblock_worker.launch.launching import Launcher
from cellblock_worker.scheduling.warm_target import MAX_WARM_SHARE, boots_at_once
from cellblock_worker.wire.endpoints import EndpointError, check_tcp
from cellblock_worker.wire.keys import DialKeys, KeyFileError, parse_public_key, read_key_file
from cellblock_worker.wire.wire_events import explain

logger = logging.getLogger("cellblock.host")

RETURN_PAUSE_SECONDS: Final = 0.5
"""Bounds the time from losing a broker to dialling again; ZeroMQ itself then retries with longer and longer pauses."""

LOG_INTERVAL_SECONDS: Final = 10.0
"""Sets the pause between two lines about a broker that cannot be reached."""


class RemoteHost:
    """Serves one broker over TCP until `stop`.

    Args:
        config: `identity` is replaced at each connection.
        keys: This host's, and the broker's public one.
        context: The ZeroMQ context; the caller terminates it.
    """

    def __init__(self, config: HostConfig, keys: DialKeys, context: zmq.Context[zmq.Socket[bytes]]) -> None:
        self._config = config
        self._keys = keys
        self._context = context
        self._host: Host | None = None
        self._greeted = False
        self._lost = asyncio.Event()
        self._stop = asyncio.Event()
        self._may_log_at = 0.0

    def stop(self) -> None:
        """Ends `serve`."""
        self._stop.set()

    async def serve(self) -> None:
        """Connects again and again.

        Raises:
            RefusedByBroker: It said that it will not have this host.
            zmq.ZMQError: The endpoint cannot be dialled at all.
        """
        deno_dir = DenoDir(None, self._config.max_old_space_mb, self._move)
        filling = asyncio.get_running_loop().create_task(deno_dir.serve())
        try:
            while not self._stop.is_set():
                await self._serve_once()
                if not self._stop.is_set():
                    await _first(self._stop, seconds=RETURN_PAUSE_SECONDS)
        finally:
            filling.cancel()
            await asyncio.gather(filling, return_exceptions=True)
            deno_dir.close()

    async def _move(self) -> None:
        if self._host is not None:
            await self._host.move()

    async def _serve_once(self) -> None:
        self._greeted = False
        self._lost.clear()
        config = self._config.model_copy(update={"identity": secrets.token_hex(16)})
        host = Host(config, self._context, keys=self._keys, on_wire=self._on_wire)
        self._host = host
        try:
            host.warm_up()
            host.dial()
            await _first(self._stop, self._lost, host.stopped)
        finally:
            self._host = None
            await host.stop()
        if host.dismissed is not None:
            if host.dismissed.final:
                raise RefusedByBroker(host.dismissed.why)
            logger.error("the broker has given this host up: %s", host.dismissed.why)

    def _on_wire(self, event: zmq.Event, value: int) -> None:
        if self._host is None:
            return
        match event:
            case zmq.Event.HANDSHAKE_SUCCEEDED:
                if self._greeted:
                    # A connection behind this host's back: the broker has dropped its runs.
                    self._lost.set()
                    return
                logger.warning("connected to the broker at %s", self._config.connect)
                self._greeted = True
                self._host.greet()
            case zmq.Event.DISCONNECTED if self._greeted:
                logger.error("the connection to the broker is lost: its runs end here")
                self._lost.set()
            case zmq.Event.CONNECT_RETRIED:
                self._say_now_and_then("the broker does not answer")
            case _:
                mine = self._keys.own.public
                self._say_now_and_then(
                    f"{explain(event, value)}: check --server-key, and that the broker allows {mine}"
                )

    def _say_now_and_then(self, why: str) -> None:
        if time.monotonic() >= self._may_log_at:
            self._may_log_at = time.monotonic() + LOG_INTERVAL_SECONDS
            logger.error("no connection to the broker at %s yet: %s", self._config.connect, why)


async def _first(*events: asyncio.Event, seconds: float | None = None) -> None:
    """Waits until one of the events is set, at most so long."""
    tasks = [asyncio.ensure_future(event.wait()) for event in events]
    try:
        await asyncio.wait(tasks, timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
    finally:
        for task in tasks:
            task.cancel()


def make_parser() -> argparse.ArgumentParser:
    """Returns the parser of the arguments; secrets are none of them."""
    parser = argparse.ArgumentParser(
        prog="python -m cellblock_worker",
        description="Runs scripts for a broker on another machine, over CURVE-encrypted TCP.",
    )
    parser.add_argument(
        "--connect", required=True, metavar="tcp://HOST:PORT", help="the broker's hosts.listen"
    )
    parser.add_argument(
        "--key", type=Path, metavar="FILE", help="this host's pair, made by `cellblock keygen`"
    )
    parser.add_argument("--server-key", metavar="HEX", help="the broker's public key, 64 digits")
    parser.add_argument(
        "--capacity", type=int, default=16, metavar="N", help="runs at the same time (default 16)"
    )
    parser.add_argument("--warm", type=int, default=4, metavar="N", help="workers kept booted (default 4)")
    parser.add_argument(
        "--isolation", choices=("required", "auto", "off"), default="auto", help="bubblewrap (default auto)"
    )
    parser.add_argument(
        "--seccomp",
        choices=("enforce", "log"),
        default="enforce",
        help="what becomes of system calls that Deno was not seen to need (default enforce: they are refused)",
    )
    parser.add_argument(
        "--max-message-bytes",
        type=int,
        default=16 * 1024 * 1024,
        metavar="N",
        help="at least the broker's max_message_bytes (default 16 MiB)",
    )
    parser.add_argument(
        "--max-memory-mb",
        dest="max_old_space_mb",
        type=int,
        default=256,
        metavar="N",
        help="at least the broker's limits.max_memory_bytes.maximum (default 256)",
    )
    parser.add_argument(
        "--realtime",
        action="store_true",
        help="brief runs go first (see pool.realtime of the broker)",
    )
    parser.add_argument("--log-level", choices=("debug", "info", "warning", "error"), default="warning")
    return parser


def read_arguments(arguments: Sequence[str]) -> tuple[HostConfig, DialKeys]:
    """Checks everything that can be checked before a connection.

    Raises:
        EndpointError: The endpoint is no TCP address, or a key is missing.
        KeyFileError: A key cannot be used.
        ValidationError: A number is out of its range.
    """
    given = vars(make_parser().parse_args(arguments))
    endpoint, key, server_key = given["connect"], given.pop("key"), given.pop("server_key")
    check_tcp(endpoint)
    if key is None or server_key is None:
        raise EndpointError(f"{endpoint} is used only with keys: give --key and --server-key")
    try:
        server = parse_public_key(server_key)
    except KeyFileError as error:
        raise KeyFileError(f"--server-key: {error}") from None
    keys = DialKeys(read_key_file(key), server)
    warm = {"max_warm": MAX_WARM_SHARE * given["warm"], "boot_parallel": boots_at_once()}
    config = HostConfig(identity="0" * 32, **warm, **given)
    return config, keys


async def serve(config: HostConfig, keys: DialKeys) -> None:
    """Tests the isolation, then serves until SIGTERM or SIGINT. Raises as `RemoteHost.serve`, and SelfTestFailed."""
    loop = asyncio.get_running_loop()
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
    try:
        remote = RemoteHost(config, keys, context)
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, remote.stop)
        launcher = Launcher(room=confinement.room())
        try:
            await run_selftest(config.max_old_space_mb, launcher=launcher)
        finally:
            launcher.close()
        await remote.serve()
    finally:
        context.destroy(linger=0)


def main(arguments: Sequence[str]) -> int:
    """Serves. Returns the exit code: 0 stopped, 2 wrong usage, 3 it will not serve or the broker will not have it."""
    try:
        config, keys = read_arguments(arguments)
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        sys.stderr.write(f"cellblock_worker: {first['loc'][0]}: {first['msg']}\n")
        return EXIT_USAGE
    except (EndpointError, KeyFileError) as error:
        sys.stderr.write(f"cellblock_worker: {error}\n")
        return EXIT_USAGE
    return run_confined(config, lambda: serve(config, keys))
