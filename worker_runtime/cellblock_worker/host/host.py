"""The worker host owns the workers and the DEALER, keeps workers warm, and relays between workers and broker."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections import deque
from collections.abc import Callable
from typing import Final, Literal

import zmq
from pydantic import BaseModel, ConfigDict, Field

from cellblock_worker.confinement import confinement
from cellblock_worker.launch.launching import Launcher
from cellblock_worker.scheduling.scheduling import FirstPlace
from cellblock_worker.scheduling.turns import Turns, Waiting
from cellblock_worker.scheduling.warm_target import WarmTarget
from cellblock_worker.wire import protocol
from cellblock_worker.wire.frames import FrameError, pack_header, unpack_header
from cellblock_worker.wire.keys import DialKeys, prepare_dialler
from cellblock_worker.wire.loop_socket import LoopSocket, PeerUnreachable
from cellblock_worker.wire.wire_events import watch
from cellblock_worker.worker.states import State
from cellblock_worker.worker.worker import Worker

logger = logging.getLogger("cellblock.host")

EXIT_REFUSED: Final = 3
"""Is the exit code of a host that will not serve: starting it again would not help."""

REFUSED_PREFIX: Final = "cellblock_worker refuses to serve: "
"""Begins the last line that such a host writes to its stderr."""

STATUS_INTERVAL_SECONDS: Final = 1.0
"""Sets the interval of the host's heartbeat to the broker."""

BOOT_RETRY_SECONDS: Final = 0.5
"""Sets the pause before the next spawn after a boot that failed, so that a broken machine is not spun."""

BOOT_FAILURES_TOLERATED: Final = 3
"""Bounds the boots that may fail in a row before waiting runs are told."""

REFILL_DELAY_SECONDS: Final = 0.015
"""Bounds the time from giving a worker away to booting the next, while others are warm: most short runs are over by
then."""

KEPT_FOR_LIGHT_CLIENTS: Final = 2
"""Keeps so many warm workers, at most half of the pool, from clients who compute much."""

FAREWELL_MS: Final = 500
"""Bounds the time for the last `Ended` messages to leave the socket after a stop; without it they are dropped."""

STOP_BOUND_SECONDS: Final = 3.0
"""Bounds the time from the order to stop to the last reaped worker."""


class HostConfig(BaseModel):
    """A host's configuration is what the broker tells it at its start, as one JSON line on the host's stdin.

    `connect` is the broker's ZeroMQ endpoint, `identity` the hex name the broker expects this host under.
    `warm` workers are kept booted, up to `max_warm` after a burst, `idle_warm` after `idle_after_ms` without a run.
    `total_memory_bytes` caps all workers and the host together where there are cgroups; None computes it.
    With `realtime` the host and the first moments of light clients' runs have real-time priority (see `realtime`).
    """

    model_config = ConfigDict(extra="forbid", strict=True)

    connect: str
    identity: str = Field(pattern="^[0-9a-f]{32}$")
    capacity: int = Field(ge=1)
    warm: int = Field(ge=0)
    max_warm: int = Field(default=0, ge=0)
    idle_warm: int = Field(default=1 << 16, ge=0)
    idle_after_ms: int = Field(default=60_000, ge=1)
    boot_parallel: int = Field(ge=1)
    max_message_bytes: int = Field(ge=1024)
    max_old_space_mb: int = Field(ge=16)
    total_memory_bytes: int | None = Field(default=None, ge=1)
    isolation: confinement.Isolation = "auto"
    seccomp: confinement.Seccomp = "enforce"
    realtime: bool = False
    log_level: Literal["debug", "info", "warning", "error"] = "warning"


class Host:
    """Serves one broker until told to stop.

    Args:
        config: From the broker.
        context: The ZeroMQ context to make the DEALER in; the caller terminates it.
        keys: For a broker on the network.
        on_wire: Told what becomes of the connection; None: the host ends when it is cut.

    Raises:
        EndpointError: The broker is on the network, and there are no keys.
    """

    def __init__(
        self,
        config: HostConfig,
        context: zmq.Context[zmq.Socket[bytes]],
        *,
        keys: DialKeys | None = None,
        on_wire: Callable[[zmq.Event, int], None] | None = None,
    ) -> None:
        self._config = config
        self._loop = asyncio.get_running_loop()
        self._workers: set[Worker] = set()
        self._warm: deque[Worker] = deque()
        self._runs: dict[bytes, Worker] = {}
        self._waiting = Turns()
        self._booting = 0
        self._boot_failures = 0
        self._boot_not_before = 0.0
        self._target = WarmTarget(
            full=config.warm,
            most=config.max_warm,
            floor=config.idle_warm,
            idle_after=config.idle_after_ms / 1000,
            now=time.monotonic(),
        )
        self._stopping = False
        self._refill_timer: asyncio.TimerHandle | None = None
        self._cut = False
        self._last_status: protocol.Status | None = None
        self._all_gone = asyncio.Event()
        self.launcher = Launcher(room=confinement.room())
        self._former_launchers: list[Launcher] = []
        self.stopped = asyncio.Event()
        self.dismissed: protocol.Shutdown | None = None
        dealer = context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.IDENTITY, bytes.fromhex(config.identity))
        try:
            prepare_dialler(dealer, config.connect, keys)
        except ValueError:
            dealer.close()
            raise
        self._wire = watch(dealer, on_wire or self._on_wire)
        self._socket = LoopSocket(
            dealer,
            max_message_bytes=protocol.part_cap(config.max_message_bytes),
            on_message=self._on_broker_parts,
        )
        self._first_place = FirstPlace(wanted=config.realtime)

    def warm_up(self) -> None:
        """Begins to warm workers."""
        self._balance()

    async def move(self) -> None:
        """Has workers from now on born in the room as it is by now; those that are there stay where they are."""
        launcher = Launcher(room=confinement.room())
        try:
            await launcher.opened()
        except OSError as error:
            logger.warning("workers boot in the room as it was: %s", error)
            return
        if self._stopping:
            launcher.close()
            return
        self._former_launchers.append(self.launcher)
        self.launcher = launcher
        self._end_former_launchers()

    def announce(self) -> None:
        """Connects and says hello: runs may come."""
        self.dial()
        self.greet()

    def dial(self) -> None:
        """Begins to connect. Raises zmq.ZMQError."""
        self._socket.connect(self._config.connect)

    def greet(self) -> None:
        """Says hello, and from now on that it lives."""
        self._first_place.open()
        hello = protocol.Hello(
            protocol=protocol.PROTOCOL_VERSION,
            pid=os.getpid(),
            capacity=self._config.capacity,
            deno=confinement.deno_binary(),
            layers=confinement.layers_in_force(in_room=self.launcher.room is not None),
            missing=[*confinement.layers_missing(), *self._first_place.missing],
            message_bytes=self._config.max_message_bytes,
            heap_mb=self._config.max_old_space_mb,
        )
        self._send(b"", hello)
        self._heartbeat()

    async def stop(self) -> None:
        """Kills every worker, waits for their exits within `STOP_BOUND_SECONDS`, and closes the socket."""
        if self._stopping:
            await self.stopped.wait()
            return
        self._stopping = True
        for waiting in self._waiting.clear():
            self._send(waiting.token, protocol.Ended(reason="host_stopping"))
        for worker in list(self._workers):
            worker.kill("host_stopping")
        if self._workers:
            self._all_gone.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_gone.wait(), STOP_BOUND_SECONDS)
        self._socket.close(linger_ms=FAREWELL_MS)
        self._wire.close()
        self._first_place.close()
        for launcher in (self.launcher, *self._former_launchers):
            launcher.close()
        self.stopped.set()

    def _on_wire(self, event: zmq.Event, _value: int) -> None:
        """Ends this host when the connection is cut: what was on the wire is lost, and nobody can say what it was."""
        if event is not zmq.Event.DISCONNECTED or self._stopping:
            return
        logger.error("the connection to the broker was cut")
        # Before the workers are killed: ZeroMQ would connect again and tell their ends as if nothing were missing.
        self._cut = True
        self._socket.close()
        self._stop_task = self._loop.create_task(self.stop())

    # ---- what workers tell (WorkerOwner) -------------------------------------------------------------

    def worker_ready(self, worker: Worker) -> None:
        """Gives a worker that has booted to the longest waiting run, or keeps it warm."""
        self._booting -= 1
        self._boot_failures = 0
        self._warm.append(worker)
        self._serve_waiting()
        self._balance()

    def worker_says(self, worker: Worker, raw_header: bytes, body: bytes) -> None:
        """Relays a message of a run as it is."""
        self._relay(worker.token, raw_header, body)

    def worker_computes(self, worker: Worker, cpu_seconds: float) -> bool:
        """Counts what a run has used before its end: its client may have begun others meanwhile."""
        now = time.monotonic()
        self._waiting.used(worker.lane, cpu_seconds, now)
        return self._waiting.gives_way(worker.lane, now)

    def worker_ended(self, worker: Worker, ended: protocol.Ended, stderr: bytes) -> None:
        """Tells the broker that a run is over."""
        self._runs.pop(worker.token, None)
        self._waiting.ended(worker.lane, ended.cpu_ms / 1000, worker.cpu_reported, time.monotonic())
        self._send(worker.token, ended, stderr)

    def worker_gone(self, worker: Worker) -> None:
        """Forgets a worker that is reaped; a boot that failed counts."""
        self._workers.discard(worker)
        if not self._workers:
            self._all_gone.set()
        with contextlib.suppress(ValueError):
            self._warm.remove(worker)
        self._end_former_launchers()
        if not worker.was_ready:
            self._booting -= 1
            if self._stopping:
                return
            what = f"worker {worker.pid} did not boot" if worker.pid else "cannot spawn a worker"
            self._boot_failed(f"{what}: {worker.detail}")
        self._balance()

    def _end_former_launchers(self) -> None:
        """Closes those whose workers are gone."""
        used = {worker.launcher for worker in self._workers}
        for launcher in self._former_launchers[:]:
            if launcher not in used:
                self._former_launchers.remove(launcher)
                launcher.close()

    # ---- what the broker says ------------------------------------------------------------------------

    def _on_broker_parts(self, parts: list[bytes]) -> None:
        try:
            if len(parts) != 3:
                raise FrameError(f"{len(parts)} parts")
            token, raw_header, body = parts
            message = protocol.parse_to_host(unpack_header(raw_header))
        except FrameError as error:
            # The broker is trusted with this host's life, not with its stability.
            logger.error("dropped a malformed message of the broker: %s", error)
            return
        match message:
            case protocol.Run():
                now = time.monotonic()
                self._target.used(now)
                self._waiting.join(Waiting(token, message, body, now))
                self._serve_waiting()
                self._refill()
            case protocol.Reply():
                if (worker := self._runs.get(token)) is not None:
                    worker.deliver(raw_header, body)
            case protocol.Pause() | protocol.Resume():
                if (worker := self._runs.get(token)) is not None and not worker.hold_clock(message):
                    logger.error("dropped a %s of the broker that does not fit the run's clock", message.t)
            case protocol.Cancel():
                self._cancel(token)
            case protocol.Pool():
                self._target.full = message.warm
                self._balance()
            case protocol.Shutdown():
                self.dismissed = message
                self._stop_task = self._loop.create_task(self.stop())

    def _cancel(self, token: bytes) -> None:
        if (worker := self._runs.get(token)) is not None:
            worker.kill("cancelled")
            return
        if self._waiting.leave(token):
            self._send(token, protocol.Ended(reason="cancelled", detail="no worker yet"))

    # ---- the pool ------------------------------------------------------------------------------------

    def _serve_waiting(self) -> None:
        while self._waiting and self._warm and not self._stopping:
            if self._warm[0].state is not State.WARM:
                self._warm.popleft()
                continue
            # A pool of one worker has none to keep for anyone.
            keep = min(KEPT_FOR_LIGHT_CLIENTS, self._target.full // 2)
            turn = self._waiting.take(len(self._warm), time.monotonic(), keep=keep)
            if turn is None:
                return
            worker = self._warm.popleft()
            token, run, body, since = turn
            self._runs[token] = worker
            now = time.monotonic()
            wait_ms = int((now - since) * 1000)
            goes_first = self._first_place.is_free and self._waiting.goes_first(run.lane, now)
            gives_way = self._waiting.gives_way(run.lane, now)
            worker.lease(token, run, body, gives_way=gives_way, goes_first=goes_first)
            self._first_place.note(worker)
            # After it: the script is on its way while the broker wakes for this.
            self._send(token, protocol.Leased(wait_ms=wait_ms))

    def _balance(self) -> None:
        """Boots workers until warm and booting ones cover the target and the waiting runs."""
        if self._stopping:
            return
        wanted = self._target.at(time.monotonic()) + len(self._waiting)
        while len(self._warm) + self._booting < wanted and self._booting < self._config.boot_parallel:
            pause = self._boot_not_before - time.monotonic()
            if pause > 0:
                self._loop.call_later(pause, self._balance)
                return
            if not self._spawn():
                return

    def _shed(self) -> None:
        """Kills warm workers that an idle host is to keep no longer."""
        while self._warm and len(self._warm) > self._target.at(time.monotonic()) + len(self._waiting):
            self._warm.pop().kill("host_stopping")

    def _refill(self) -> None:
        """Replaces a worker that was taken: at once if none is left, else when its run had time to be over.

        A spawn holds this loop for a millisecond and a boot takes a core, which a short run would wait for.
        """
        if self._waiting or not self._warm:
            self._balance()
        elif self._refill_timer is None:
            self._refill_timer = self._loop.call_later(REFILL_DELAY_SECONDS, self._refill_now)

    def _refill_now(self) -> None:
        self._refill_timer = None
        self._balance()

    def _spawn(self) -> bool:
        self._first_place.vacate()
        try:
            worker = Worker(
                self,
                max_frame_bytes=self._config.max_message_bytes,
                max_old_space_mb=self._config.max_old_space_mb,
                # A run that waits for this worker would wait for the rehearsal, too.
                rehearse=not self._waiting,
            )
        except OSError as error:
            self._boot_failed(f"cannot spawn a worker: {error}")
            self._loop.call_later(BOOT_RETRY_SECONDS, self._balance)
            return False
        self._workers.add(worker)
        self._booting += 1
        return True

    def _boot_failed(self, detail: str) -> None:
        logger.error("%s", detail)
        self._boot_failures += 1
        self._boot_not_before = time.monotonic() + BOOT_RETRY_SECONDS
        if self._boot_failures >= BOOT_FAILURES_TOLERATED and not self._stopping:
            for waiting in self._waiting.clear():
                self._send(waiting.token, protocol.Ended(reason="boot_failed", detail=detail))

    # ---- the wire ------------------------------------------------------------------------------------

    def _heartbeat(self) -> None:
        if self._stopping:
            return
        status = protocol.Status(
            warm=len(self._warm),
            booting=self._booting,
            running=len(self._runs),
            wanted=self._target.at(time.monotonic()),
        )
        self._send(b"", status)
        self._shed()
        self._loop.call_later(STATUS_INTERVAL_SECONDS, self._heartbeat)

    def _send(self, token: bytes, message: protocol.Message, body: bytes = b"") -> None:
        self._relay(token, pack_header(message.model_dump()), body)

    def _relay(self, token: bytes, raw_header: bytes, body: bytes) -> None:
        if self._cut:
            return
        try:
            self._socket.send((token, raw_header, body))
        except PeerUnreachable as error:
            logger.error("the broker does not read: %s", error)
            if not self._stopping:
                self._stop_task = self._loop.create_task(self.stop())
