"""The worker host owns the workers, keeps some warm, and relays between them and its broker, or its brokers."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import os
import time
from collections.abc import Callable
from functools import partial
from typing import Final

import zmq

from cellblock_worker.confinement import confinement
from cellblock_worker.host.host_config import HostConfig
from cellblock_worker.host.places import Places
from cellblock_worker.host.reusable import ReusableWorkers
from cellblock_worker.host.warm import Turns, Waiting, WarmTarget, WarmWorkers
from cellblock_worker.launch.launching import Launcher
from cellblock_worker.wire import protocol
from cellblock_worker.wire.frames import FrameError
from cellblock_worker.wire.keys import DialKeys, prepare_dialler
from cellblock_worker.wire.loop_socket import LoopSocket, PeerUnreachable, Watch
from cellblock_worker.worker.worker import Worker


class BrokerLink:
    """Owns the DEALER socket to one broker; it is not dialled yet.

    Args:
        endpoint: The broker's.
        identity: 16 bytes that name this host there.
        context: The ZeroMQ context; the caller terminates it.
        max_message_bytes: Cap of one message.
        keys: For a broker on the network.
        on_parts: Given what the broker says.
        on_wire: Told what becomes of the connection.

    Attributes:
        socket: Sends and receives.
        dismissed: How the broker has sent this host away.

    Raises:
        EndpointError: The broker is on the network, and there are no keys.
    """

    def __init__(
        self,
        endpoint: str,
        identity: bytes,
        context: zmq.Context[zmq.Socket[bytes]],
        *,
        max_message_bytes: int,
        keys: DialKeys | None,
        on_parts: Callable[[BrokerLink, list[bytes]], None],
        on_wire: Callable[[BrokerLink, zmq.Event, int], None],
    ) -> None:
        self.endpoint = endpoint
        self.dismissed: protocol.Shutdown | None = None
        self.closed = False
        dealer = context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.IDENTITY, identity)
        try:
            prepare_dialler(dealer, endpoint, keys)
        except ValueError:
            dealer.close()
            raise
        self._wire = Watch(dealer, partial(on_wire, self))
        self.socket = LoopSocket(
            dealer,
            max_message_bytes=protocol.part_cap(max_message_bytes),
            on_message=partial(on_parts, self),
        )

    def dial(self) -> None:
        """Begins to connect to the broker. Raises zmq.ZMQError."""
        self.socket.connect(self.endpoint)

    def close(self, *, linger_ms: int = 0) -> None:
        """Closes the socket; what is not sent after `linger_ms` is lost."""
        if not self.closed:
            self.closed = True
            self._wire.close()
            self.socket.close(linger_ms=linger_ms)


logger = logging.getLogger("cellblock.host")

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

GRANT_BOUND_SECONDS: Final = 10.0
"""Bounds the time for a broker to repeat a grant, which it does at once; meanwhile others cannot have those places."""

LASTS_SECONDS: Final = 0.01
"""Sets when a run lasts whose worker has said nothing yet: its broker then hears that it has one. Most runs are over in
half of it, and their end says so, too."""

STOP_BOUND_SECONDS: Final = 3.0
"""Bounds the time from the order to stop to the last reaped worker."""


class Host:
    """Serves brokers with workers until it is told to stop.

    Args:
        config: From the broker; the endpoint and identity are those of `announce`.
        context: The ZeroMQ context to make sockets in; the caller terminates it.
        on_lost: Told that a link is closed, its runs ended, and why: the host has several brokers, which share its
            places. None: it has one, and ends with the connection to it.
    """

    def __init__(
        self,
        config: HostConfig,
        context: zmq.Context[zmq.Socket[bytes]],
        on_lost: Callable[[BrokerLink, str], None] | None = None,
    ) -> None:
        self._config = config
        self._context = context
        self._on_lost = on_lost
        self._links: set[BrokerLink] = set()
        self._link_of: dict[bytes, BrokerLink] = {}
        self.places: Places[BrokerLink] | None = None
        if on_lost is not None:
            self.places = Places(config.capacity, self._grant, time.monotonic)
        self._loop = asyncio.get_running_loop()
        self._workers: set[Worker] = set()
        self._runs: dict[bytes, Worker] = {}
        self._lease_notices: dict[bytes, asyncio.TimerHandle] = {}
        self._reusable = ReusableWorkers(self._serve)
        self._key_prefix = ""
        self._waiting = Turns()
        self._booting = 0
        self._warm = WarmWorkers(may_last=confinement.use_contexts(config.reuse))
        self.has_journals = False
        self._boot_failures = 0
        self._boot_not_before = 0.0
        self._target = WarmTarget(config.warm, time.monotonic(), one_at_first=config.one_at_first)
        self._stopping = False
        self._refill_timer: asyncio.TimerHandle | None = None
        self._is_announced = False
        self._all_gone = asyncio.Event()
        self.launcher = Launcher(jail=confinement.jail())
        self.stopped = asyncio.Event()

    def warm_up(self) -> None:
        self._balance()

    def announce(self) -> None:
        """Connects to the configured broker and says hello: runs may come. Raises as `link`."""
        self.greet(self.link(self._config.connect, bytes.fromhex(self._config.identity), self._on_wire))

    def link(
        self,
        endpoint: str,
        identity: bytes,
        on_wire: Callable[[BrokerLink, zmq.Event, int], None],
        keys: DialKeys | None = None,
    ) -> BrokerLink:
        """Begins to connect to a broker.

        Args:
            endpoint: The broker's.
            identity: 16 bytes that no other link there has or had.
            on_wire: Told what becomes of the connection.
            keys: For a broker on the network.

        Raises:
            EndpointError: The broker is on the network, and there are no keys.
            zmq.ZMQError: The endpoint cannot be dialled.
        """
        link = BrokerLink(
            endpoint,
            identity,
            self._context,
            max_message_bytes=self._config.max_message_bytes,
            keys=keys,
            on_parts=self._on_broker_parts,
            on_wire=on_wire,
        )
        self._links.add(link)
        link.dial()
        return link

    def greet(self, link: BrokerLink) -> None:
        """Says hello to a broker that is connected, and from now on that this host lives."""
        is_first, self._is_announced = not self._is_announced, True
        hello = protocol.Hello(
            protocol=protocol.PROTOCOL_VERSION,
            pid=os.getpid(),
            capacity=self._config.capacity,
            deno=confinement.deno_binary(),
            layers=confinement.layers_in_force(in_jail=self.launcher.jail is not None),
            missing=confinement.layers_missing(),
            message_bytes=self._config.max_message_bytes,
            heap_mb=self._config.max_old_space_mb,
            shared=self.places is not None,
        )
        self._relay(link, b"", hello.packed())
        if self.places is not None:
            self.places.join(link)
        if is_first:
            self._heartbeat()

    def lose(self, link: BrokerLink, why: str) -> None:
        """Closes the link to a broker, which has given up its runs here: their workers are killed. With an only broker,
        the host stops."""
        if link.closed or self._stopping:
            return
        # Before the workers are killed: ZeroMQ would connect again and tell their ends as if nothing were missing.
        link.close()
        self._links.discard(link)
        if self._on_lost is None or self.places is None:
            self._stop_task = self._loop.create_task(self.stop())
            return
        for token, owner in list(self._link_of.items()):
            if owner is link:
                self._cancel(token)
        self.places.leave(link)
        self._on_lost(link, why)

    async def stop(self) -> None:
        """Kills every worker, waits for their exits within `STOP_BOUND_SECONDS`, and closes the socket."""
        if self._stopping:
            await self.stopped.wait()
            return
        self._stopping = True
        for waiting in (*self._waiting.clear(), *self._reusable.clear()):
            self._end(waiting.token, protocol.Ended(reason="host_stopping"))
        for worker in list(self._workers):
            worker.kill("host_stopping")
        if self._workers:
            self._all_gone.clear()
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._all_gone.wait(), STOP_BOUND_SECONDS)
        for link in self._links:
            link.close(linger_ms=FAREWELL_MS)
        self.launcher.close()
        self.stopped.set()

    def _on_wire(self, link: BrokerLink, event: zmq.Event, _value: int) -> None:
        """Ends this host when the connection is cut: what was on the wire is lost, and nobody can say what it was."""
        if event is zmq.Event.DISCONNECTED and not self._stopping:
            logger.error("the connection to the broker was cut")
            self.lose(link, "the connection was cut")

    # ---- what workers tell (WorkerOwner) -------------------------------------------------------------

    def worker_ready(self, worker: Worker) -> None:
        """Gives a worker that has booted to the longest waiting run, or keeps it warm."""
        self._booting -= 1
        self._boot_failures = 0
        self._warm.put(worker)
        self._serve_waiting()
        self._balance()

    def worker_says(self, worker: Worker, raw_header: bytes, body: bytes) -> None:
        """Relays a message of a run as it is."""
        if (link := self._link_of.get(worker.token)) is not None:
            if worker.token in self._lease_notices:
                self._drop_notice(worker.token)
            self._relay(link, worker.token, raw_header, body)

    def worker_computes(self, worker: Worker, cpu_seconds: float) -> bool:
        """Counts what a run has used before its end: its client may have begun others meanwhile."""
        now = time.monotonic()
        self._waiting.used(worker.lane, cpu_seconds, now)
        return self._waiting.gives_way(worker.lane, now)

    def worker_ended(self, worker: Worker, ended: protocol.Ended, body: bytes) -> None:
        self._runs.pop(worker.token, None)
        self._waiting.used(worker.lane, ended.cpu_ms / 1000 - worker.cpu_reported, time.monotonic())
        if ended.outcome == "none":
            # Its end alone would not say that it had begun.
            self._tell_lease(worker.token)
        self._end(worker.token, ended, body)

    def worker_tidied(self, worker: Worker, cpu_seconds: float) -> None:
        """Counts what a process has used after its run's end as its client's."""
        self._waiting.used(worker.lane, cpu_seconds, time.monotonic())

    def worker_returned(self, worker: Worker) -> None:
        """Gives a process to the next run of its key, or keeps it for that; not when none can come."""
        now = time.monotonic()

        def fits(waiting: Waiting) -> bool:
            return worker.may_have(waiting.run, gives_way=self._waiting.gives_way(waiting.run.lane, now))

        if (waiting := self._reusable.next_run(worker.key, fits)) is not None:
            self._lease(worker, waiting)
            return
        if not worker.key.startswith(self._key_prefix):
            worker.kill("host_stopping")
            return
        if (waiting := next(filter(fits, self._waiting), None)) is not None:
            self._waiting.leave(waiting.token)
            self._lease(worker, waiting)
            return
        self._shed_reusable()

    def worker_gone(self, worker: Worker) -> None:
        """Forgets a worker that is reaped; a boot that failed counts."""
        self._workers.discard(worker)
        if not self._workers:
            self._all_gone.set()
        self._warm.discard(worker)
        self._reusable.discard(worker)
        if not worker.was_ready:
            self._booting -= 1
            if self._stopping:
                return
            what = f"worker {worker.pid} did not boot" if worker.pid else "cannot spawn a worker"
            self._boot_failed(f"{what}: {worker.detail}")
        self._balance()

    # ---- what the broker says ------------------------------------------------------------------------

    def _on_broker_parts(self, link: BrokerLink, parts: list[bytes]) -> None:
        try:
            if len(parts) != 3:
                raise FrameError(f"{len(parts)} parts")
            token, raw_header, body = parts
            if raw_header.startswith(protocol.REPLY_OPENING):
                if (worker := self._run_of(link, token)) is not None:
                    worker.deliver(raw_header, body)
                return
            message = protocol.parse_to_host(raw_header)
        except FrameError as error:
            # The broker is trusted with this host's life, not with its stability.
            logger.error("dropped a malformed message of the broker: %s", error)
            return
        match message:
            case protocol.Run() if self._is_refused(link, token):
                pass
            case protocol.Run():
                self._link_of[token] = link
                now = time.monotonic()
                self._target.came(now)
                waiting = Waiting(token, message, body, now)
                if message.key and not self._stopping:
                    gives_way = self._waiting.gives_way(message.lane, now)
                    if (worker := self._reusable.take_idle(message, gives_way=gives_way)) is not None:
                        self._lease(worker, waiting)
                        return
                    if self._reusable.join(waiting, gives_way=gives_way):
                        return
                self._serve(waiting)
            case protocol.Reply():
                # Every other encoding of it is none.
                logger.error("dropped a reply of the broker whose header is not canonical")
            case protocol.Pause() | protocol.Resume():
                if (worker := self._run_of(link, token)) is not None and not worker.hold_clock(message):
                    logger.error("dropped a %s of the broker that does not fit the run's clock", message.t)
            case protocol.Lend():
                if (worker := self._run_of(link, token)) is not None:
                    self._relay(link, token, worker.lend().packed())
            case protocol.Repay():
                if (worker := self._run_of(link, token)) is not None:
                    worker.repay(message)
            case protocol.Last():
                if (worker := self._run_of(link, token)) is not None:
                    worker.end_with_run()
            case protocol.Cancel():
                if self._link_of.get(token) is link:
                    self._cancel(token)
            case protocol.Granted():
                if self.places is not None and not self.places.repeated(link, message.places):
                    logger.error("dropped a granted of the broker that repeats no grant")
            case protocol.Demand():
                if self.places is not None:
                    self.places.wants(link, message.waiting)
            case protocol.Keys():
                self._key_prefix = message.prefix
                for worker in self._reusable.others(message.prefix):
                    worker.kill("host_stopping")
            case protocol.Shutdown():
                link.dismissed = message
                if self._on_lost is None:
                    self._stop_task = self._loop.create_task(self.stop())
                else:
                    self.lose(link, message.why)

    def _is_refused(self, link: BrokerLink, token: bytes) -> bool:
        """Says whether a run that has come cannot be had; its broker is told, if it is none of another's."""
        if token in self._link_of:
            logger.error("dropped a run under the name of another one")
            return True
        if self.places is None or self.places.began(link):
            return False
        logger.error("refused a run of the broker at %s, to which no place is lent", link.endpoint)
        refused = protocol.Ended(reason="boot_failed", detail="the host has lent this broker no place for it")
        self._relay(link, token, refused.packed())
        return True

    def _run_of(self, link: BrokerLink, token: bytes) -> Worker | None:
        return self._runs.get(token) if self._link_of.get(token) is link else None

    def _grant(self, link: BrokerLink, places: int) -> None:
        self._relay(link, b"", protocol.Grant(places=places).packed())

    def _cancel(self, token: bytes) -> None:
        if (worker := self._runs.get(token)) is not None:
            worker.kill("cancelled")
            return
        if self._waiting.leave(token) or self._reusable.leave(token):
            self._end(token, protocol.Ended(reason="cancelled", detail="no worker yet"))

    # ---- the pool ------------------------------------------------------------------------------------

    def _serve(self, waiting: Waiting) -> None:
        self._target.began(waiting.token, time.monotonic())
        self._warm.asked(waiting.run)
        self._waiting.join(waiting)
        self._serve_waiting()
        self._shed_reusable()
        self._refill()

    def _serve_waiting(self) -> None:
        self._warm.drop_dead()
        while self._waiting and self._warm and not self._stopping:
            # A pool of one worker has none to keep for anyone.
            keep = min(KEPT_FOR_LIGHT_CLIENTS, self._target.full // 2)
            turn = self._waiting.take(len(self._warm), time.monotonic(), keep=keep)
            if turn is None:
                return
            self._lease(self._warm.take(turn.run), turn)

    def _lease(self, worker: Worker, waiting: Waiting) -> None:
        token, run, body, _ = waiting
        self._runs[token] = worker
        self._lease_notices[token] = self._loop.call_later(LASTS_SECONDS, self._tell_lease, token)
        gives_way = self._waiting.gives_way(run.lane, time.monotonic())
        worker.lease(token, run, body, gives_way=gives_way)
        if worker.key:
            self._reusable.add(worker)

    def _tell_lease(self, token: bytes) -> None:
        """Tells a run's broker that it has a worker, unless the broker knows."""
        if (timer := self._drop_notice(token)) is not None and (link := self._link_of.get(token)) is not None:
            wall_seconds = self._loop.time() - timer.when() + LASTS_SECONDS
            self._relay(link, token, protocol.Leased(wall_ms=int(wall_seconds * 1000)).packed())

    def _drop_notice(self, token: bytes) -> asyncio.TimerHandle | None:
        """Forgets a run whose broker hears something of it, or its end."""
        timer = self._lease_notices.pop(token, None)
        if timer is not None:
            timer.cancel()
        return timer

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
            self._warm.take_latest().kill("host_stopping")

    def _shed_reusable(self) -> None:
        """Kills idle processes whose place a run has, or may want."""
        for worker in self._reusable.over(self._config.capacity - len(self._runs) - len(self._waiting)):
            worker.kill("host_stopping")

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
        fresh = (each.lasts for each in self._workers if each.is_fresh)
        try:
            worker = Worker(
                self,
                max_frame_bytes=self._config.max_message_bytes,
                max_old_space_mb=self._config.max_old_space_mb,
                # A run that waits for this worker would wait for the rehearsal, too.
                rehearse=not self._waiting,
                lasts=self._warm.next_lasts(fresh),
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
                self._end(waiting.token, protocol.Ended(reason="boot_failed", detail=detail))

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
        heartbeat = status.packed()
        for link in list(self._links):
            self._relay(link, b"", heartbeat)
        if self.places is not None:
            for link in self.places.overdue(GRANT_BOUND_SECONDS):
                self.lose(link, f"it has not repeated a grant for {GRANT_BOUND_SECONDS:g} s")
        self._shed()
        for worker in self._reusable.expired(time.monotonic()):
            worker.kill("host_stopping")
        self._loop.call_later(STATUS_INTERVAL_SECONDS, self._heartbeat)

    def _end(self, token: bytes, ended: protocol.Ended, body: bytes = b"") -> None:
        link = self._link_of.pop(token, None)
        self._target.ended(token)
        self._drop_notice(token)
        if link is not None:
            self._relay(link, token, ended.packed(), body)
            if self.places is not None:
                self.places.ended(link)

    def _relay(self, link: BrokerLink, token: bytes, raw_header: bytes, body: bytes = b"") -> None:
        """Sends a broker one message, or drops it when the link is closed."""
        if link.closed:
            return
        try:
            link.socket.send((token, raw_header, body))
        except PeerUnreachable as error:
            logger.error("the broker does not read: %s", error)
            self.lose(link, "it does not read")
