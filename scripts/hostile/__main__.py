"""Measures what a neighbour's trivial run takes beside hostile workloads. See `scripts/bench`."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import Final

from hostile import table
from hostile.measure import Row, measure
from hostile.workloads import WORKLOADS, Workload
from load.report import machine
from security.native.harness import NoCompiler, build

NATIVE_PERCENT: Final = 34
"""Of the workers, where a workload needs native ones; the neighbours' runs that one of them gets do not count."""


def say(text: str) -> None:
    """Progress, on stderr."""
    print(f"[{time.strftime('%H:%M:%S')}] {text}", file=sys.stderr, flush=True)


def main() -> int:
    """Reads the arguments and measures; 1 when a workload could not be measured."""
    by_name = {one.name: one for one in WORKLOADS}
    parser = argparse.ArgumentParser(prog="scripts/bench hostile", description=__doc__)
    parser.add_argument(
        "--only", action="append", choices=[*by_name], help="one workload; may be given again"
    )
    parser.add_argument("--runs", type=int, default=300, help="of the neighbours beside each (300)")
    parser.add_argument("--out", type=Path, metavar="DIR", help="write NAME.md and NAME.json there")
    parser.add_argument(
        "--name", default=f"hostile-{date.today().isoformat()}", help="base name of the files"
    )
    options = parser.parse_args()
    if options.runs < 2:
        parser.error("--runs must be at least 2")
    about = machine()
    rows, left_out, broken = _measured([by_name[name] for name in options.only or by_name], options.runs)
    result: Row = {
        "machine": about,
        "runs": options.runs,
        "workloads": rows,
        "left_out": left_out,
        "not_measured": broken,
    }
    text = table.markdown(result)
    print(text)
    if options.out:
        options.out.mkdir(parents=True, exist_ok=True)
        (options.out / f"{options.name}.json").write_text(json.dumps(result, indent=1) + "\n", "utf-8")
        (options.out / f"{options.name}.md").write_text(text, "utf-8")
    else:
        print(json.dumps(result))
    return 1 if broken else 0


def _measured(chosen: Sequence[Workload], runs: int) -> tuple[list[Row], list[str], list[str]]:
    """The rows, what this machine cannot do, and what went wrong."""
    rows: list[Row] = []
    left_out: list[str] = []
    broken: list[str] = []
    with tempfile.TemporaryDirectory(prefix="native-") as folder:
        native = None
        try:
            native = build(Path(folder))
            native.takes(NATIVE_PERCENT)
        except NoCompiler as error:
            left_out = [f"{one.name}: {error}" for one in chosen if one.native]
        for workload in chosen:
            if workload.native and native is None:
                continue
            try:
                rows.append(measure(workload, native if workload.native else None, runs=runs, say=say))
            except (OSError, RuntimeError) as error:
                broken.append(f"{workload.name}: {error}")
                say(f"{workload.name}: not measured: {error}")
    return rows, left_out, broken


if __name__ == "__main__":
    sys.exit(main())
