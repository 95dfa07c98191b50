"""Measures what is told of right and of wrong scripts, by running them.

The scripts are those of tests/support/script_corpus.py: 300 right ones, and 300 with one mistake each. Each runs
through a whole broker, against a server that lists a recorded catalog; each tool has been called once before, so that
what its server does not declare has been observed. A check may take as long as it needs: how long a response waits for
one is a setting, and not what is measured here; with `--hold-ms 30`, the default of brokers, it is: then the tables say
what comes with a script's own response.
"""

from __future__ import annotations

import asyncio
import json
import random
import tempfile
from collections.abc import Sequence
from pathlib import Path

from benchmarks.harness import parser, table
from support.script_corpus import MISTAKES, measured, recorded, right_scripts, wrong_scripts


def main(arguments: Sequence[str]) -> int:
    """Prints the tables; returns 1 when a right script is told something, or too many wrong ones are not."""
    arguing = parser("warnings", __doc__)
    arguing.add_argument("--count", type=int, default=300)
    arguing.add_argument("--seed", type=int, default=1)
    arguing.add_argument("--misses", action="store_true", help="print what was and was not told wrongly")
    arguing.add_argument(
        "--hold-ms", type=int, default=60_000, help="how long a response waits for its check"
    )
    options = arguing.parse_args(arguments)
    rng = random.Random(options.seed)
    tools = recorded(rng)
    right = right_scripts(tools, rng, options.count)
    wrong = wrong_scripts(right, rng, options.count)
    with tempfile.TemporaryDirectory() as folder:
        outcomes = asyncio.run(measured(Path(folder), tools, right, wrong, options.hold_ms))
    alarms = [one for one in outcomes if one.case.mistake is None and one.said]
    refused = [one for one in outcomes if one.case.mistake is None and one.refused]
    print(
        f"right scripts: {len(right)}; with a warning: {len(alarms)}; refused before they start: {len(refused)}"
    )
    of = [one for one in outcomes if one.case.mistake is not None]
    fixed = sum(one.fixed for one in of)
    groups = {mistake: [one for one in of if one.case.mistake == mistake] for mistake in MISTAKES}
    rows = [
        (name, len(group), sum(bool(one.said) for one in group), sum(one.fixed for one in group))
        for name, group in {**groups, "all": of}.items()
    ]
    print("\n" + table(("mistake", "scripts", "told", "with the right fix"), rows))
    failed = [one for one in of if not one.ok]
    at_once = sum(one.is_checked for one in failed)
    print(
        f"\nOf {len(failed)} wrong scripts that failed, {at_once} have the type error in their own response."
    )
    if options.misses:
        for one in [*alarms, *refused, *(one for one in of if not one.fixed)]:
            told = json.dumps(one.said or one.refused, indent=1)
            print(f"\n--- {one.case.mistake} {one.case.fix}\n{one.case.code}{told}")
    return 0 if not alarms and not refused and fixed >= 0.95 * len(of) else 1
