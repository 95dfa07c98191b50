"""Synthetic hosts are the real worker host without Deno: `python -m benchmarks.fleet.synthetic --hosts N
--connect …`.

The host, its dialling, its places, its heartbeats and the protocol are the real ones. Its workers are no
processes: each takes the steps that its script names (`steps`), and its run has ended. They isolate nothing and
run no script, so they are for measuring brokers alone; each figure that they give is labelled synthetic.
Several hosts share a process.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import signal
import sys
import time
from collections import deque
from collections.abc import Sequence
from typing import Any, Final
from unittest import mock

import zmq

from benchmarks.fleet.steps import Calls, NoSteps, Step, steps_in
from cellblock_worker.host import host as real
from cellblock_worker.host.remote import Arguments, RemoteHost, read_arguments
from cellblock_worker.wire import protocol
from cellblock_worker.worker.states import Event, State, advance
from cellblock_worker.worker.worker import Worker, WorkerOwner

MAX_SOCKETS: Final = 60_000
"""Bounds the sockets of this process: each link to a broker has three."""

JOURNALED: Final = b', "journal": {'
"""Is in what the worker of a recorded run is sent."""


class SyntheticWorker(Worker):
    """Stands in a worker's place and has no process.

    Args:
        owner: The host.
    """

    def __init__(self, owner: WorkerOwner, **_: Any) -> None:
        self._owner = owner
        self._loop = asyncio.get_running_loop()
        self.state = State.BOOTING
        self.was_ready = False
        self.token, self.detail = b"", ""
        self.launcher = owner.launcher
        self._lane = 0
        self._bond = self._watch = self._scheduling = self._reuse = None
        self._steps: deque[Step] = deque()
        self._left = self._asked = self._answered = 0
        self._is_journaled = False
        self._events = ""
        self._began = 0.0
        self._pending: list[asyncio.TimerHandle] = []
        self._loop.call_soon(self._boot)

    @property
    def pid(self) -> int:
        """Returns 0: there is no process."""
        return 0

    def lease(
        self,
        token: bytes,
        run: protocol.Run,
        body: bytes,
        *,
        gives_way: bool = False,
    ) -> None:
        """Takes a run: its first step comes with the next turn of the loop, as a process would be heard then at
        the earliest."""
        self.state = advance(self.state, Event.LEASE)
        self.token, self._lane, self._began = token, run.lane, time.monotonic()
        self._is_journaled = JOURNALED in body
        self._later(run.timeout_ms / 1000, self.kill, "timeout", f"over timeoutMs = {run.timeout_ms}")
        try:
            self._steps.extend(steps_in(body))
        except NoSteps as error:
            self._loop.call_soon(self.kill, "protocol", str(error))
        else:
            self._loop.call_soon(self._go_on)

    def deliver(self, raw_header: bytes, body: bytes) -> None:
        """Takes the answer of the call that is under way."""
        if self.state is State.RUNNING:
            self._answered += 1
            self._events = f"a{self._asked}"
            self._go_on()

    def hold_clock(self, message: protocol.Pause | protocol.Resume) -> bool:
        """Says that it fits: nothing is measured with runs that wait for people."""
        return True

    def kill(self, reason: protocol.EndReason, detail: str = "") -> None:
        """Ends it, and with it its run."""
        if self.state in (State.ENDING, State.GONE):
            return
        was_running = self.state is State.RUNNING
        self.detail = detail
        self._leave()
        if was_running:
            self._owner.worker_ended(self, self._word(reason, "none"), b"")

    # ---- inside ------------------------------------------------------------------------------------------

    def _boot(self) -> None:
        if self.state is State.BOOTING:
            self.state = advance(self.state, Event.READY)
            self.was_ready = True
            self._owner.worker_ready(self)

    def _later(self, seconds: float, do: Any, *arguments: Any) -> None:
        self._pending.append(self._loop.call_later(seconds, do, *arguments))

    def _go_on(self) -> None:
        if self.state is not State.RUNNING:
            return
        if not self._steps:
            self._settle()
            return
        step = self._steps[0]
        if isinstance(step, int):
            self._steps.popleft()
            self._later(step / 1000, self._go_on)
            return
        if self._left == 0:
            self._left = step.times
        self._left -= 1
        if self._left == 0:
            self._steps.popleft()
        self._call(step)

    def _call(self, step: Calls) -> None:
        self._asked += 1
        events = self._events if self._is_journaled else ""
        call = protocol.Call(id=self._asked, server=step.server, tool=step.tool, events=events)
        self._owner.worker_says(self, call.packed(), json.dumps(step.arguments).encode())

    def _settle(self) -> None:
        if self._is_journaled:
            self._owner.worker_says(self, protocol.Noted().packed(), f"{self._events}e1".encode())
        self._leave()
        self._owner.worker_ended(self, self._word("finished", "done"), b"%d" % self._answered)

    def _word(self, reason: protocol.EndReason, outcome: protocol.Outcome) -> protocol.Ended:
        wall_ms = int((time.monotonic() - self._began) * 1000)
        detail = self.detail[: protocol.MAX_DETAIL_CHARS]
        return protocol.Ended(reason=reason, outcome=outcome, detail=detail, wall_ms=wall_ms)

    def _leave(self) -> None:
        self.state = advance(self.state, Event.KILL)
        for timer in self._pending:
            timer.cancel()
        self._loop.call_soon(self._gone)

    def _gone(self) -> None:
        self.state = advance(self.state, Event.EXIT)
        self._owner.worker_gone(self)


async def serve(hosts: Sequence[Arguments]) -> None:
    """Serves as so many hosts until SIGTERM or SIGINT, one heartbeat after the other. Raises as
    `RemoteHost.serve`."""
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context(io_threads=1)
    context.set(zmq.MAX_SOCKETS, MAX_SOCKETS)
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)

    async def one(number: int, given: Arguments) -> None:
        await asyncio.sleep(real.STATUS_INTERVAL_SECONDS * number / len(hosts))
        remote = RemoteHost(given.config, given.names, given.keys, context, given.drain_seconds)
        serving = asyncio.ensure_future(remote.serve())
        stopping = asyncio.ensure_future(stopped.wait())
        await asyncio.wait([serving, stopping], return_when=asyncio.FIRST_COMPLETED)
        remote.stop()
        await serving

    try:
        with mock.patch.object(real, "Worker", SyntheticWorker):
            async with asyncio.TaskGroup() as group:
                for number, given in enumerate(hosts):
                    group.create_task(one(number, given))
    finally:
        context.destroy(linger=0)


def main(arguments: Sequence[str]) -> int:
    """Serves; the other arguments are those of `python -m cellblock_worker`."""
    arguing = argparse.ArgumentParser(prog="python -m benchmarks.fleet.synthetic", description=__doc__)
    arguing.add_argument("--hosts", type=int, default=1, metavar="N", help="so many hosts (default 1)")
    options, rest = arguing.parse_known_args(arguments)
    logging.basicConfig(level=logging.WARNING, format="%(name)s %(levelname)s %(message)s")
    asyncio.run(serve([read_arguments(rest) for _ in range(options.hosts)]))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
