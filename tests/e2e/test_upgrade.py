"""`bash scripts/upgrade` from this version to itself: draining, handing on and coming back, under load."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
BOUND_SECONDS = 900
"""It takes half a minute on a quiet machine."""


@pytest.mark.thorough
@pytest.mark.timeout(BOUND_SECONDS + 60)
@pytest.mark.parametrize("order", ["hosts first", "brokers first"])
def test_an_upgrade_part_by_part_loses_nothing(order: str) -> None:
    words = [sys.executable, "-m", "benchmarks.upgrade", "--minutes", "0.3", "--order", order]
    paths = os.pathsep.join(str(ROOT / name) for name in ("scripts", "tests"))
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(
        words, capture_output=True, text=True, env=environment, timeout=BOUND_SECONDS, check=False
    )
    assert done.returncode == 0 and "nothing was lost" in done.stdout, (done.stdout, done.stderr)
    assert "a state directory and a configuration of before: all is there" in done.stdout
    line = next(line for line in done.stdout.splitlines() if line.startswith(order))
    counts = dict(one.rsplit(" ", 1) for one in line.partition(": ")[2].split(", "))
    # It has looked: there were requests of both kinds, parked runs, and sessions that ended with their broker.
    for name in ("requests", "requests_in_sessions", "resumed", "approved", "calls", "sessions_ended"):
        assert int(counts[name]) > 0, done.stdout
