"""Measures what learning from results costs a run that gets a 100 KB result.

Runs of one script follow each other without a pause, without learning and with it. Printed are the medians of the
runs' wall time, and the processor time of the learner's thread as a share of it: with every result wanted, and as it is
by default, from a tool's first result on. Then the same with pauses between runs, as an agent makes them: there looks
wait for the pauses, and the figure is the part of them that fell into a run. The yardstick is `json.loads`.
"""

from __future__ import annotations

import asyncio
import json
import logging
import statistics
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.harness import broker, median_of, parser, seconds_of
from cellblock import tool
from cellblock.catalog.model import ToolEntry
from cellblock.config.settings import parse_settings
from cellblock.learning import offers as learning
from cellblock.learning.infer import shape_of
from cellblock.learning.infer.fits import Fits
from cellblock.learning.learner import Learner

RUNS = 60
REPEATS = 200
PAUSE_SECONDS = 0.25
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
SCRIPT = """
import { rows } from "@codemode/servers/local";
globalThis.__codemode_result__ = (await rows({})).result.length;
"""


@tool()
def rows():  # no annotation: nothing is declared, so that something is to be learnt
    """Gives rows."""
    return ROWS


def timed(work: Any) -> float:
    """Median processor seconds of one call."""
    return median_of(work, REPEATS, time.process_time)


class Clock:
    """The processor time of looks at results, in the learner's own thread, and what of it fell into a run."""

    def __init__(self) -> None:
        self.running = False
        self.looks = 0
        self.seconds = self.seconds_in_runs = 0.0
        clock, plain = self, Learner._read  # pyright: ignore[reportPrivateUsage]

        def read(self: Learner, offer: Any) -> None:
            started, running = time.thread_time(), clock.running
            plain(self, offer)
            took = time.thread_time() - started
            clock.looks += 1
            clock.seconds += took
            clock.seconds_in_runs += took * (running or clock.running)

        Learner._read = read  # pyright: ignore[reportPrivateUsage]

    def reset(self) -> None:
        """Forgets what was measured."""
        self.looks, self.seconds, self.seconds_in_runs = 0, 0.0, 0.0


async def runs(learn: dict[str, Any], clock: Clock, pause: float = 0.0) -> float:
    """Median wall seconds of a run."""
    async with broker(tools=[rows], schemas=learn, pool={"warm": 2}) as made:
        for _ in range(3):
            await made.run("globalThis.__codemode_result__ = 1;")
        clock.reset()
        walls = list[float]()

        async def run() -> None:
            response = await made.run(SCRIPT)
            assert response.result == len(ROWS), response

        for _ in range(RUNS):
            clock.running = True
            walls.append(await seconds_of(run()))
            clock.running = False
            await asyncio.sleep(pause)
        return statistics.median(walls)


def main(arguments: Sequence[str]) -> int:
    """Measures and prints; returns 0."""
    parser("inference", __doc__).parse_args(arguments)
    logging.disable(logging.INFO)
    body = json.dumps(ROWS)
    yardstick = timed(lambda: json.loads(body))
    inference = timed(lambda: shape_of([ROWS]))
    fits = Fits(shape_of([ROWS]))
    assert fits(ROWS)
    asking = timed(lambda: fits(ROWS))
    made = Learner(parse_settings({}).cellblock.schemas, None)
    entry = ToolEntry("rows", "rows")
    encoded = body.encode()

    def offer() -> None:
        made.offer("local", entry, "value", encoded, ROWS)

    offering = timed(offer)
    print(f"a result of {len(body) / 1000:.0f} KB; json.loads of it, the yardstick: {yardstick * 1e3:.2f} ms")
    print(f"making its shape: {inference * 1e3:.2f} ms ({inference / yardstick:.2f} of the yardstick)")
    print(
        f"asking whether it adds anything: {asking * 1e3:.2f} ms ({asking / yardstick:.2f} of the yardstick)"
    )
    print(f"handing a result over, all that is in its way: {offering * 1e6:.1f} µs")
    clock = Clock()
    off = asyncio.run(runs({"learn": False}, clock))
    print(f"median run: {off * 1e3:.1f} ms without learning")
    for name, learn, pause in (
        ("every result wanted, runs without a pause", {"stable_after": 1_000_000}, 0.0),
        ("as by default, runs without a pause", {}, 0.0),
        (
            f"every result wanted, {PAUSE_SECONDS:g} s between runs",
            {"stable_after": 1_000_000},
            PAUSE_SECONDS,
        ),
    ):
        wall = asyncio.run(runs(learn, clock, pause))
        share = clock.seconds_in_runs / RUNS / off
        each = clock.seconds / max(clock.looks, 1)
        print(
            f"  {name}: run {wall * 1e3:.1f} ms; {clock.looks} of {RUNS} results looked at, {each * 1e3:.2f} ms each "
            f"({each / off:.1%} of a run); in runs {share:.2%} of their time"
        )
    print(f"bounds: {learning.MAX_WAITING} results or {learning.MAX_WAITING_BYTES >> 20} MiB may wait")
    return 0
