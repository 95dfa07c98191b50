"""`scripts/loadtest` with results that were written before: shown, compared, and refused in words."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest

from benchmarks.load import __main__ as load

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
