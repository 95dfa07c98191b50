"""What a tool call takes, whole and by its parts, beside the thinnest chain of the same parts in the same run.

Medians and minima over rounds in turns. On a busy machine read the minima, the CPU, and the ratio to the chain.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import multiprocessing
import os
import statistics
import tempfile
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from pathlib import Path
from typing import Any, Final, cast

import zmq

from benchmarks.harness import BOUND_SECONDS, MIB, broker, parser, seconds_of, table, warmed
from benchmarks.load.calls import CALL_TIMES
from benchmarks.load.floor import Floor, NoFloor, floor
from benchmarks.load.scenarios import LOCAL, SCRIPTS, TRIVIAL, noop
from cellblock import Broker, tool
from cellblock_worker.confinement import confinement
from cellblock_worker.launch.launching import Launcher
from cellblock_worker.wire import protocol
from cellblock_worker.wire.frames import unpack_header
from cellblock_worker.wire.loop_socket import LoopSocket
from cellblock_worker.worker.usage import read_usage
from cellblock_worker.worker.worker import Worker

CALLS: Final = 200
LIMITS: Final = {"maxToolCalls": 2 * CALLS, "timeoutMs": 30_000}
ANSWER: Final = b'{"ok":1}'
MESSAGE_BYTES: Final = MIB
WARM_UP: Final = 50

ASYNC: Final = "Python tool, async"
PLAIN: Final = "Python tool, a plain function"
CHAIN: Final = "thin chain, a message and its answer"
OVER: Final = "20 calls in a row over a trivial run"
CPU_BROKER: Final = "CPU of the broker"
CPU_HOST: Final = "CPU of the host"
CPU_WORKER: Final = "CPU of the worker"
ALONE_BROKER: Final = "broker alone: from the host's bytes to the answer's"
ALONE_BROKER_CPU: Final = "the same, its loop's CPU, with what follows the answer"
ALONE_WIRE: Final = "wire alone: ZeroMQ between two loops, and back"
ALONE_WORKER: Final = "worker and host without the wire"


@tool()
def noop_in_thread() -> dict[str, Any]:
    """Answers at once, in a thread."""
    return {"ok": 1}


class Gate:
    """A tool that a run waits in, while calls are given to the broker in its name."""

    def __init__(self) -> None:
        self.entered = asyncio.Event()
        self.open = asyncio.Event()

    async def wait(self) -> dict[str, Any]:
        """Waits until the measurement is over."""
        self.entered.set()
        await self.open.wait()
        return {"ok": 1}


async def of_script(of: Broker, call: str) -> tuple[float, int]:
    """p50 of a call in milliseconds, as the script sees it, and the CPU milliseconds of its worker."""
    response = await of.run(LOCAL + CALL_TIMES.replace("CALL", call), limits=LIMITS)
    result = response.result
    if not isinstance(result, dict):
        raise TypeError(f"the measuring script failed: {response.as_json()}")
    assert response.usage is not None
    return cast("dict[str, float]", result)["p50"], response.usage.cpu_ms


async def whole(of: Broker, host: int) -> dict[str, float]:
    """A call of an async function: p50 in milliseconds, and the CPU of each process for one."""
    before, host_before = time.process_time(), read_usage(host).cpu_seconds
    p50, worker_ms = await of_script(of, "tools.noop({})")
    after, host_after = time.process_time(), read_usage(host).cpu_seconds
    return {
        ASYNC: p50,
        CPU_BROKER: (after - before) * 1000 / CALLS,
        CPU_HOST: (host_after - host_before) * 1000 / CALLS,
        CPU_WORKER: worker_ms / CALLS,
    }


async def in_a_row(of: Broker) -> float:
    """Milliseconds that a run with 20 calls in a row takes longer than a trivial one, each in a worker that is warm."""
    taken: list[float] = []
    for scenario in (SCRIPTS["20 calls in a row"], TRIVIAL):
        await warmed(of)
        await asyncio.sleep(0.06)
        taken.append(await seconds_of(of.run(scenario.code)))
    return (taken[0] - taken[1]) * 1000


async def of_broker(of: Broker, gate: Gate) -> dict[str, float]:
    """A call by the broker alone, in the name of a run that waits: p50 in milliseconds, and CPU for one."""
    gate.entered, gate.open = asyncio.Event(), asyncio.Event()
    run = asyncio.create_task(of.run(f"{LOCAL}await tools.wait({{}});", limits=LIMITS))
    await gate.entered.wait()
    workers = cast("Any", of)._workers
    link, [host] = workers._link, workers.pool._hosts.values()
    [token] = host.leases
    socket, send = link._socket, link._socket.send
    answered = asyncio.Event()
    answered_at = 0.0

    def heard(parts: Sequence[bytes]) -> None:
        nonlocal answered_at
        answered_at = time.perf_counter()
        assert parts[3] == ANSWER
        answered.set()

    socket.send = heard
    times: list[float] = []
    cpu = 0.0
    try:
        for number in range(WARM_UP + CALLS):
            call = protocol.Call(id=2 + number, server="local", tool="noop")
            parts = [host.identity, token, call.packed(), b"{}"]
            answered.clear()
            if number == WARM_UP:
                cpu = time.thread_time()
            began = time.perf_counter()
            link._on_parts(parts)
            await answered.wait()
            times.append(answered_at - began)
        cpu = time.thread_time() - cpu
    finally:
        socket.send = send
        gate.open.set()
        await run
    return {
        ALONE_BROKER: statistics.median(times[WARM_UP:]) * 1000,
        ALONE_BROKER_CPU: cpu * 1000 / CALLS,
    }


def _echo(endpoint: str) -> None:
    """Stands where the host stands, and sends back what comes."""

    async def serve() -> None:
        ended = asyncio.Event()

        def on_message(parts: list[bytes]) -> None:
            if parts[0]:
                dealer.send(parts)
            else:
                ended.set()

        context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
        dealer = LoopSocket(
            context.socket(zmq.DEALER), max_message_bytes=MESSAGE_BYTES, on_message=on_message
        )
        dealer.connect(endpoint)
        dealer.send((b"", b"", b""))
        await ended.wait()
        dealer.close()
        context.destroy(linger=0)

    asyncio.run(serve())


@contextlib.asynccontextmanager
async def wire(folder: Path) -> AsyncGenerator[Callable[[], Awaitable[float]]]:
    """Gives what measures p50 of a round trip in milliseconds, between this loop and another process's."""
    endpoint = f"ipc://{folder}/echo"
    other = multiprocessing.get_context("spawn").Process(target=_echo, args=(endpoint,), daemon=True)
    context: zmq.Context[zmq.Socket[bytes]] = zmq.Context()
    back = asyncio.Event()
    peer = b""

    def on_message(parts: list[bytes]) -> None:
        nonlocal peer
        peer = parts[0]
        back.set()

    router = LoopSocket(context.socket(zmq.ROUTER), max_message_bytes=MESSAGE_BYTES, on_message=on_message)
    router.bind(endpoint)
    header = protocol.Reply(id=1, ok=True).packed()
    token = os.urandom(16)

    async def measure() -> float:
        times: list[float] = []
        for _ in range(CALLS):
            back.clear()
            began = time.perf_counter()
            router.send((peer, token, header, ANSWER))
            await back.wait()
            times.append(time.perf_counter() - began)
        return statistics.median(times) * 1000

    other.start()
    try:
        async with asyncio.timeout(BOUND_SECONDS):
            await back.wait()
        yield measure
        router.send((peer, b"", b"", b""))
    finally:
        await asyncio.to_thread(other.join, BOUND_SECONDS)
        router.close()
        context.destroy(linger=0)


class _Answering:
    """Stands where the host stands, without a wire: answers each call of one worker at once."""

    def __init__(self, launcher: Launcher) -> None:
        self.has_journals = False
        self.launcher = launcher
        self.ready = asyncio.Event()
        self.gone = asyncio.Event()
        self.result = b""

    def worker_ready(self, worker: Worker) -> None:
        """Booted."""
        self.ready.set()

    def worker_tidied(self, worker: Worker, cpu_seconds: float) -> None:
        """Never comes: each run has a process of its own."""

    def worker_returned(self, worker: Worker) -> None:
        """Never comes: each run has a process of its own."""

    def worker_says(self, worker: Worker, raw_header: bytes, body: bytes) -> None:
        """Called a tool."""
        header = unpack_header(raw_header)
        if header["t"] == "call":
            worker.deliver(protocol.Reply(id=header["id"], ok=True).packed(), ANSWER)

    def worker_computes(self, worker: Worker, cpu_seconds: float) -> bool:
        """Has computed for long; there is nobody to give way to."""
        return False

    def worker_ended(self, worker: Worker, ended: protocol.Ended, body: bytes) -> None:
        """Its run is over, and that is its result."""
        self.result = body

    def worker_gone(self, worker: Worker) -> None:
        """Reaped."""
        self.gone.set()


async def of_worker(launcher: Launcher, plan: bytes) -> float:
    """p50 of a call in milliseconds, as a script sees it whose worker's host answers by itself."""
    owner = _Answering(launcher)
    worker = Worker(owner, max_frame_bytes=MESSAGE_BYTES, max_old_space_mb=256)
    run = protocol.Run(
        timeout_ms=30_000, cpu_ms=30_000, memory_bytes=1 << 28, log_bytes=65536, message_bytes=MESSAGE_BYTES
    )
    async with asyncio.timeout(BOUND_SECONDS):
        await owner.ready.wait()
        worker.lease(b"t" * 16, run, plan)
        await owner.gone.wait()
    return json.loads(owner.result)["p50"]


async def _plan(of: Broker) -> bytes:
    """What a worker is sent of the measuring script."""
    link = cast("Any", of)._workers._link
    send, sent = link.send, list[bytes]()

    def noted(host: bytes, token: bytes, message: protocol.ToHost, body: bytes = b"") -> None:
        if isinstance(message, protocol.Run):
            sent.append(body)
        send(host, token, message, body)

    link.send = noted
    try:
        await of_script(of, "tools.noop({})")
    finally:
        link.send = send
    return sent[0]


@contextlib.asynccontextmanager
async def _chain(folder: Path) -> AsyncGenerator[Floor | None]:
    """The thin chain; None where there is none."""
    try:
        async with floor(folder / "chain", "isolated") as made:
            yield made
    except NoFloor as error:
        print(f"no chain: {error}")
        yield None


async def measure(rounds: int) -> None:
    """Prints the table."""
    gate = Gate()
    found: dict[str, list[float]] = {}

    def note(**values: float) -> None:
        for name, value in values.items():
            found.setdefault(name, []).append(value)

    launcher = Launcher(room=confinement.room())
    with tempfile.TemporaryDirectory(prefix="bench-") as folder:
        async with (
            broker(tools=[noop, noop_in_thread, gate.wait]) as of,
            wire(Path(folder)) as round_trip,
            _chain(Path(folder)) as chain,
        ):
            host = of.host_pid or 0
            launcher.open()
            try:
                plan = await _plan(of)
                for _ in range(rounds):
                    if chain is not None:
                        note(**{CHAIN: await chain.wire()})
                    await warmed(of)
                    note(**await whole(of, host))
                    note(**{PLAIN: (await of_script(of, "tools.noop_in_thread({})"))[0]})
                    note(**await of_broker(of, gate))
                    note(**{ALONE_WIRE: await round_trip(), ALONE_WORKER: await of_worker(launcher, plan)})
                    note(**{OVER: await in_a_row(of)})
            finally:
                launcher.close()
    order = [CHAIN, ASYNC, PLAIN, CPU_BROKER, CPU_HOST, CPU_WORKER]
    order += [ALONE_BROKER, ALONE_BROKER_CPU, ALONE_WIRE, ALONE_WORKER, OVER]
    medians = {name: statistics.median(values) for name, values in found.items()}
    first = medians.get(CHAIN, medians[ASYNC])
    rows = [
        (name, f"{medians[name]:.3f}", f"{min(found[name]):.3f}", f"{medians[name] / first:.2f}")
        for name in order
        if name in found
    ]
    print(table(("of one call, ms", "median", "least", "median / chain"), rows))


def main(arguments: Sequence[str]) -> int:
    """Prints the table; returns 0."""
    arguing = parser("tool_call", __doc__)
    arguing.add_argument(
        "--rounds", type=int, default=15, help="rounds of 200 calls of each kind (default 15)"
    )
    asyncio.run(measure(arguing.parse_args(arguments).rounds))
    return 0
