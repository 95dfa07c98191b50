"""`bash scripts/demo --fleet`, as a user starts it. `scripts/ray_check` runs this test, since it needs Ray."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from support.ray_cluster import needs_ray

ROOT = Path(__file__).parents[2]
BOUND_SECONDS = 540
"""It takes half a minute on a quiet machine."""


@needs_ray
@pytest.mark.thorough
@pytest.mark.timeout(BOUND_SECONDS + 60)
def test_a_run_is_approved_at_another_broker_after_the_node_of_its_host_was_killed() -> None:
    words = ["bash", str(ROOT / "scripts" / "demo"), "--fleet"]
    done = subprocess.run(words, capture_output=True, text=True, timeout=BOUND_SECONDS, check=False)
    assert done.returncode == 0, (done.stdout, done.stderr)
    # The run itself is held against the ledger by the demo; these are the steps without which there would be none.
    steps = ["the node of its worker host is killed", "has the run replayed by host", "a row in PostgreSQL"]
    steps += ["the client allows the call at broker", "'paid' once", "everything has ended"]
    found = [done.stdout.find(step) for step in steps]
    assert -1 not in found and found == sorted(found), done.stdout
