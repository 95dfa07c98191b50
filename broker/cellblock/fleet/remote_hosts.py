"""Decides which worker hosts on other machines are taken, and on what terms; and owns the process that has hosts
started on a Ray cluster: start, report, restart, stop."""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import importlib.util
import json
import logging
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

import zmq

from cellblock.base.errors import ConfigError
from cellblock.base.json import is_object
from cellblock.base.settings.hosts import HostSettings, RaySettings
from cellblock.base.settings.sections import PoolSettings
from cellblock.base.state_dir import LOGS, RAY_LOG
from cellblock.base.tasks import end_tasks
from cellblock.fleet.curve_link import CurveLink
from cellblock.pool.local_host import STABLE_SECONDS, ended, open_log, restart_pause
from cellblock.pool.pool import Pool
from cellblock.pool.start import Terms
from cellblock_worker.launch.spawning import passed_environment, spawn
from cellblock_worker.wire import protocol
from cellblock_worker.wire.endpoints import EndpointError
from cellblock_worker.wire.keys import KeyFileError, KeyPair, make_pair, pair_of, read_key_file

NAMESPACES: Final = "namespaces"
SECCOMP: Final = "seccomp"
"""Begins an entry of a host's `missing` that has no bubblewrap."""

ON_RAY: Final = b"cellblock: the pair of hosts on Ray"

logger = logging.getLogger("cellblock.ray")

REPORT_SECONDS: Final = 1.0
"""Sets the pause between two reports."""

ANSWER_SECONDS: Final = 120.0
"""Bounds the wait for an answer; before the first one, Ray is connected to and an actor started."""

SHRINK_SECONDS: Final = 60.0
"""Sets how long fewer hosts must have been enough before one is stopped."""

DRAIN_SECONDS: Final = 60
"""Bounds how long the runs of a stopping host may continue."""

SAID_CHARS: Final = 1_000
"""Bounds what is logged of an answer: whoever runs jobs on the cluster can answer."""

ENVIRONMENT: Final = ("HOME", "TMPDIR")
"""Names what the process gets of the broker's environment, beside what begins with `RAY_`: no server's credential."""


def open_hosts(
    hosts: HostSettings,
    bounds: PoolSettings,
    terms: Terms,
    state_dir: Path,
    pool: Pool,
    stack: contextlib.AsyncExitStack,
) -> CurveLink:
    """Opens the wire for hosts on other machines, and has Ray start some where that is configured; `stack` ends both.

    Raises:
        ConfigError: The keys, the endpoint or Ray cannot be used.
    """
    own = own_pair(hosts)
    on_ray: RayHosts | None = None
    if hosts.ray is not None:
        on_ray = RayHosts(
            hosts.ray,
            bounds,
            own.public,
            pair_on_ray(own),
            terms,
            # What has no place on this machine.
            load=lambda: max(0, pool.running + pool.queued - bounds.capacity * hosts.local),
            log_file=state_dir / LOGS / RAY_LOG,
        )
        stack.push_async_callback(on_ray.stop)
    link = listen_for_hosts(hosts, own, terms, pool)
    stack.callback(link.close)
    pool.use(link)
    if on_ray is not None:
        on_ray.start(link.endpoint)
    return link


def own_pair(hosts: HostSettings) -> KeyPair:
    """Reads the broker's pair, or makes one where only hosts on Ray are to know it. Raises ConfigError."""
    if hosts.key is None:
        return make_pair()
    try:
        return read_key_file(hosts.key.expanduser())
    except KeyFileError as error:
        raise ConfigError(
            f"cellblock.hosts.key: {error}.", hint="Correct the file or its permissions."
        ) from None


def pair_on_ray(own: KeyPair) -> KeyPair:
    """Returns the pair of a broker's hosts on Ray: brokers that share a key file share the hosts, and nobody keeps two
    secrets. The broker's secret cannot be found by it."""
    return pair_of(hashlib.blake2b(ON_RAY, key=own.secret, digest_size=32).digest())


def listen_for_hosts(hosts: HostSettings, own: KeyPair, terms: Terms, pool: Pool) -> CurveLink:
    """Opens the wire for hosts on other machines; the caller closes it.

    Raises:
        ConfigError: The endpoint cannot be used.
    """
    assert hosts.listen is not None
    allowed = {key: name for name, key in hosts.allowed_keys.items()}
    if hosts.ray is not None:
        allowed[pair_on_ray(own).public] = "hosts on Ray"
    try:
        return CurveLink(
            hosts.listen,
            own=own,
            allowed=allowed,
            max_message_bytes=terms.message_bytes,
            events=pool,
            judge=lambda hello: refusal(hello, terms),
            on_gone=pool.host_gone,
        )
    except (EndpointError, zmq.ZMQError) as error:
        raise ConfigError(
            f"cellblock.hosts.listen: {hosts.listen} cannot be listened on: {error}.",
            hint="Use an address of this machine and a port that is free.",
        ) from None


def refusal(hello: protocol.Hello, terms: Terms) -> str | None:
    """Says why a host is not taken, with what to change, or None."""
    if hello.message_bytes < terms.message_bytes:
        return (
            f"it takes messages of up to {hello.message_bytes} bytes, this broker sends up to "
            f"{terms.message_bytes}: start it with --max-message-bytes {terms.message_bytes}"
        )
    if hello.heap_mb < terms.heap_mb:
        return (
            f"its workers have {hello.heap_mb} MiB, scripts here may have {terms.heap_mb}: "
            f"start it with --max-memory-mb {terms.heap_mb}"
        )
    if terms.isolation == "required":
        for layer in hello.missing:
            if layer.startswith(NAMESPACES):
                return 'it has no namespaces around its workers, and this broker\'s isolation is "required"'
            if layer.startswith(SECCOMP):
                return f'its workers lack {layer}; this broker\'s isolation is "required"'
    return None


class RayHosts:
    """Reports this broker's runs to the cluster until `stop`, by a process that is started again when it ends.

    Args:
        settings: Of the cluster.
        pool: Of each host.
        server: The broker's public key.
        pair: The hosts' key pair.
        terms: What every host must do.
        load: Says how many runs have a place, or wait for one, that local places do not suffice for.
        log_file: Where the process's stderr goes, appended.

    Raises:
        ConfigError: Ray is not installed.
    """

    def __init__(
        self,
        settings: RaySettings,
        pool: PoolSettings,
        server: str,
        pair: KeyPair,
        terms: Terms,
        load: Callable[[], int],
        log_file: Path,
    ) -> None:
        command, ours = settings.command, [sys.executable, "-m", "cellblock.fleet.ray"]
        if command == "same-user" and importlib.util.find_spec("ray") is None:
            raise ConfigError(
                "cellblock.hosts.ray is given, and Ray is not installed.",
                hint="pip install 'cellblock[ray]'",
            )
        self._command = ours if command == "same-user" else command
        self._told = _told(settings, pool, server, pair, terms)
        self._load = load
        self._log_file = log_file
        self._process: asyncio.subprocess.Process | None = None
        self._task: asyncio.Task[None] | None = None
        self._said = ""

    def start(self, endpoint: str) -> None:
        """Starts the process and the task that talks to it; hosts find this broker at `endpoint`."""
        self._told["endpoint"] = endpoint
        self._task = asyncio.create_task(self._keep_running(), name="hosts on Ray")

    async def stop(self) -> None:
        """Has the hosts end, if no other broker uses them, and ends the process; within `STOP_BOUND_SECONDS`."""
        await end_tasks(self._task)
        process = self._process
        if process is not None and process.stdin is not None:
            with contextlib.suppress(OSError):
                process.stdin.write(b"leave\n")
            await ended(process)

    async def _keep_running(self) -> None:
        failures = 0
        loop = asyncio.get_running_loop()
        while True:
            began = loop.time()
            try:
                await self._run_once()
            except TimeoutError:
                self._say("Ray gives no answer", failed=True)
            except (OSError, ValueError, RecursionError) as error:
                # ValueError: an answer is no JSON, or has no end.
                self._say(f"they cannot be asked for: {error}", failed=True)
            if self._process is not None:
                await ended(self._process)
            failures = 0 if loop.time() - began > STABLE_SECONDS else failures + 2
            await asyncio.sleep(REPORT_SECONDS + restart_pause(failures))

    async def _run_once(self) -> None:
        environment = passed_environment() | {
            name: value
            for name, value in os.environ.items()
            if name in ENVIRONMENT or name.startswith("RAY_")
        }
        with contextlib.ExitStack() as stack:
            self._process = await spawn(
                *self._command,
                stdin=asyncio.subprocess.PIPE,
                stdout=asyncio.subprocess.PIPE,
                stderr=open_log(self._log_file, stack),
                env=environment,
                cwd="/",
                start_new_session=True,
            )
        process = self._process
        assert process.stdin is not None and process.stdout is not None
        process.stdin.write(json.dumps(self._told).encode() + b"\n")
        while True:
            process.stdin.write(f"{self._load()}\n".encode())
            async with asyncio.timeout(ANSWER_SECONDS):
                line = await process.stdout.readline()
            if not line:
                raise ConnectionError(f"the process has ended; see {self._log_file}")
            answer: object = json.loads(line)
            if not is_object(answer):
                raise ValueError("an answer is no object")
            what = str(answer.get("failed") or answer.get("said") or "")
            self._say(what[:SAID_CHARS], failed="failed" in answer)
            await asyncio.sleep(REPORT_SECONDS)

    def _say(self, what: str, *, failed: bool) -> None:
        """Logs a state of the hosts on Ray once, when it is new."""
        if what != self._said:
            self._said = what
            logger.log(logging.ERROR if failed else logging.WARNING, "hosts on Ray: %s", what)


def _told(
    settings: RaySettings, pool: PoolSettings, server: str, pair: KeyPair, terms: Terms
) -> dict[str, Any]:
    """Returns the line that the process for Ray is told first."""
    arguments: dict[str, Any] = {
        "--server-key": server,
        "--capacity": pool.capacity,
        "--warm": pool.warm,
        "--drain": DRAIN_SECONDS,
        "--isolation": terms.isolation,
        "--max-message-bytes": terms.message_bytes,
        "--max-memory-mb": max(16, terms.heap_mb),
    }
    return {
        "settings": settings.model_dump(mode="json"),
        "capacity": pool.capacity,
        "shrink_seconds": SHRINK_SECONDS,
        "secret": pair.secret.hex(),
        "arguments": [str(word) for argument in arguments.items() for word in argument],
    }
