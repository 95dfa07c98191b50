"""Load tests."""

import asyncio
import time
from pathlib import Path
from typing import Any, cast

import pytest

from benchmarks.drive import LEAD_SECONDS, Outcome, closed, paced
from benchmarks.load import __main__ as load
from benchmarks.load import fronts, sweep, targets
from benchmarks.load.scenarios import NO_IMPORT, SCRIPTS, TRIVIAL, Scenario
from benchmarks.load.yardsticks import BareDeno
from support.virtual_time import in_virtual_time

ROOT = Path(__file__).resolve().parents[3]
NEWER = ROOT / "docs/benchmarks/load-2026-11-27.json"


def test_an_earlier_result_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    assert load.main(["--result", str(NEWER)]) == 0
    shown = capsys.readouterr().out
    assert shown.startswith("# Load test") and "## Targets" in shown


def test_a_file_that_is_no_result_is_refused_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    other = tmp_path / "other.json"
    other.write_text("[]")
    for file, said in (
        (tmp_path / "none.json", "cannot be read"),
        (other, "is no JSON result of scripts/loadtest"),
    ):
        with pytest.raises(SystemExit) as ended:
            load.main(["--result", str(file)])
        output, errors = capsys.readouterr()
        assert ended.value.code == 2 and output == ""
        assert f"{file} {said}" in errors


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

    front = fronts.Embedded(cast("Any", Daemon()))
    row = await sweep.turn(front, sweep.WARM, 0.06, lambda _: None)
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
    assert by_what["warm p50 / bare deno p50"].measured == pytest.approx(0.15)
    assert by_what["bare rate / runs per second, 8 clients"].measured == pytest.approx(1.25)
    assert (
        by_what["warm p50 / bare deno p50"].met
        == by_what["bare rate / runs per second, 8 clients"].met
        == met
    )
    assert any(one.number == "2c" for one in found) == (mode == "principal")
