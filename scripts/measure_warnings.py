"""Measures what is told of right and of wrong scripts, by running them.

    python scripts/measure_warnings.py                # 300 and 300
    python scripts/measure_warnings.py --misses       # with what was not told, and what should not have been

The scripts are those of tests/support/script_corpus.py. Each runs through a whole broker, against a server that lists a
recorded catalog; each tool has been called once before, so that what its server does not declare has been observed. A
check may take as long as it needs: how long a response waits for one is a setting, and not what is measured here.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent / "tests"
sys.path.insert(0, str(TESTS))

from support.script_corpus import MISTAKES, measured, recorded, right_scripts, wrong_scripts  # noqa: E402


async def main() -> int:
    """Prints the tables."""
    parser = argparse.ArgumentParser(description="Measures what is told of right and of wrong scripts.")
    parser.add_argument("--count", type=int, default=300)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--misses", action="store_true")
    options = parser.parse_args()
    rng = random.Random(options.seed)
    tools = recorded(rng)
    right = right_scripts(tools, rng, options.count)
    wrong = wrong_scripts(right, rng, options.count)
    with tempfile.TemporaryDirectory() as folder:
        outcomes = await measured(Path(folder), tools, right, wrong)
    alarms = [one for one in outcomes if one.case.mistake is None and one.said]
    refused = [one for one in outcomes if one.case.mistake is None and one.refused]
    print(
        f"right scripts: {len(right)}; with a warning: {len(alarms)}; refused before they start: {len(refused)}"
    )
    print("\n| mistake | scripts | told | with the right fix |\n|---|---|---|---|")
    for mistake in MISTAKES:
        of = [one for one in outcomes if one.case.mistake == mistake]
        print(
            f"| {mistake} | {len(of)} | {sum(bool(one.said) for one in of)} | {sum(one.fixed for one in of)} |"
        )
    of = [one for one in outcomes if one.case.mistake is not None]
    told, fixed = sum(bool(one.said) for one in of), sum(one.fixed for one in of)
    print(f"| all | {len(of)} | {told} | {fixed} |")
    if options.misses:
        for one in [*alarms, *refused, *(one for one in of if not one.fixed)]:
            told = json.dumps(one.said or one.refused, indent=1)
            print(f"\n--- {one.case.mistake} {one.case.fix}\n{one.case.code}{told}")
    return 0 if not alarms and not refused and fixed >= 0.95 * len(of) else 1


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
