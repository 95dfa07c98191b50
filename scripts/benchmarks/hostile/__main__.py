"""What a neighbour's trivial run takes beside hostile workloads, about ten minutes for all of them."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from benchmarks.harness import add_output, machine, parser, say, write
from benchmarks.hostile import table
from benchmarks.hostile.measure import Row, measure, missed
from benchmarks.hostile.workloads import WORKLOADS, Workload
from security.native.harness import NoCompiler, build

NATIVE_PERCENT: Final = 34
"""Of the workers, where a workload needs native ones; the neighbours' runs that one of them gets do not count."""


def main(arguments: Sequence[str]) -> int:
    """Reads the arguments and measures; 1 when a workload could not be measured, or with `--check` misses a target."""
    by_name = {one.name: one for one in WORKLOADS}
    arguing = parser("hostile", __doc__)
    arguing.add_argument(
        "--only", action="append", choices=[*by_name], help="one workload; may be given again"
    )
    arguing.add_argument("--runs", type=int, default=300, help="of the neighbours beside each (300)")
    arguing.add_argument(
        "--check",
        action="store_true",
        help="fail where a target is not met that the neighbours alone have met",
    )
    add_output(arguing, "hostile")
    options = arguing.parse_args(arguments)
    if options.runs < 2:
        arguing.error("--runs must be at least 2")
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
        write(options.out, options.name, result, text)
    else:
        print(json.dumps(result))
    not_met = missed(rows) if options.check else []
    for text in not_met:
        say(f"not met beside {text}")
    return 1 if broken or not_met else 0


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
