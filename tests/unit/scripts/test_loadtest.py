"""`scripts/loadtest`: results that were written before, the bare process that all is measured by, and the targets."""

from __future__ import annotations

import asyncio
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.load import __main__ as load
from benchmarks.load import sweep, targets
from benchmarks.load.drive import paced
from benchmarks.load.scenarios import NO_IMPORT, SCRIPTS
from benchmarks.load.yardsticks import BareDeno

ROOT = Path(__file__).resolve().parents[3]
NEWER = ROOT / "docs/benchmarks/load-2026-11-23.json"


def loadtest(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["bash", str(ROOT / "scripts/loadtest"), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=120,
    )


@pytest.mark.slow
def test_two_results_are_compared_load_by_load_and_in_all(tmp_path: Path) -> None:
    result: dict[str, Any] = json.loads(NEWER.read_text("utf-8"))
    loads = len(result["sweep"])
    # Twice as slow at one load, of which the summary must tell.
    result["sweep"][0]["latency"]["p50_ms"] *= 2
    slower = tmp_path / "slower.json"
    slower.write_text(json.dumps(result), "utf-8")
    done = loadtest("--result", slower, "--compare", NEWER)
    assert done.returncode == 0, done.stderr
    assert (
        f"- p50, {loads} loads: median ratio 1.00, 1.00 to 2.00; {loads - 1} within 10 %, {loads - 1} within 25 %"
        in done.stdout
    )
    assert f"- runs/s, {loads} loads: median ratio 1.00, 1.00 to 1.00; {loads} within 10 %" in done.stdout
    assert done.stdout.startswith("# Load test")


def test_a_file_that_is_no_result_is_refused_in_words(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """In this process: four more starts would show nothing else."""
    other = tmp_path / "other.json"
    other.write_text("[]")
    for file, said in (
        (tmp_path / "none.json", "cannot be read"),
        (other, "is no JSON result of scripts/loadtest"),
    ):
        for option in ("--result", "--compare"):
            with pytest.raises(SystemExit) as ended:
                load.main([option, str(file)])
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
