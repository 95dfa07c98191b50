"""Measures what learning from results costs a run that gets a 100 KB result.

    python scripts/measure_inference.py

In one broker on this machine, runs of one script take turns with and without learning. Printed are the medians of the
runs' wall time, and the processor time of the learner's thread as a share of it: with every result looked at, and as it
is by default, from a tool's first result on. The yardstick is `json.loads` of the same result.
"""

from __future__ import annotations

import asyncio
import json
import logging
import statistics
import tempfile
import time
from typing import Any

from cellblock import Broker, tool
from cellblock.catalog.model import ToolEntry
from cellblock.config import parse_settings
from cellblock.schemas import learner as learning
from cellblock.schemas.infer import shape_of
from cellblock.schemas.learner import Learner

RUNS = 60
REPEATS = 200
ROWS: list[dict[str, Any]] = [
    {
        "id": number,
        "name": f"item number {number}",
        "status": "open" if number % 3 else "closed",
        "created_at": "2026-11-01T10:00:00Z",
        "owner": {"id": number % 7, "email": f"user{number % 7}@example.org"},
        "tags": ["alpha", "beta"][: number % 3],
        "score": number / 7,
    }
    for number in range(530)
]
SCRIPT = 'import { rows } from "@codemode/servers/local";\nglobalThis.__codemode_result__ = (await rows({})).length;'


@tool()
def rows():  # no annotation: nothing is declared, so that something is to be learnt
    """Gives rows."""
    return ROWS


def timed(work: Any) -> float:
    """Median processor seconds of one call."""
    times: list[float] = []
    for _ in range(REPEATS):
        started = time.process_time()
        work()
        times.append(time.process_time() - started)
    return statistics.median(times)


class Clock:
    """The processor time that looking at results takes, by the learner's own thread."""

    def __init__(self) -> None:
        self.seconds = 0.0
        clock, plain = self, Learner._read_all  # pyright: ignore[reportPrivateUsage]

        def read_all(self: Learner) -> None:
            started = time.thread_time()
            plain(self)
            clock.seconds += time.thread_time() - started

        Learner._read_all = read_all  # pyright: ignore[reportPrivateUsage]


async def runs(learn: dict[str, Any], clock: Clock) -> tuple[float, float]:
    """Median wall seconds of a run, and the learner's processor seconds for each."""
    with tempfile.TemporaryDirectory() as folder:
        settings = parse_settings({"cellblock": {"state_dir": folder, "schemas": learn, "pool": {"warm": 2}}})
        async with Broker(settings, tools=[rows]) as broker:
            for _ in range(3):
                await broker.run("globalThis.__codemode_result__ = 1;")
            clock.seconds, walls = 0.0, list[float]()
            for _ in range(RUNS):
                started = time.perf_counter()
                response = await broker.run(SCRIPT)
                walls.append(time.perf_counter() - started)
                assert response.result == len(ROWS)
            await broker.learnt()
            return statistics.median(walls), clock.seconds / RUNS


def main() -> None:
    """Measure and print."""
    logging.disable(logging.INFO)
    body = json.dumps(ROWS)
    yardstick = timed(lambda: json.loads(body))
    inference = timed(lambda: shape_of([ROWS]))
    made = Learner(parse_settings({}).cellblock.schemas, None)
    entry = ToolEntry("rows", "rows")
    encoded = body.encode()

    def offer() -> None:
        made.offer("local", entry, "value", encoded)

    offering = timed(offer)
    print(f"a result of {len(body) / 1000:.0f} KB; json.loads of it, the yardstick: {yardstick * 1e3:.2f} ms")
    print(f"inference: {inference * 1e3:.2f} ms ({inference / yardstick:.2f} of the yardstick)")
    print(f"handing a result over, all that is in its way: {offering * 1e6:.1f} µs")
    clock = Clock()
    off, _ = asyncio.run(runs({"learn": False}, clock))
    new, new_cost = asyncio.run(runs({"stable_after": 1_000_000}, clock))
    stable, stable_cost = asyncio.run(runs({}, clock))
    print(f"median run: {off * 1e3:.1f} ms without learning")
    print(f"  every result is looked at: run {new * 1e3:.1f} ms, learner {new_cost / off:.1%} of a run")
    print(f"  as it is by default:       run {stable * 1e3:.1f} ms, learner {stable_cost / off:.1%} of a run")
    print(f"bounds: {learning.MAX_WAITING} results or {learning.MAX_WAITING_BYTES >> 20} MiB may wait")


if __name__ == "__main__":
    main()
