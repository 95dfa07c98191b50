"""Runs a soak. See `scripts/soak`."""

from __future__ import annotations

import argparse
import asyncio
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path

from benchmarks.harness import machine
from soak import report
from soak.campaign import PARTS, Campaign


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 when every invariant held, 1 otherwise, 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="of load (default 1)")
    parser.add_argument("--seed", type=int, help="fixes the load and the order of deaths (default: chance)")
    parser.add_argument("--clients", type=int, default=9, help="runs at once (default 9)")
    parser.add_argument(
        "--without", action="append", choices=PARTS, default=[], help="leave out a hostile part"
    )
    parser.add_argument("--out", type=Path, help="folder of the report (default: a new temporary one)")
    parser.add_argument("--name", default="soak", help="name of the report's files (default soak)")
    parsed = parser.parse_args(arguments)
    if parsed.minutes <= 0 or parsed.clients < 1:
        parser.error("--minutes and --clients must be positive")
    seed = random.randrange(2**32) if parsed.seed is None else parsed.seed
    out = parsed.out or Path(tempfile.mkdtemp(prefix="soak-report-"))
    out.mkdir(parents=True, exist_ok=True)
    # Short, so that the broker's socket fits under it.
    work = Path(tempfile.mkdtemp(prefix="soak-"))
    campaign = Campaign(
        work, seed=seed, seconds=parsed.minutes * 60, clients=parsed.clients, without=parsed.without
    )
    started = time.monotonic()
    try:
        asyncio.run(campaign.run())
    finally:
        found = campaign.figures()
        head = {
            "date": datetime.now(UTC).strftime("%Y-%m-%d"),
            "minutes": parsed.minutes,
            "seed": seed,
            "clients": parsed.clients,
            "without": parsed.without,
            "load_average": ", ".join(f"{value:.1f}" for value in os.getloadavg()),
            "machine": machine(),
        }
        report.write(out, parsed.name, {**head, **found}, campaign.faults)
        shutil.copytree(work / "s" / "logs", out / "logs", dirs_exist_ok=True)
        shutil.rmtree(work, ignore_errors=True)
    broken = campaign.books.broken
    for name, texts in campaign.books.breaches.items():
        for text in texts:
            print(f"BROKEN {name}: {text}")
    print(f"{out / parsed.name}.md: {found['runs']} runs in {time.monotonic() - started:.0f} s, ", end="")
    print(f"{sum(broken.values())} breaches" if broken else "every invariant held")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
