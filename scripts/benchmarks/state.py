"""Kills brokers that write to a PostgreSQL, restarts the PostgreSQL under one that writes, and looks at what is left.

First a child writes runs as brokers do (a beginning, a call, an end), and says on its standard output which step is
written for certain. It is killed with SIGKILL at a random moment; then each step that it has said must be there, once
and readable. After that one child writes while the server is stopped (as if its processes were killed, or in an orderly
way) and started again; nothing may be missing or there twice, and no write may have failed. Prints the counts.

The server is the wheel's, on this machine, and writes through to the disk. Exit code 0: nothing was lost.
"""

from __future__ import annotations

import asyncio
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Final

from benchmarks.harness import SCRIPTS, median_and, parser, say
from cellblock.base.shared_state import SharedState
from cellblock.config.journal import JournalSettings
from cellblock.journal.journals import Journals
from cellblock.journal.place import SharedPlace
from cellblock.journal.rows import Head, Piece
from support.postgresql import Postgres

KEY: Final = b"\1" * 32
LONGEST_LIFE_SECONDS: Final = 0.1
PIECES: Final = (1, 2, 2)
"""Says how many pieces a run has after each of its steps; its end takes the place of the others."""


def child(url: str, name: str) -> None:
    """Writes until its standard input ends."""
    asyncio.run(_writing(url, name))


async def _writing(url: str, name: str) -> None:
    shared = SharedState(url, (KEY,))
    presence = shared.start({})
    journals = Journals(SharedPlace(shared), JournalSettings(mode="all"))
    stopped = asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    number = 0
    while not stopped.done():
        head = Head(f"{name}-{number}", "bench", time.time(), state="running")
        over = replace(head, ended=time.time(), outcome="ok", state="ended")
        steps = [(head, ["recording"]), (head, ["call"]), (over, ["facts", "recording"])]
        for step, (row, kinds) in enumerate(steps):
            began = time.perf_counter()
            body = [Piece(kind, head.id.encode()) for kind in kinds]  # type: ignore[arg-type]
            writing = journals.write(row, lambda body=body: body, owner=presence.name)
            assert await asyncio.wrap_future(writing), f"{head.id} {step} was not written"
            sys.stdout.write(f"{head.id} {step} {time.perf_counter() - began:.6f}\n")
            sys.stdout.flush()
        number += 1
    await journals.close()
    shared.close()


def started(url: str, name: str) -> subprocess.Popen[str]:
    """Starts a child."""
    return subprocess.Popen(
        [sys.executable, "-m", "benchmarks", "state", "--child", url, name],
        env={**os.environ, "PYTHONPATH": os.pathsep.join((str(SCRIPTS), str(SCRIPTS.parent / "tests")))},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        bufsize=1,
    )


def kill_once(url: str, name: str, delay: float) -> tuple[list[str], list[str]]:
    """Kills a child `delay` seconds after its first write. Gives what it has said, and what is wrong with that."""
    process = started(url, name)
    assert process.stdout is not None
    with process:
        first = process.stdout.readline()
        time.sleep(delay)
        process.kill()
        # The last line may be cut off by the kill: it counts only when it is whole.
        lines = [
            line for line in (first + process.stdout.read()).splitlines(keepends=True) if line[-1] == "\n"
        ]
    return lines, wrong(url, name, lines)


def restart(postgres: Postgres, url: str, times: int, chance: random.Random) -> tuple[list[str], list[str]]:
    """Restarts the server so often under one child. Gives what it has said, and what is wrong with that."""
    process = started(url, "long")
    assert process.stdout is not None and process.stdin is not None
    with process:
        lines = [process.stdout.readline()]
        for number in range(times):
            time.sleep(chance.uniform(0.0, LONGEST_LIFE_SECONDS))
            postgres.stop(chance.choice((signal.SIGQUIT, signal.SIGINT)))
            postgres.start()
            lines.append(process.stdout.readline())
            if number % 10 == 9:
                say(f"{number + 1} restarts")
        process.stdin.close()
        lines += process.stdout.readlines()
    return lines, [*wrong(url, "long", lines), *([] if process.returncode == 0 else ["a write has failed"])]


def wrong(url: str, name: str, lines: Iterable[str]) -> list[str]:
    """Lists what is not as a child has said: steps that are missing, or pieces that are there twice."""
    said: dict[str, int] = {}
    for line in lines:
        run, step, _ = line.split()
        said[run] = int(step)
    shared = SharedState(url, (KEY,))
    store = SharedPlace(shared).opened(lambda: (KEY,), JournalSettings())
    found: list[str] = []
    for run, step in said.items():
        read = store.read(run)
        if read is None:
            found.append(f"{run} is lost")
            continue
        count, ended = len(read[1]), read[0].state == "ended"
        # One step more may have been written and not yet said.
        allowed = {(PIECES[one], one == 2) for one in (step, min(step + 1, 2))}
        if (count, ended) not in allowed:
            found.append(f"{run} has {count} pieces after step {step}")
        if any(piece.body != run.encode() for piece in read[1]):
            found.append(f"{run} has another run's pieces")
    shared.close()
    return found


def main(arguments: Sequence[str]) -> int:
    """Kills, restarts, looks, and prints."""
    arguing = parser("state", __doc__)
    arguing.add_argument("--kills", type=int, default=100)
    arguing.add_argument("--restarts", type=int, default=10)
    arguing.add_argument("--child", nargs=2, metavar=("URL", "NAME"), help="write there: what is killed")
    options = arguing.parse_args(arguments)
    if options.child:
        child(*options.child)
        return 0
    chance = random.Random(1)
    postgres = Postgres(safe=True)
    try:
        url = postgres.database()
        lines, faults = list[str](), list[str]()
        for number in range(options.kills):
            told, bad = kill_once(url, f"k{number}", chance.uniform(0.0, LONGEST_LIFE_SECONDS))
            lines += told
            faults += bad
            if number % 50 == 49:
                say(f"{number + 1} kills")
        print(f"{options.kills} kills of a broker: {len(lines)} writes were certain, wrong: {len(faults)}")
        told, bad = restart(postgres, url, options.restarts, chance)
        print(
            f"{options.restarts} restarts of PostgreSQL: {len(told)} writes were certain, wrong: {len(bad)}"
        )
        median, worst = median_and(100, (float(line.split()[2]) for line in told))
        print(f"one write: {median * 1e3:.1f} ms (median), {worst:.2f} s at most, over a restart")
    finally:
        postgres.close()
    for fault in [*faults, *bad]:
        print(fault)
    return 1 if faults or bad else 0
