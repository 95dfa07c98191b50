"""Load tests; of `--peers`: what became of a system that ran a loop is told, and one that is missing is a row."""

import asyncio
import json
import os
import sys
import time
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks.drive import LEAD_SECONDS, Outcome, closed, paced
from benchmarks.load import __main__ as load
from benchmarks.load import fronts, sweep, targets
from benchmarks.load.scenarios import BODIES, NO_IMPORT, ROWS, SCRIPTS, TRIVIAL, Scenario
from benchmarks.load.yardsticks import BareDeno
from benchmarks.peers import measure, report
from benchmarks.peers.hostile import LOOPS, try_loop
from benchmarks.peers.process import Gone, Peer
from support.documents import ROOT
from support.virtual_time import in_virtual_time


def test_an_earlier_result_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert load.main(["--result", str(ROOT / "docs/benchmarks/load-2026-11-27.json")]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("# Load test") and "## Targets" in shown


def test_a_file_that_is_no_result_is_refused_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "other.json").write_text("[]")
    for name, said in (
        ("none.json", "cannot be read"),
        ("other.json", "is no JSON result of scripts/loadtest"),
    ):
        with pytest.raises(SystemExit, match=r"^2$"):
            load.main(["--result", str(tmp_path / name)])
        output, errors = capsys.readouterr()
        assert output == "" and f"{tmp_path / name} {said}" in errors


async def test_the_bare_process_gives_what_each_script_gives(tmp_path: Path) -> None:
    bare = BareDeno(tmp_path)
    for scenario in (NO_IMPORT, *SCRIPTS.values()):
        assert (await bare.run(scenario))["result"] == scenario.gives, scenario.name


async def test_a_paced_client_that_still_waits_misses_its_turns() -> None:
    async def work(_: int) -> None:
        await asyncio.sleep(0.1)

    outcome = await paced(work, clients=2, period=0.01, seconds=0.2)
    # Twenty were due of each client.
    assert 2 <= outcome.latencies.count <= 6 and outcome.latencies.at(0) >= 90


def test_a_closed_load_is_not_credited_with_what_was_booted_before_it() -> None:
    booted, ends = 8, list[float]()

    async def work(_: int) -> dict[str, Any]:
        nonlocal booted
        booted -= 1
        await asyncio.sleep(0 if booted >= 0 else 0.02)
        return {"usage": {"cpuMs": 3}}

    async def whole() -> Outcome:
        outcome = Outcome()
        outcome.edge = lambda: ends.append(asyncio.get_running_loop().time())
        return await closed(work, clients=2, seconds=0.4, lead=LEAD_SECONDS, outcome=outcome)

    outcome = in_virtual_time(whole())
    assert outcome.latencies.at(0) == pytest.approx(20, rel=0.01)
    assert outcome.per_second == pytest.approx(100) and outcome.seconds == pytest.approx(0.4)
    assert ends == pytest.approx([LEAD_SECONDS, LEAD_SECONDS + 0.4])
    assert outcome.worker_ms == 3 * outcome.latencies.count


def test_a_cell_gives_the_median_of_its_rounds_and_the_sum_of_what_is_counted() -> None:
    turns = [
        {"per_second": rate, "seconds": 2.0, "latency": {"p50_ms": p50, "count": 10, "points": [[50, p50]]}}
        for rate, p50 in ((90.0, 4.0), (10.0, 99.0), (100.0, 3.0))
    ]
    assert sweep.medians(turns) == {
        "per_second": 90.0,
        "seconds": 6.0,
        "latency": {"p50_ms": 4.0, "count": 30, "points": [[50, 4.0]]},
    }


class Counting:
    """A way that takes 20 ms for a run, and tells what is asked of it."""

    pid = 0

    def __init__(self, name: str, told: list[str]) -> None:
        self.name, self._told = name, told

    async def run(self, scenario: Scenario, *, client: str = "") -> dict[str, Any]:
        if self._told[-1:] != [self.name]:
            self._told.append(self.name)
        await asyncio.sleep(0.02)
        return {"result": scenario.gives, "diagnostics": []}

    async def rested(self) -> None:
        self._told.append(f"{self.name} has rested")


def test_a_way_has_rested_before_the_next_ones_turn() -> None:
    told: list[str] = []
    ways = {name: Counting(name, told) for name in (sweep.BARE, "never")}
    work = sweep.measure(ways, quick=False, say=told.append, among=lambda: iter([sweep.SATURATED]))
    (bare, never) = in_virtual_time(work)
    one_round = [sweep.BARE, f"{sweep.BARE} has rested", "never", "never has rested"]
    # The first line says which cell it is; each way then runs once, so that it has compiled the script.
    assert told[1:] == [sweep.BARE, "never", *one_round * 3]
    assert [len(row["rounds"]) for row in (bare, never)] == [3, 3]
    assert bare["per_second"] == pytest.approx(400, rel=0.05)


async def test_the_brokers_cpu_is_without_what_the_harness_takes_itself() -> None:
    """The load's answers are made to cost the harness 100 milliseconds each."""

    class Answer:
        def as_json(self) -> dict[str, Any]:
            until = time.thread_time() + 0.1
            while time.thread_time() < until:
                pass
            return {"result": TRIVIAL.gives, "diagnostics": [], "usage": {"cpuMs": 1}}

    class Daemon:
        host_pid = None

        async def run(self, *_: Any, **__: Any) -> Answer:
            await asyncio.sleep(0)
            return Answer()

    row = await sweep.turn(fronts.Embedded(cast("Any", Daemon())), sweep.WARM, 0.06, lambda _: None)
    assert row["latency"]["count"] > 0 and row["cpu_ms"]["worker"] == 1
    assert row["cpu_ms"]["broker"] < 100


@pytest.mark.slow
async def test_an_embedded_broker_has_rested_when_its_workers_are_replaced(tmp_path: Path) -> None:
    async with fronts.embedded(tmp_path) as front:
        await asyncio.gather(*(front.run(TRIVIAL) for _ in range(6)))
        await front.rested()
        assert front.broker.warm_workers >= front.broker.settings.cellblock.pool.warm


@pytest.mark.parametrize(("mode", "met"), [("never", True), ("principal", False)])
def test_targets_come_from_the_load_beside_the_bare_process(mode: str, met: bool) -> None:
    def row(cell: sweep.Cell, way: str, per_second: float, p50: float) -> dict[str, Any]:
        latency = {"p50_ms": p50, "p99_ms": 2 * p50}
        cpu = {"broker": 1.1, "host": 2.0, "worker": 2.0}
        return {"way": way, **sweep.key(cell), "per_second": per_second, "latency": latency, "cpu_ms": cpu}

    rows = [row(cell, way, *figures) for cell in sweep.cells() for way, figures in
            ((sweep.BARE, (125.0, 20.0)), (mode, (100.0, 3.0)))]  # fmt: skip
    found = targets.of_sweep(rows, mode)
    by_what = {one.what.removesuffix("; reuse principal"): one for one in found}
    for what, measured in (
        ("warm p50 / bare deno p50", 0.15),
        ("bare rate / runs per second, 8 clients", 1.25),
    ):
        assert (by_what[what].measured, by_what[what].met) == (pytest.approx(measured), met)
    assert any(one.number == "2c" for one in found) == (mode == "principal")


SYSTEMS = Path(measure.__file__).parent / "systems"
SYSTEM = """
import asyncio, os, threading
from serve import serve

async def run(code):
    if code == "die":
        os._exit(3)
    if code == "hang":
        await asyncio.Event().wait()
    if code == "refuse":
        raise ValueError("not with me")
    if code == "compute":
        threading.Thread(target=spin, daemon=True).start()
    if code == "lose":
        lost.append(0)
        return 0
    return lost.pop() if lost else 499500

def spin():
    while True:
        pass

lost = []
asyncio.run(serve(run))
"""


async def start(folder: Path, program: str = SYSTEM) -> Peer:
    (folder / "rows.json").write_text(json.dumps(ROWS[:1]), "utf-8")
    (folder / "peer.py").write_text(program, "utf-8")
    environment = {"PYTHONPATH": str(SYSTEMS), "PATH": os.environ["PATH"]}
    return await Peer.start(
        [sys.executable, "peer.py", "rows.json", "1000"], environment, folder, folder / "log"
    )


@pytest.mark.slow
@pytest.mark.parametrize(
    ("loop", "verdict", "computing", "said"),
    [
        ("refuse", "survived", False, "ValueError: not with me"),
        ("compute", "survived", True, ""),
        ("die", "died", False, "exit code 3"),
        ("lose", "died", False, "answered a trivial run with"),
    ],
)
async def test_what_became_of_a_system(
    tmp_path: Path, loop: str, verdict: str, computing: bool, said: str
) -> None:
    found = await try_loop(lambda: start(tmp_path), loop, "trivial", bound=60.0)
    assert (found["verdict"], found["computing"]) == (verdict, computing) and said in found["said"]
    assert (found["neighbour_s"] is not None) == (verdict == "survived")


@pytest.mark.slow
async def test_a_system_that_does_not_answer_hangs_and_still_serves_its_neighbour(tmp_path: Path) -> None:
    found = await try_loop(lambda: start(tmp_path), "hang", "trivial", bound=5.0)
    assert found["verdict"] == "hung"


async def test_one_that_does_not_start_says_its_own_words(tmp_path: Path) -> None:
    with pytest.raises(Gone, match=r"exit code 1: ImportError: no such addon"):
        await start(tmp_path, "raise ImportError('no such addon')")


def test_a_row_for_each_system_and_the_reason_of_a_missing_one() -> None:
    def load(system: str, per_second: float) -> list[dict[str, Any]]:
        latency = {"count": 1, "p50_ms": 1.5}
        return [
            {"system": system, "scenario": name, "clients": n, "per_second": per_second, "latency": latency}
            for name in BODIES
            for n in measure.CLIENTS
        ]

    survived = {"verdict": "survived", "seconds": 2.0, "computing": False, "neighbour_s": 0.01, "said": ""}
    hung = {"verdict": "hung", "computing": False, "neighbour_s": None}
    row = {"version": "1.0", "isolates": "a wall", "missing": None}
    result = {
        "machine": {
            "date": "2026-11-24T00:00", "cores": 2, "memory_gib": 1, "system": "", "python": "", "deno": "",
            "load_average_before": [],
        },
        "quick": True,
        "systems": [{**row, "name": "slow"}, {**row, "name": "fast"}, {**row, "name": "none", "missing": "no addon"}],
        "load": [*load("slow", 10), *load("fast", 900)],
        "loops": [{"system": "slow", "loop": loop, **survived} for loop in LOOPS]
        + [{"system": "fast", "loop": loop, **hung} for loop in LOOPS],
    }  # fmt: skip
    text = report.markdown(result)
    assert "| none | 1.0 | a wall | no addon |" in text
    assert f"| fast |{' 900 |' * len(BODIES)}" in text
    assert f"| fast |{' **hung**; neighbour not answered |' * len(LOOPS)}" in text
    assert f"| slow |{' survived, 2.0 s; neighbour 0.01 s |' * len(LOOPS)}" in text
