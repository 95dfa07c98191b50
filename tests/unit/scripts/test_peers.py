"""`scripts/loadtest --peers`: what became of a system that ran a loop is told, and one that is missing is a row."""

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from benchmarks.load.scenarios import BODIES, ROWS
from benchmarks.peers import measure, report
from benchmarks.peers.hostile import LOOPS, try_loop
from benchmarks.peers.process import Gone, Peer

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
