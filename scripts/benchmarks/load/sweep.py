"""The scripts under load, in turns with the same scripts in bare `deno run` processes.

Each cell is a script, a number of clients and an arrival; every way of running it has its turn in each round, so that
what else the machine does falls on all of them.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final, Literal

from benchmarks.load import tree
from benchmarks.load.drive import ClientsWork, Outcome, closed, paced
from benchmarks.load.fronts import CLIENT, Embedded, Front
from benchmarks.load.scenarios import NO_IMPORT, SCRIPTS, TRIVIAL, Scenario

BARE: Final = "bare"
"""The way whose figures the others' are divided by."""

CLIENTS: Final = (1, 2, 8)
CORES: Final = os.cpu_count() or 1
PERIOD_SECONDS: Final = 0.06
"""Between two due runs of a paced client; with more clients than cores longer, so that no way is near its limit."""

LONGER: Final = 4
"""How much more of it the cell has that latencies are judged by."""

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


@dataclass
class _Way:
    """What one way of running a cell has given so far, and the CPU that it took."""

    front: Front
    outcome: Outcome = field(default_factory=Outcome)
    machine: float = 0.0
    broker: float = 0.0
    host: float = 0.0
    worker_ms: float = 0.0

    async def turn(self, cell: Cell, seconds: float, say: Callable[[str], None]) -> None:
        """Puts the load on for so long."""
        period = PERIOD_SECONDS * max(1, cell.clients / CORES)
        before = self._cpu()
        work = self._work(cell, say)
        clients, long, outcome = cell.clients, seconds * cell.turn, self.outcome
        if cell.arrival == "closed":
            await closed(work, clients=clients, seconds=long, outcome=outcome)
        else:
            await paced(work, clients=clients, period=period, seconds=long, outcome=outcome)
        machine, broker, host = (now - then for now, then in zip(self._cpu(), before, strict=True))
        self.machine, self.broker, self.host = self.machine + machine, self.broker + broker, self.host + host

    def _cpu(self) -> tuple[float, float, float]:
        """Of the machine, the broker in this process, and its host; a daemon behind a front-end is not taken apart."""
        host = tree.cpu_seconds(self.front.pid) if isinstance(self.front, Embedded) else 0.0
        return tree.busy_seconds(), time.process_time(), host

    def _work(self, cell: Cell, say: Callable[[str], None]) -> ClientsWork:
        async def one(number: int) -> Any:
            response = await self.front.run(cell.scenario, client=f"{CLIENT} {number % cell.principals}")
            if response.get("result") != cell.scenario.gives:
                say(f"unexpected outcome of {cell.scenario.name} through {self.front.name}: {response}")
                raise RuntimeError(cell.scenario.name)
            self.worker_ms += response.get("usage", {}).get("cpuMs", 0)
            return response

        return one

    def as_json(self) -> dict[str, Any]:
        """Rate, latencies, and milliseconds of CPU for each run: of the whole machine, and of the daemon's parts."""
        runs = max(1, self.outcome.latencies.count)
        cpu = {"machine": self.machine * 1000}
        if isinstance(self.front, Embedded):
            cpu |= {"broker": self.broker * 1000, "host": self.host * 1000, "worker": self.worker_ms}
        return {
            "front": self.front.name,
            "cpu_ms": {part: round(ms / runs, 2) for part, ms in cpu.items()},
            **self.outcome.as_json(),
        }


async def measure(
    ways: Mapping[str, Front], *, quick: bool, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Every cell through every way, as rows for the report; `ways` has the bare process under `BARE`."""
    rounds, seconds = (1, 0.4) if quick else (3, 2.0)
    rows: list[dict[str, Any]] = []
    for cell in cells():
        say(f"{cell.arrival}: {cell.scenario.name}, {cell.clients} clients, {cell.principals} principals")
        here = {way: _Way(front) for way, front in ways.items()}
        for one in here.values():
            # As one of its clients: hosts have a busy client's runs give way to another one that was seen lately.
            await one.front.run(cell.scenario, client=f"{CLIENT} 0")
        for _ in range(rounds):
            for one in here.values():
                await one.turn(cell, seconds, say)
        rows += [{"way": way, **key(cell), **one.as_json()} for way, one in here.items()]
    return rows


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
    wanted = {"way": way, **key(cell)}
    return next(row for row in rows if wanted.items() <= row.items())
