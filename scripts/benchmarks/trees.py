"""Compares checkouts: the same runs in each, beside bare `deno run` processes, in turns.

    bash scripts/bench trees BEFORE [TREE...]

Each is a folder in which `bash scripts/demo` has been run; this checkout comes last.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import ROOT, parser, say

PROBE = Path(__file__).with_name("trees_probe.py")
BOUND_SECONDS = 900.0
"""A turn takes half a minute on a quiet machine."""


def main(arguments: Sequence[str]) -> int:
    """Prints a table: a row for each figure, a column for each checkout, with the figure of each turn."""
    to = parser("bench trees", __doc__)
    to.add_argument("trees", nargs="+", type=Path, metavar="TREE", help="a checkout that is ready to run")
    to.add_argument("--turns", type=int, default=3, help="turns of each (3)")
    to.add_argument("--runs", type=int, default=200, help="runs of a kind in a turn (200)")
    given = to.parse_args(arguments)
    trees: list[Path] = [*(tree.resolve() for tree in given.trees), ROOT]
    for tree in trees:
        if not (tree / ".venv/bin/python").exists():
            to.error(f"{tree} is not ready: run `bash scripts/demo` in it.")
    figures: dict[str, list[list[float]]] = {}
    for turn in range(given.turns):
        for column, tree in enumerate(trees):
            say(f"turn {turn + 1}: {tree.name}")
            for name, figure in _probe(tree, given.runs).items():
                figures.setdefault(name, [[] for _ in trees])[column].append(figure)
    print(f"| median of {given.turns} (each) | {' | '.join(tree.name for tree in trees)} |")
    print(f"|---|{'---:|' * len(trees)}")
    for name, columns in figures.items():
        cells = (f"{statistics.median(one):.3g} ({', '.join(f'{x:.3g}' for x in one)})" for one in columns)
        print(f"| {name} | {' | '.join(cells)} |")
    return 0


def _probe(tree: Path, runs: int) -> dict[str, float]:
    argv = [str(tree / ".venv/bin/python"), str(PROBE), str(runs)]
    # Not from this checkout's scripts, where modules have names of this version.
    done = subprocess.run(argv, cwd=tree, env=_environment(), stdout=subprocess.PIPE, timeout=BOUND_SECONDS)
    if done.returncode:
        raise SystemExit(f"{tree}: the measurement failed.")
    return json.loads(done.stdout)


def _environment() -> dict[str, str]:
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
