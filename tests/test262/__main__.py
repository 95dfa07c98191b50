"""Compares test262 cases in workers and in bare Deno, and prints figures. See `scripts/test262`."""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

from cellblock import Broker
from support.entries import settings
from test262.cases import TEST262_AREAS, Case, own_cases, sample, suite_cases
from test262.engines import PASSED, Compared, compare
from test262.removals import documented


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 when every difference is documented, 1 otherwise, 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="scripts/test262", description=__doc__)
    parser.add_argument(
        "--suite", type=Path, metavar="DIR", help="a checkout of test262; our own cases without"
    )
    parser.add_argument("--all", action="store_true", help="every case, not a sample of 200")
    parser.add_argument("--area", action="append", metavar="DIR", help="folder of its test/ (repeatable)")
    parsed = parser.parse_args(arguments)
    if parsed.suite is None:
        cases = own_cases()
    else:
        try:
            cases = suite_cases(parsed.suite, parsed.area or TEST262_AREAS)
        except FileNotFoundError as error:
            parser.error(str(error))
    chosen = cases if parsed.all or parsed.suite is None else sample(cases, 200)
    started = time.monotonic()
    results = asyncio.run(_compare([case for case in chosen if case.skip is None]))
    _print(chosen, results, time.monotonic() - started)
    return 1 if any(not each.same and documented(each) is None for each in results) else 0


async def _compare(cases: Sequence[Case]) -> list[Compared]:
    with tempfile.TemporaryDirectory(prefix="cellblock-test262-") as folder:
        async with Broker(settings(Path(folder))) as broker:
            return await compare(broker, cases, parallel=max(2, os.cpu_count() or 1))


def _print(cases: Sequence[Case], results: Sequence[Compared], seconds: float) -> None:
    rows: Counter[tuple[str, str]] = Counter()
    for each in results:
        rows[_area(each.case), _verdict(each)] += 1
    for case in cases:
        if case.skip is not None:
            rows[_area(case), f"skipped: {case.skip}"] += 1
    for (area, verdict), count in sorted(rows.items()):
        print(f"{count:5}  {area}: {verdict}")
    for each in results:
        if not each.same and documented(each) is None:
            print(
                f"UNDOCUMENTED {each.case.name}\n  bare:   {each.bare[:300]}\n  worker: {each.worker[:300]}"
            )
    same = sum(each.same for each in results)
    known = sum(not each.same and documented(each) is not None for each in results)
    print(f"{len(results)} cases in {seconds:.0f} s: {same} the same, {known} documented removals, ", end="")
    print(f"{len(results) - same - known} undocumented differences; {len(cases) - len(results)} skipped")


def _area(case: Case) -> str:
    whole = (area for area in TEST262_AREAS if case.name.startswith(f"{area}/"))
    return next(whole, case.name.partition("/")[0])


def _verdict(each: Compared) -> str:
    if each.same:
        return "the same, both pass" if each.bare == PASSED else "the same, neither passes"
    words = documented(each)
    return "UNDOCUMENTED difference" if words is None else f"documented: {words[:60]}"


if __name__ == "__main__":
    sys.exit(main())
