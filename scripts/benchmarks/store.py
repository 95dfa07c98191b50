"""Kills a process that writes the store of observed schemas, again and again, and looks at what is left.

Each round a child merges observations one by one, and says on its standard output which one it has committed. It is
killed with SIGKILL at a random moment. The file must then open clean, and hold every write that was committed, at
most the one under way besides. Prints the counts, and what a write costs beside a bare fsync-less file append.
"""

from __future__ import annotations

import os
import random
import sqlite3
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness import SCRIPTS, best_of, in_turns, parser
from cellblock.base.store import opened_file
from cellblock.learning.infer import shape_of
from cellblock.learning.observation import Observation, ToolKey
from cellblock.learning.store import TABLES, Observations

KEY = ToolKey("server", "tool", "f" * 16)
LONGEST_LIFE_SECONDS = 0.05
WRITES_TIMED = 300


def one_sample(number: int) -> Observation:
    """An observation whose shape grows for a while, so that versions are written too."""
    value: Any = {"id": number, f"key_{chr(97 + number % 26)}{chr(97 + number // 26 % 26)}": "x"}
    now = time.time()
    return Observation(value=shape_of([value]), samples=1, first_seen=now, last_seen=now)


def child(path: Path) -> None:
    """Writes for ever."""
    store = Observations(opened_file(path, TABLES))
    number = 0
    while True:
        merged = store.merge({KEY: one_sample(number)})
        sys.stdout.write(f"{merged[KEY].samples}\n")
        sys.stdout.flush()
        number += 1


def kill_once(path: Path, delay: float) -> tuple[int, int]:
    """Starts a writer and kills it `delay` seconds after its first write. Gives the samples that it committed for
    certain, and those in the file afterwards."""
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks", "store", "--child", str(path)],
        env={**os.environ, "PYTHONPATH": str(SCRIPTS)},
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )
    assert process.stdout is not None
    with process:
        first = process.stdout.readline()
        time.sleep(delay)
        process.kill()
        lines = [first, *process.stdout.read().splitlines()]
    # The last line may be cut off by the kill: it counts only when it is whole.
    said = max((int(line) for line in lines if line.strip().isdigit()), default=0)
    return said, samples_in(path)


def samples_in(path: Path) -> int:
    """Samples that the file holds. Fails when the file is damaged in any way."""
    with sqlite3.connect(path) as connection:
        verdict = connection.execute("PRAGMA integrity_check").fetchone()[0]
    connection.close()
    assert verdict == "ok", verdict
    store = Observations(opened_file(path, TABLES))
    try:
        found = store.load()
    finally:
        store.close()
    assert not list(path.parent.glob("*.damaged-*")), "the store was set aside"
    return found[KEY].samples if found else 0


def main(arguments: Sequence[str]) -> int:
    """Kills, looks, and prints; returns 0."""
    arguing = parser("store", __doc__)
    arguing.add_argument("--kills", type=int, default=100)
    arguing.add_argument("--child", type=Path, help="write to this file for ever: what is killed")
    options = arguing.parse_args(arguments)
    if options.child is not None:
        child(options.child)
    chance = random.Random(1)
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "schemas.sqlite3"
        lost = extra = 0
        for _ in range(options.kills):
            said, held = kill_once(path, chance.uniform(0.0, LONGEST_LIFE_SECONDS))
            lost += max(0, said - held)
            extra += max(0, held - said)
        print(f"{options.kills} kills: the file opened clean each time, {samples_in(path)} samples in it")
        print(f"committed writes lost: {lost}; writes that were committed but not yet said: {extra}")
        assert lost == 0
        assert extra <= options.kills
    with tempfile.TemporaryDirectory() as folder:
        store = Observations(opened_file(Path(folder) / "schemas.sqlite3", TABLES))
        yardstick = Path(folder) / "yardstick"
        numbers = iter(range(WRITES_TIMED))

        def add() -> None:
            with yardstick.open("ab") as file:
                file.write(b"x" * 2_000)

        found = in_turns(
            {
                "write": lambda: best_of(partial(store.merge, {KEY: one_sample(next(numbers))}), 1),
                "append": lambda: best_of(add, 1),
            },
            WRITES_TIMED,
        )
        store.close()
    write, append = (statistics.median(seconds) for seconds in found.values())
    print(f"one write: {write * 1e6:.0f} µs; opening and appending 2 KB to a file: {append * 1e6:.0f} µs")
    return 0
