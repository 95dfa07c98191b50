"""Runs a soak of a fleet. See `scripts/soak`."""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks.harness import machine, table
from soak.fleet.campaign import Campaign
from support.fleet.network import best_network

SHOWN_MOST = 20


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 when everything held, 1 otherwise, 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="scripts/soak --fleet", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0, help="of load (default 1)")
    parser.add_argument("--seed", type=int, help="fixes the load and the order of faults (default: chance)")
    parser.add_argument("--out", type=Path, help="folder of the report (default: a new temporary one)")
    parser.add_argument(
        "--name", default="soak-fleet", help="name of the report's files (default soak-fleet)"
    )
    parsed = parser.parse_args(arguments)
    if parsed.minutes <= 0:
        parser.error("--minutes must be positive")
    seed = random.randrange(2**32) if parsed.seed is None else parsed.seed
    out = parsed.out or Path(tempfile.mkdtemp(prefix="soak-report-"))
    out.mkdir(parents=True, exist_ok=True)
    head: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "minutes": parsed.minutes,
        "seed": seed,
    }
    head |= {"machine": machine()}
    began = time.monotonic()
    # Short, so that sockets fit under it.
    with best_network() as network, tempfile.TemporaryDirectory(prefix="fleet-", dir="/tmp") as folder:
        campaign = Campaign(Path(folder), network, seed=seed, seconds=parsed.minutes * 60)
        try:
            asyncio.run(campaign.run())
        finally:
            found = {**head, "seconds": round(time.monotonic() - began), **campaign.figures()}
            write(out, parsed.name, found, getattr(campaign, "summary", ""))
            for name, said in campaign.logs.items():
                (out / f"{parsed.name}-{name.replace(' ', '-')}.log").write_text(said, "utf-8")
    wrong = campaign.wrong
    print("\n".join(f"BROKEN {text[:2000]}" for text in wrong[:SHOWN_MOST]))
    counts, faults = campaign.books.counts, campaign.faults.done
    said = f"{counts['requests']} runs, {faults.total()} faults in {time.monotonic() - began:.0f} s"
    print(f"{out / parsed.name}.md: {said}, {f'{len(wrong)} breaches' if wrong else 'everything held'}")
    return 1 if wrong else 0


def write(out: Path, name: str, found: dict[str, Any], fleet: str) -> None:
    """Writes the report, as JSON and Markdown."""
    (out / f"{name}.json").write_text(json.dumps(found, indent=1), "utf-8")
    wrong = found["wrong"]
    lines = [
        f"# Soak of a fleet, {found['date']}",
        "",
        f"`bash scripts/soak --fleet --minutes {found['minutes']:g} --seed {found['seed']}`: {fleet}, on "
        f"{found['machine']['cores']} cores of {found['machine']['system']}, load average before "
        f"{found['machine']['load_average_before'][0]:.1f}, after {os.getloadavg()[0]:.1f}. "
        f"It took {found['seconds']} s.",
        "",
        "Everything held." if not wrong else f"{len(wrong)} breaches:",
        *(f"- {text[:500]}" for text in wrong),
        "",
        table(["what was done", "times"], found["faults"].items()),
        "",
        table(["what there was", "count"], found["counts"].items()),
        "",
    ]
    (out / f"{name}.md").write_text("\n".join(lines), "utf-8")


if __name__ == "__main__":
    sys.exit(main())
