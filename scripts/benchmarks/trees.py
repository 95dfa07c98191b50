"""Compares checkouts: the load test of each, in turns, with its own interpreter.

    bash scripts/bench trees BEFORE [TREE...]

Each is a folder in which `bash scripts/demo` has been run; this checkout comes last.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import ROOT, parser, say, table

BOUND_SECONDS = 1800.0
"""A turn takes two minutes on a quiet machine."""


def main(arguments: Sequence[str]) -> int:
    """Prints a table: a row for each figure, a column for each checkout, with the figure of each turn."""
    to = parser("bench trees", __doc__)
    to.add_argument("trees", nargs="+", type=Path, metavar="TREE", help="a checkout that is ready to run")
    to.add_argument("--turns", type=int, default=3, help="turns of each (3)")
    to.add_argument("--only", default="targets", metavar="PART", help="of `scripts/loadtest` (targets)")
    given = to.parse_args(arguments)
    trees: list[Path] = [*(tree.resolve() for tree in given.trees), ROOT]
    for tree in trees:
        if not (tree / ".venv/bin/python").exists():
            to.error(f"{tree} is not ready: run `bash scripts/demo` in it.")
    figures: dict[str, list[list[float]]] = {}
    for turn in range(given.turns):
        for column, tree in enumerate(trees):
            say(f"turn {turn + 1}: {tree.name}")
            for name, figure in measured(tree, given.only).items():
                figures.setdefault(name, [[] for _ in trees])[column].append(figure)
    rows = [(name, *map(cell, columns)) for name, columns in figures.items()]
    print(table((f"median of {given.turns} (each)", *(tree.name for tree in trees)), rows))
    return 0


def cell(turns: Sequence[float]) -> str:
    """The median of turns and each of them; nothing for what a version does not measure."""
    return f"{statistics.median(turns):.3g} ({', '.join(f'{x:.3g}' for x in turns)})" if turns else ""


def measured(tree: Path, only: str) -> dict[str, float]:
    """The figures of one turn of a checkout, by name. Raises SystemExit: It could not be measured."""
    with tempfile.TemporaryDirectory(prefix="trees-") as folder:
        argv = [
            "bash",
            str(tree / "scripts/loadtest"),
            "--quick",
            "--only",
            only,
            "--out",
            folder,
            "--name",
            "it",
        ]
        # Not from this checkout's scripts, where modules have names of this version.
        environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
        subprocess.run(argv, cwd=tree, env=environment, stdout=sys.stderr, timeout=BOUND_SECONDS)
        file = Path(folder) / "it.json"
        if not file.exists():
            raise SystemExit(f"{tree}: the measurement failed.")
        result = json.loads(file.read_text("utf-8"))
    return {f"{row['target']} {row['what']}": row["measured"] for row in result["targets"]}
