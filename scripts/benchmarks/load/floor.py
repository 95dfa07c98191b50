"""The thinnest chain of the parts that the plan has: what a run costs before Cellblock does anything.

Python, ZeroMQ over ipc, Python, the pipes of a warm Deno process that serves one run and is killed. Nothing is checked,
capped, logged or looked at. Beside a bare `deno run` it says what of a target is left for Cellblock itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import statistics
import subprocess
import sys
import time
from collections.abc import AsyncGenerator, Awaitable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any, Final, Literal

import deno
import zmq

from benchmarks.load import calls, fronts, yardsticks
from benchmarks.load.drive import LEAD_SECONDS, closed
from benchmarks.load.scenarios import TRIVIAL

HOST: Final = Path(__file__).with_name("floor_host.py")
WORKER: Final = Path(__file__).with_name("floor_worker.js")
CLIENTS: Final = 2 * (os.cpu_count() or 1)
WARM: Final = CLIENTS
REST_SECONDS: Final = 0.06
"""Between two runs of one client, as in the targets."""

START_BOUND_MS: Final = 10_000
ANSWER_BOUND_MS: Final = 10_000
STOP_BOUND_SECONDS: Final = 5.0

Kind = Literal["bare", "isolated"]

MODULE: Final = "export const noop = 0, nap = 0, rows = 0;"
SCRIPT: Final = TRIVIAL.code.replace("@codemode/servers/local", f"data:application/javascript,{MODULE}")
"""The trivial script, its server's module from a URL as everything here."""

CALLS: Final = """
const times = [];
for (let i = 0; i < 200; i++) { const at = performance.now(); await call(); times.push(performance.now() - at); }
times.sort((a, b) => a - b);
globalThis.__codemode_result__ = times[100];
"""


class NoFloor(RuntimeError):
    """The chain does not start or has broken; the text says where."""


class Floor:
    """The broker's end of the chain. Its socket belongs to one thread of its own, which waits without a loop."""

    def __init__(self, folder: Path, kind: Kind) -> None:
        self._endpoint = f"ipc://{folder}/floor"
        self._folder, self._kind = folder, kind
        self._thread = ThreadPoolExecutor(1)
        self._context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        self._process: subprocess.Popen[bytes] | None = None
        self._peer = b""
        self._last = 0

    async def run(self) -> float:
        """Seconds of one trivial run."""
        started, ended, _ = await self._in_thread(partial(self._run, SCRIPT.encode()))
        return ended - started

    async def wire(self) -> float:
        """p50 in milliseconds of a script's message to the broker's end and back, over 200 in one run."""
        _, _, result = await self._in_thread(partial(self._run, CALLS.encode()))
        return float(result)

    async def rate(self, *, parallel: int, seconds: float) -> float:
        """Runs per second, so many at a time, once those workers are used up that were booted before."""
        return await self._in_thread(partial(self._rate, parallel, seconds))

    async def start(self) -> None:
        """Raises NoFloor."""
        await self._in_thread(self._start)

    async def stop(self) -> None:
        """Ends the chain."""
        await self._in_thread(self._stop)
        self._thread.shutdown()
        self._context.destroy(linger=0)

    async def _in_thread(self, work: Any) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, work)

    def _start(self) -> None:
        self._router = self._context.socket(zmq.ROUTER)
        self._router.bind(self._endpoint)
        # Filled by one that finds no script: what is isolated sees it read-only.
        deno_dir = self._folder / "deno-dir"
        environment = {"DENO_DIR": str(deno_dir), "DENO_NO_UPDATE_CHECK": "1"}
        argv = [deno.find_deno_bin(), "run", "--no-config", str(WORKER)]
        subprocess.run(argv, env=environment, stdin=subprocess.DEVNULL, capture_output=True, check=True)
        arguments = [self._endpoint, str(WARM), str(deno_dir), self._kind, str(WORKER)]
        self._process = subprocess.Popen([sys.executable, str(HOST), *arguments], stdin=subprocess.PIPE)
        self._router.setsockopt(zmq.RCVTIMEO, START_BOUND_MS)
        for _ in range(WARM):
            self._heard()
        self._router.setsockopt(zmq.RCVTIMEO, ANSWER_BOUND_MS)

    def _stop(self) -> None:
        if self._process is not None:
            assert self._process.stdin
            self._process.stdin.close()
            try:
                self._process.wait(STOP_BOUND_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
        self._router.close(linger=0)

    def _heard(self) -> tuple[bytes, bytes]:
        try:
            self._peer, run, text = self._router.recv_multipart()
        except zmq.Again:
            raise NoFloor(f"the chain of {self._kind} workers says nothing") from None
        return run, text

    def _send(self, code: bytes) -> bytes:
        self._last += 1
        run = str(self._last).encode()
        self._router.send_multipart([self._peer, run, code])
        return run

    def _run(self, code: bytes) -> tuple[float, float, bytes]:
        started = time.perf_counter()
        mine = self._send(code)
        while True:
            run, text = self._heard()
            if run != mine:
                continue
            if text.startswith(b"="):
                return started, time.perf_counter(), text[1:]
            self._router.send_multipart([self._peer, run, b"answer"])

    def _rate(self, parallel: int, seconds: float) -> float:
        code = SCRIPT.encode()
        counts = time.perf_counter() + LEAD_SECONDS
        until, done = counts + seconds, 0
        left = {self._send(code) for _ in range(parallel)}
        while left:
            run, text = self._heard()
            if run not in left or not text.startswith(b"="):
                continue
            left.remove(run)
            now = time.perf_counter()
            done += counts <= now < until
            if now < until:
                left.add(self._send(code))
        return done / seconds


@contextlib.asynccontextmanager
async def floor(folder: Path, kind: Kind) -> AsyncGenerator[Floor]:
    """A chain with warm workers. Raises NoFloor."""
    folder.mkdir()  # noqa: ASYNC240 - nothing else is under way
    chain = Floor(folder, kind)
    try:
        await chain.start()
        yield chain
    finally:
        await chain.stop()


async def measure(
    front: fronts.Embedded, bare: yardsticks.BareDeno, folder: Path, *, quick: bool
) -> list[dict[str, Any]]:
    """The chain, with and without isolation, and Cellblock, in turns, as rows for the report.

    Raises:
        NoFloor: This machine does not isolate workers, or a chain has broken.
    """
    turns = 2 if quick else 15
    seconds = 1.0 if quick else 5.0
    async with floor(folder / "thin", "bare") as thin, floor(folder / "isolated", "isolated") as isolated:
        warm: dict[str, list[float]] = {"bare": [], "thin": [], "isolated": [], "ours": []}
        rates: dict[str, list[float]] = {name: [] for name in warm}

        async def ours() -> float:
            return await _timed(front.run(TRIVIAL))

        async def bare_run() -> float:
            return await _timed(bare.run(TRIVIAL))

        ways = {"bare": bare_run, "thin": thin.run, "isolated": isolated.run, "ours": ours}
        for _ in range(turns):
            for name, run in ways.items():
                for _ in range(6 if name == "bare" else 20):
                    await asyncio.sleep(REST_SECONDS)
                    warm[name].append(await run())
        for _ in range(3):
            load = await closed(
                lambda _: bare.run(TRIVIAL), clients=CLIENTS, seconds=seconds, lead=LEAD_SECONDS
            )
            rates["bare"].append(load.per_second)
            for name, chain in (("thin", thin), ("isolated", isolated)):
                rates[name].append(await chain.rate(parallel=CLIENTS, seconds=seconds))
            load = await closed(
                lambda _: front.run(TRIVIAL), clients=CLIENTS, seconds=seconds, lead=LEAD_SECONDS
            )
            rates["ours"].append(load.per_second)
            await front.rested()
        wires = {
            "thin": [await thin.wire() for _ in range(5)],
            "isolated": [await isolated.wire() for _ in range(5)],
        }
        found = await calls.measure(front, folder, rounds=2 if quick else 5)
    p50 = {name: statistics.median(values) for name, values in warm.items()}
    rate = {name: statistics.median(values) for name, values in rates.items()}
    wire = {name: statistics.median(values) for name, values in wires.items()}
    others = ("thin", "isolated", "ours")
    rows = [
        _row("1a", "warm p50 / bare deno p50", 0.16, {name: p50[name] / p50["bare"] for name in others}),
        _row(
            "1d",
            "warm p50 / the isolated chain's",
            1.3,
            {name: p50[name] / p50["isolated"] for name in others},
        ),
        _row(
            "2a",
            "bare spawn rate / runs per second at the limit",
            1.40,
            {name: rate["bare"] / rate[name] for name in others},
        ),
        _row(
            "3a", "a script's message to the broker and back, p50 in ms", 0.2, {**wire, "ours": found.local}
        ),
    ]
    for what, one in (("a plain server", found.plain), ("a server of the SDK", found.sdk)):
        chain = {name: (wire[name] + one.raw) / one.raw for name in wire}
        what = f"call of a stdio server / raw SDK call, {what}"
        rows.append(_row("3b", what, 1.5, {**chain, "ours": one.ours / one.raw}))
    return rows


async def _timed(work: Awaitable[Any]) -> float:
    started = time.perf_counter()
    await work
    return time.perf_counter() - started


def _row(target: str, what: str, bound: float, measured: dict[str, float]) -> dict[str, Any]:
    rounded = {name: round(value, 4) for name, value in measured.items()}
    return {"target": target, "what": what, "bound": round(bound, 4), **rounded}
