"""Where the time of one warm trivial run goes: times taken at the seams between the parts, from outside."""

from __future__ import annotations

import asyncio
import json
import statistics
import time
from typing import Any, Final, cast

from benchmarks.load.scenarios import Scenario
from cellblock import Broker
from cellblock_worker.confinement import confinement
from cellblock_worker.launch.launching import Launcher
from cellblock_worker.wire import protocol
from cellblock_worker.worker.worker import Worker

FIRST_LINE: Final = Scenario("first line", "console.log('first');\nglobalThis.__codemode_result__ = 1;")
PAUSE_SECONDS: Final = 0.06
BOOT_BOUND_SECONDS: Final = 20.0

STAGES: Final = (
    ("plan", "called", "acquire"),
    ("queue", "acquire", "acquired"),
    ("lease and send", "acquired", "sent"),
    ("host, and worker to the first line", "sent", "log"),
    ("script, result and end", "log", "ended"),
    ("response", "ended", "answered"),
)


async def of_broker(broker: Broker, count: int) -> dict[str, float]:
    """Medians of each stage in milliseconds, over `count` runs through the embedding API."""
    inside = cast("Any", broker)
    pool = inside._workers.pool
    acquire = pool.acquire
    host_says = pool.host_says
    send = pool.send
    marks: dict[str, float] = {}

    async def timed_acquire(*args: Any, **named: Any) -> Any:
        marks["acquire"] = time.perf_counter()
        lease = await acquire(*args, **named)
        marks["acquired"] = time.perf_counter()
        return lease

    def timed_send(*args: Any) -> None:
        send(*args)
        marks.setdefault("sent", time.perf_counter())

    def timed_says(host: bytes, token: bytes, message: Any, body: bytes) -> None:
        if token:
            marks.setdefault(message.t, time.perf_counter())
        host_says(host, token, message, body)

    pool.acquire, pool.send, pool.host_says = timed_acquire, timed_send, timed_says
    rows: list[dict[str, float]] = []
    try:
        for _ in range(count):
            await asyncio.sleep(PAUSE_SECONDS)
            marks.clear()
            marks["called"] = time.perf_counter()
            await broker.run(FIRST_LINE.code)
            marks["answered"] = time.perf_counter()
            if all(name in marks for _, *names in STAGES for name in names):
                rows.append(dict(marks))
    finally:
        del pool.acquire, pool.send, pool.host_says
    return {
        name: statistics.median((row[end] - row[begin]) * 1000 for row in rows) for name, begin, end in STAGES
    }


class _Owner:
    """Stands where the host stands, without a wire: hears one worker at a time."""

    def __init__(self) -> None:
        self.marks: dict[str, float] = {}
        self.changed = asyncio.Event()
        self.has_journals = False
        self.launcher = Launcher(room=confinement.room())

    def mark(self, name: str) -> None:
        self.marks.setdefault(name, time.perf_counter())
        self.changed.set()

    def worker_ready(self, worker: Worker) -> None:
        """Booted."""
        self.mark("ready")

    def worker_says(self, worker: Worker, raw_header: bytes, body: bytes) -> None:
        """Said something."""
        self.mark("said")

    def worker_computes(self, worker: Worker, cpu_seconds: float) -> bool:
        """Has computed for long; there is nobody to give way to."""
        return False

    def worker_ended(self, worker: Worker, ended: protocol.Ended, body: bytes) -> None:
        """Its run is over."""
        self.mark("ended")

    def worker_tidied(self, worker: Worker, cpu_seconds: float) -> None:
        """Never comes: it serves one run."""

    def worker_returned(self, worker: Worker) -> None:
        """Never comes: it serves one run."""

    def worker_gone(self, worker: Worker) -> None:
        """Reaped."""
        self.launcher.close()
        self.mark("gone")

    async def reached(self, name: str) -> None:
        """Waits for a mark."""
        async with asyncio.timeout(BOOT_BOUND_SECONDS):
            while name not in self.marks:
                self.changed.clear()
                await self.changed.wait()


async def of_worker(count: int) -> dict[str, float]:
    """Medians in milliseconds of what the pool does off a run's way, and of a run without the wire."""
    rows: list[dict[str, float]] = []
    start: dict[str, Any] = {
        "main": "data:text/javascript,globalThis.__codemode_result__=1",
        "modules": {},
        "refused": {},
    }
    body = json.dumps(start).encode()
    for _ in range(count):
        owner = _Owner()
        # A host starts it once.
        owner.launcher.open()
        owner.mark("spawn")
        worker = Worker(owner, max_frame_bytes=1 << 20, max_old_space_mb=256)
        owner.mark("spawned")
        await owner.reached("ready")
        await asyncio.sleep(PAUSE_SECONDS)
        owner.mark("lease")
        run = protocol.Run(
            timeout_ms=5000, cpu_ms=5000, memory_bytes=1 << 27, log_bytes=65536, message_bytes=1 << 20
        )
        worker.lease(b"t" * 16, run, body)
        await owner.reached("ended")
        await owner.reached("gone")
        rows.append(owner.marks)

    def median(begin: str, end: str) -> float:
        return statistics.median((row[end] - row[begin]) * 1000 for row in rows)

    return {
        "spawn (host's loop held)": median("spawn", "spawned"),
        "boot (spawn to ready)": median("spawn", "ready"),
        "run without the wire": median("lease", "ended"),
        "end to reaped": median("ended", "gone"),
    }
