"""How exactly caps are kept: memory over the budget, and kills past the deadline under full load.

Prints two tables and a verdict for each target. The workers are real and are driven
as the host drives them; sizes are read from /proc by a process of its own, so the host's samples are not believed.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import multiprocessing
import os
import signal
import sys
import time
from collections.abc import Sequence
from multiprocessing.sharedctypes import Synchronized
from typing import Any, Final

import psutil

from benchmarks.harness import BOUND_SECONDS, MIB, median_and, parser, table
from cellblock_worker.base import lifetime
from cellblock_worker.confinement import bubblewrap, confinement
from cellblock_worker.launch.launching import Launcher
from cellblock_worker.wire import protocol
from cellblock_worker.wire.frames import encode_frame
from cellblock_worker.worker.rehearsal import READY_FRAME
from cellblock_worker.worker.worker import Worker

BUDGET_MIB: Final = 64
TARGET_OVER_MB: Final = 8.0
TARGET_P50_MS: Final = 15.0
TARGET_P99_MS: Final = 50.0
DEADLINE_MS: Final = 300
SAMPLE_SECONDS: Final = 0.0005

HOGS: Final = {
    "heap objects": "for (let i = 0; ; i++) kept.push({ a: i, b: [i] });",
    "ArrayBuffer": "for (;;) kept.push(new Uint8Array(65536).fill(1).buffer);",
    "strings": "for (let i = 0; ; i++) { const s = 'x'.repeat(100_000) + i; s.charCodeAt(3); kept.push(s); }",
    "Map": "const map = new Map(); for (let i = 0; ; i++) map.set(i, { i });",
    "typed arrays": "for (;;) kept.push(new Float64Array(20_000).fill(0.5));",
}


class _Owner:
    """Keeps the ends of one worker as times and messages."""

    def __init__(self) -> None:
        self.ready = asyncio.Event()
        self.gone = asyncio.Event()
        self.ended: protocol.Ended | None = None
        self.gone_at = 0.0
        self.has_journals = False
        self.launcher = Launcher()

    def worker_ready(self, worker: Worker) -> None:
        self.ready.set()

    def worker_says(self, worker: Worker, raw_header: bytes, body: bytes) -> None:
        pass

    def worker_computes(self, worker: Worker, cpu_seconds: float) -> bool:
        return False

    def worker_ended(self, worker: Worker, ended: protocol.Ended, body: bytes) -> None:
        self.ended = ended

    def worker_tidied(self, worker: Worker, cpu_seconds: float) -> None:
        pass

    def worker_returned(self, worker: Worker) -> None:
        pass

    def worker_gone(self, worker: Worker) -> None:
        self.gone_at = time.monotonic()
        self.launcher.close()
        self.gone.set()


def _start(code: str) -> bytes:
    main = "data:application/javascript;base64," + base64.b64encode(code.encode()).decode()
    return json.dumps({"main": main, "modules": {}, "refused": {}}).encode()


async def _booted() -> tuple[Worker, _Owner]:
    owner = _Owner()
    worker = Worker(owner, max_frame_bytes=2 * MIB, max_old_space_mb=256)
    async with asyncio.timeout(BOUND_SECONDS):
        await owner.ready.wait()
    return worker, owner


def _run(timeout_ms: int) -> protocol.Run:
    return protocol.Run(
        timeout_ms=timeout_ms,
        cpu_ms=600_000,
        memory_bytes=BUDGET_MIB * MIB,
        log_bytes=1000,
        message_bytes=MIB,
    )


def _watch(pid: int, data: Synchronized[int], anonymous: Synchronized[int], ready: Any) -> None:
    """The sampler's process: the most VmData and RssAnon seen until the process is gone."""
    ready.set()
    while True:
        try:
            with open(f"/proc/{pid}/status", "rb") as file:  # noqa: PTH123 - the sampler must be quick
                status = file.read()
        except OSError:
            return
        for field, most in ((b"VmData:", data), (b"RssAnon:", anonymous)):
            at = status.find(field)
            if at < 0:
                return
            most.value = max(most.value, int(status[at + len(field) : status.index(b"kB", at)]) * 1024)
        time.sleep(SAMPLE_SECONDS)


async def _overshoot(code: str) -> tuple[float, float, str]:
    """MB over baseline and budget, of VmData and of RssAnon, and how the run ended."""
    worker, owner = await _booted()
    spawn = multiprocessing.get_context("spawn")
    data, anonymous = spawn.Value("q", 0), spawn.Value("q", 0)
    ready = spawn.Event()
    watcher = spawn.Process(target=_watch, args=(worker.pid, data, anonymous, ready))
    watcher.start()
    await asyncio.to_thread(ready.wait, BOUND_SECONDS)
    await asyncio.sleep(0.05)
    first_data, first_anonymous = data.value, anonymous.value
    worker.lease(b"token", _run(30_000), _start("const kept = [];\n" + code))
    async with asyncio.timeout(BOUND_SECONDS):
        await owner.gone.wait()
    await asyncio.to_thread(watcher.join, BOUND_SECONDS)
    budget = BUDGET_MIB * MIB
    how = owner.ended.reason if owner.ended else "?"
    return (
        (data.value - first_data - budget) / 1e6,
        (anonymous.value - first_anonymous - budget) / 1e6,
        "refused by the engine" if how == "finished" else how,
    )


async def _ours(late: list[float]) -> None:
    worker, owner = await _booted()
    worker.lease(b"token", _run(DEADLINE_MS), _start("for (;;) {}"))
    due = time.monotonic() + DEADLINE_MS / 1000
    async with asyncio.timeout(BOUND_SECONDS):
        await owner.gone.wait()
    if owner.ended is not None and owner.ended.reason == "timeout":
        late.append((owner.gone_at - due) * 1000)


async def _bare(late: list[float]) -> None:
    """The yardstick: the same process in the same confinement, and nothing but a timer, SIGKILL, EOF and wait."""
    launch = confinement.launch(256)
    process = await asyncio.create_subprocess_exec(
        *(launch.command if launch.wrapped else lifetime.dying_with_this(launch.command)),
        stdin=asyncio.subprocess.PIPE,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.DEVNULL,
        env=confinement.WORKER_ENVIRONMENT,
        cwd="/",
        start_new_session=True,
        pass_fds=launch.fds,
    )
    launch.close()
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(READY_FRAME)
    async with asyncio.timeout(BOUND_SECONDS):
        await process.stdout.read(1)
    inner = (bubblewrap.inner_pid(process.pid) if launch.wrapped else None) or process.pid
    data = psutil.Process(inner).memory_info().data
    confinement.limit_at_lease(inner, data + BUDGET_MIB * MIB, 600)
    start = protocol.Start(log_bytes=1000, message_bytes=MIB)
    process.stdin.write(encode_frame(start.packed(), _start("for (;;) {}")))
    due = time.monotonic() + DEADLINE_MS / 1000
    asyncio.get_running_loop().call_later(DEADLINE_MS / 1000, _kill, inner, process.pid)
    async with asyncio.timeout(BOUND_SECONDS):
        await process.stdout.read()
        await process.wait()
    late.append((time.monotonic() - due) * 1000)


def _kill(*pids: int) -> None:
    for pid in pids:
        with contextlib.suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


async def _latencies(rounds: int, slots: int) -> tuple[list[float], list[float]]:
    """Milliseconds from each deadline to the reaped process: ours and bare in turn, with every slot busy."""
    ours: list[float] = []
    bare: list[float] = []

    async def slot(number: int) -> None:
        for index in range(2 * rounds):
            await (_ours(ours) if (index + number) % 2 else _bare(bare))

    await asyncio.gather(*map(slot, range(slots)))
    return ours, bare


async def _memory(rounds: int) -> bool:
    """Prints the table of overshoots. Returns whether all are under the target."""
    met = True
    print(f"## Memory over a budget of {BUDGET_MIB} MiB (target: under {TARGET_OVER_MB:g} MB)\n")
    rows: list[tuple[str, ...]] = []
    for name, code in HOGS.items():
        runs = [await _overshoot(code) for _ in range(rounds)]
        data, anonymous = max(run[0] for run in runs), max(run[1] for run in runs)
        fine = max(data, anonymous) < TARGET_OVER_MB
        met &= fine
        ends = ", ".join(sorted({run[2] for run in runs}))
        rows.append((name, f"{data:.1f}", f"{anonymous:.1f}", ends, "met" if fine else "MISSED"))
    print(table(("what grows", "VmData over, MB", "RssAnon over, MB", "end", "verdict"), rows))
    return met


async def measure(quick: bool, *, memory: bool = True) -> bool:
    """Prints the tables and verdicts. Returns whether every target is met."""
    confinement.use_isolation("auto")
    met = not memory or await _memory(1 if quick else 5)
    slots = 2 * (os.cpu_count() or 1)
    rounds = 5 if quick else 40
    load = os.getloadavg()[0]
    ours, bare = await _latencies(rounds, slots)
    print(
        f"\n## Kill past the deadline, {slots} slots busy on {os.cpu_count()} cores, load before: {load:.1f}\n"
    )
    p50, p99 = median_and(99, ours)
    bare50, bare99 = median_and(99, bare)
    yardstick = "yardstick, in turn: same process, bare timer, SIGKILL, wait"
    rows = [
        ("Cellblock's worker, deadline to reaped", len(ours), f"{p50:.1f}", f"{p99:.1f}"),
        (yardstick, len(bare), f"{bare50:.1f}", f"{bare99:.1f}"),
    ]
    print(table(("", "kills", "p50 ms", "p99 ms"), rows))
    for name, value, target in (("p50", p50, TARGET_P50_MS), ("p99", p99, TARGET_P99_MS)):
        met &= value <= target
        print(f"\n{name}: {'met' if value <= target else 'MISSED'} ({value:.1f} ms, target {target:g} ms)")
    return met


def main(arguments: Sequence[str]) -> int:
    """Returns 0 when every target is met, else 1."""
    arguing = parser("caps", __doc__)
    arguing.add_argument("--no-memory", action="store_true", help="only the kills")
    arguing.add_argument("--quick", action="store_true", help="fewer runs: half a minute")
    options = arguing.parse_args(arguments)
    if not sys.platform.startswith("linux"):
        sys.stderr.write("scripts/bench caps: needs /proc\n")
        return 2
    return 0 if asyncio.run(measure(options.quick, memory=not options.no_memory)) else 1
