"""The scripts under load, in turns with the same scripts in bare `deno run` processes.

Each cell is a script, a number of clients and an arrival; every way of running it has its turn in each round, so that
what else the machine does falls on all of them. A cell's figures are medians over its rounds.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, Literal, cast

from benchmarks import processes
from benchmarks.drive import LEAD_SECONDS, Outcome, closed, paced
from benchmarks.load.fronts import CLIENT, Embedded, Front
from benchmarks.load.scenarios import NO_IMPORT, SCRIPTS, TRIVIAL, Scenario

BARE: Final = "bare"
"""The way whose figures the others' are divided by."""

CLIENTS: Final = (1, 2, 8)
CORES: Final = os.cpu_count() or 1
PERIOD_SECONDS: Final = 0.06
"""Between two due runs of a paced client; with more clients than cores longer, so that no way is near its limit."""

COUNTED: Final = ("count", "errors", "seconds")
"""What is added up over the rounds; of all else the median counts."""

LONGER: Final = 4
"""How much more of it the cell has that latencies are judged by."""

PARTS: Final = ("machine", "broker", "host", "launcher", "worker")
"""Names what CPU time is counted for; the worker's is that of its runs, as the answers say."""

Arrival = Literal["closed", "paced"]


@dataclass(frozen=True, slots=True)
class Cell:
    """One load. `principals` says how many clients of the daemon its loops are."""

    scenario: Scenario
    clients: int
    arrival: Arrival
    principals: int = 1

    @property
    def turn(self) -> float:
        """How long its turns are, in those of the others."""
        return LONGER if self == WARM else 1


WARM: Final = Cell(TRIVIAL, 1, "paced")
ONE: Final = Cell(TRIVIAL, 1, "closed")
SATURATED: Final = Cell(TRIVIAL, 8, "closed")
APART: Final = Cell(TRIVIAL, 8, "closed", principals=8)
PLAIN: Final = Cell(NO_IMPORT, 8, "closed")
IN_A_ROW: Final = Cell(SCRIPTS["20 calls in a row"], 1, "paced")


def cells() -> Iterator[Cell]:
    """Every script that imports a server in each load, and what the targets need beside."""
    for scenario in SCRIPTS.values():
        for clients in CLIENTS:
            yield Cell(scenario, clients, "closed")
            yield Cell(scenario, clients, "paced")
    yield from (APART, PLAIN)


async def turn(front: Front, cell: Cell, seconds: float, say: Callable[[str], None]) -> dict[str, Any]:
    """Puts the load on once; gives rate, latencies, and milliseconds of CPU for each run: of the whole machine, and of
    the daemon's parts."""
    outcome, readings = Outcome(), list[tuple[float, float, float, float]]()
    outcome.edge = lambda: readings.append(_cpu(front, outcome))

    async def one(number: int) -> Any:
        response = await front.run(cell.scenario, client=f"{CLIENT} {number % cell.principals}")
        if response.get("result") != cell.scenario.gives:
            say(f"unexpected outcome of {cell.scenario.name} through {front.name}: {response}")
            raise RuntimeError(cell.scenario.name)
        return response

    long = seconds * cell.turn
    if cell.arrival == "closed":
        await closed(one, clients=cell.clients, seconds=long, lead=LEAD_SECONDS, outcome=outcome)
    else:
        period = PERIOD_SECONDS * max(1, cell.clients / CORES)
        await paced(one, clients=cell.clients, period=period, seconds=long, outcome=outcome)
    runs = max(1, outcome.latencies.count)
    used = ((now - then) * 1000 / runs for then, now in zip(*readings, strict=True))
    cpu = dict(zip(PARTS, (*used, outcome.worker_ms / runs), strict=True))
    # A launcher that a new one has followed takes what it has used with it.
    return {"cpu_ms": {part: round(max(0.0, ms), 3) for part, ms in cpu.items()}, **outcome.as_json()}


def _cpu(front: Front, outcome: Outcome) -> tuple[float, float, float, float]:
    """CPU seconds so far of the machine, of the broker in this process without what is the harness's own there, of its
    host, and of what starts the workers for the host; a daemon behind a front-end is not taken apart."""
    if not isinstance(front, Embedded):
        return processes.busy_seconds(), 0.0, 0.0, 0.0
    own = outcome.own_seconds + front.own_seconds
    # What is young is about to be a worker.
    there = {one.pid for one in processes.tree(front.pid) if one.create_time() < time.time() - 1}
    launcher = sum(map(processes.cpu_seconds, there - {front.pid, *processes.workers(front.pid)}))
    return processes.busy_seconds(), time.process_time() - own, processes.cpu_seconds(front.pid), launcher


def medians(turns: Sequence[Any]) -> Any:
    """Gives one turn's figures of several: the median of each, and sums of what is counted."""
    first = turns[0]
    if isinstance(first, dict):
        keys = cast("dict[str, Any]", first)
        return {
            key: sum(one[key] for one in turns) if key in COUNTED else medians([one[key] for one in turns])
            for key in keys
        }
    if isinstance(first, list):
        return [medians(same) for same in zip(*turns, strict=True)]
    return statistics.median(turns)


async def measure(
    ways: Mapping[str, Front],
    *,
    quick: bool,
    say: Callable[[str], None],
    among: Callable[[], Iterator[Cell]] = cells,
) -> list[dict[str, Any]]:
    """Every cell through every way, as rows for the report; `ways` has the bare process under `BARE`."""
    rounds, seconds = (1, 0.4) if quick else (3, 2.0)
    rows: list[dict[str, Any]] = []
    for cell in among():
        say(f"{cell.arrival}: {cell.scenario.name}, {cell.clients} clients, {cell.principals} principals")
        turns: dict[str, list[dict[str, Any]]] = {way: [] for way in ways}
        for front in ways.values():
            # As one of its clients: hosts have a busy client's runs give way to another one that was seen lately.
            await front.run(cell.scenario, client=f"{CLIENT} 0")
        for _ in range(rounds):
            for way, front in ways.items():
                turns[way].append(await turn(front, cell, seconds, say))
                if cell.arrival == "closed":
                    await front.rested()
        rows += [
            {"way": way, **key(cell), "front": ways[way].name, **medians(all_turns)}
            | {"rounds": [_in_short(one) for one in all_turns]}
            for way, all_turns in turns.items()
        ]
    return rows


def _in_short(one: dict[str, Any]) -> dict[str, float]:
    """Of a turn what its neighbours are compared by."""
    return {"per_second": one["per_second"], **{f"{p}_ms": one["latency"][f"{p}_ms"] for p in ("p50", "p99")}}


def key(cell: Cell) -> dict[str, Any]:
    """What names a cell in a result."""
    return {
        "scenario": cell.scenario.name,
        "clients": cell.clients,
        "arrival": cell.arrival,
        "principals": cell.principals,
    }


def row_of(rows: list[dict[str, Any]], cell: Cell, way: str) -> dict[str, Any]:
    """The row of a cell through one way."""
    return next(row for row in rows if {"way": way, **key(cell)}.items() <= row.items())
