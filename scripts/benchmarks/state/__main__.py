"""Kills brokers that write to a PostgreSQL, restarts the PostgreSQL under one that writes, and looks at what is left.

First two processes at a time write as brokers do, all that brokers share: runs (that park, are answered and taken),
outputs, pins, tokens, logins, shapes of results, strict quotas. Each says over a pipe which step is written for
certain, and is killed with SIGKILL at a random moment. Then another broker looks: each step that was said must be
there, once and whole, and nothing that is half written may be readable. After that one process writes while the server
is stopped (as if its processes were killed, or in an orderly way) and started again: what is refused then is counted,
and may be there or not; all else as above. Prints the counts.

The server is the wheel's, on this machine, and writes through to the disk. Exit code 0: nothing was lost.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import random
import signal
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from multiprocessing.connection import Connection
from typing import Final

from benchmarks.harness import BOUND_SECONDS, median_and, parser, say
from benchmarks.state import broker
from benchmarks.state.broker import Line
from benchmarks.state.kinds import KINDS, Said
from benchmarks.state.stores import opened
from support.postgresql import Postgres

BROKERS: Final = "ab"
"""Names the brokers of a round, which write to one PostgreSQL at once."""

LONGEST_LIFE_SECONDS: Final = 0.3
"""Bounds the time from a broker's first words to its death."""

UP_SECONDS: Final = 0.1
"""Bounds the time from PostgreSQL's start to its next end."""

PROCESSES: Final = multiprocessing.get_context("forkserver")
"""Starts brokers in a moment, from a process that has imported all and done nothing."""
PROCESSES.set_forkserver_preload([broker.__name__, "psycopg", "cryptography.hazmat.primitives.ciphers.aead"])


class Writer:
    """Owns the process of one broker, from its first words on; every method blocks.

    Args:
        url: The PostgreSQL's.
        group: The round's name.
        name: The broker's.
    """

    def __init__(self, url: str, group: str, name: str) -> None:
        self._pipe, its = PROCESSES.Pipe()
        self._process = PROCESSES.Process(target=broker.write, args=(url, group, name, its), daemon=True)
        self._process.start()
        its.close()
        self.lines: list[Line] = _next(self._pipe)

    def kill(self) -> None:
        """Kills it."""
        self._process.kill()

    def stop(self) -> None:
        """Lets it end."""
        self._pipe.send(None)

    def follow(self) -> int | None:
        """Takes in what it says until its end, and returns its exit code. What a kill has cut off was not said."""
        while more := _next(self._pipe):
            self.lines += more
        self._process.join()
        return self._process.exitcode


def _next(pipe: Connection) -> list[Line]:
    try:
        return [pipe.recv()]
    except (EOFError, OSError):
        return []


async def kill_round(url: str, group: str, chance: random.Random) -> tuple[list[Line], list[str]]:
    """Kills each broker of a round at a random moment. Gives what they have said, and what is wrong with that."""

    async def killed(name: str, life: float) -> Writer:
        writer = await asyncio.to_thread(Writer, url, group, name)
        following = asyncio.create_task(asyncio.to_thread(writer.follow))
        await asyncio.sleep(life)
        writer.kill()
        if (code := await following) != -signal.SIGKILL:
            faults.append(f"{name} has ended by itself, with {code}")
        return writer

    faults = list[str]()
    lives = [(f"{group}{name}", chance.uniform(0.0, LONGEST_LIFE_SECONDS)) for name in BROKERS]
    writers = await asyncio.gather(*(killed(*life) for life in lives))
    lines = [line for writer in writers for line in writer.lines]
    faults += [f"{line.kind}: {line.item} was refused: {line.refused}" for line in lines if line.refused]
    return lines, [*faults, *await wrong(url, group, lines)]


async def restarts(
    postgres: Postgres, url: str, group: str, times: int, chance: random.Random
) -> tuple[list[Line], list[str]]:
    """Restarts the server so often under one broker. Gives what it has said, and what is wrong with that."""
    writer = await asyncio.to_thread(Writer, url, group, group)
    following = asyncio.create_task(asyncio.to_thread(writer.follow))
    for number in range(times):
        await asyncio.sleep(chance.uniform(0.0, UP_SECONDS))
        await asyncio.to_thread(postgres.stop, chance.choice((signal.SIGQUIT, signal.SIGINT)))
        await asyncio.to_thread(postgres.start)
        if number % 10 == 9:
            say(f"{number + 1} restarts")
    writer.stop()
    if not (await asyncio.wait([following], timeout=BOUND_SECONDS))[0]:
        writer.kill()
    faults = [] if (code := await following) == 0 else [f"the broker has failed, with {code}"]
    return writer.lines, [*faults, *await wrong(url, group, writer.lines)]


async def wrong(url: str, group: str, lines: Iterable[Line]) -> list[str]:
    """Lists what another broker finds that is not as the brokers of a round have said."""
    said: defaultdict[str, dict[str, Said]] = defaultdict(dict)
    for line in lines:
        said[line.kind][line.item] = Said(line.steps, line.text)
    async with opened(url) as stores:
        return [
            f"{kind}: {fault}"
            for kind, items in said.items()
            async for fault in KINDS[kind].wrong(stores, group, items)
        ]


def counted(lines: Sequence[Line]) -> str:
    """Words how many writes were certain, of which kind."""
    certain = Counter(line.kind for line in lines if line.seconds)
    by_kind = ", ".join(f"{kind} {certain[kind]}" for kind in KINDS)
    return f"{certain.total()} writes were certain ({by_kind})"


async def measure(kills: int, times: int) -> int:
    """Kills, restarts, looks, and prints."""
    chance = random.Random(1)
    postgres = Postgres(safe=True)
    try:
        url = postgres.database()
        lines, faults, rounds = list[Line](), list[str](), -(-kills // len(BROKERS))
        for number in range(rounds):
            told, bad = await kill_round(url, f"k{number}", chance)
            lines += told
            faults += bad
            if number % 25 == 24:
                say(f"{(number + 1) * len(BROKERS)} kills, wrong: {len(faults)}")
        print(f"{rounds * len(BROKERS)} kills of a broker: {counted(lines)}, wrong: {len(faults)}")
        told, bad = await restarts(postgres, url, "long", times, chance)
        refused = sum(bool(line.refused) for line in told)
        print(f"{times} restarts of PostgreSQL: {counted(told)}, {refused} refused, wrong: {len(bad)}")
        median, worst = median_and(100, (line.seconds for line in told if line.seconds))
        print(f"one write: {median * 1e3:.1f} ms (median), {worst:.2f} s at most, over a restart")
    finally:
        postgres.close()
    for fault in [*faults, *bad]:
        print(fault)
    return 1 if faults or bad else 0


def main(arguments: Sequence[str]) -> int:
    """Measures, and returns the exit code."""
    arguing = parser("state", __doc__)
    arguing.add_argument("--kills", type=int, default=100)
    arguing.add_argument("--restarts", type=int, default=10)
    options = arguing.parse_args(arguments)
    return asyncio.run(measure(options.kills, options.restarts))
