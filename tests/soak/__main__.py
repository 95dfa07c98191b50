"""Runs a soak, of one daemon or of a fleet. See `scripts/soak`."""

import argparse
import asyncio
import random
import sys
import tempfile
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from benchmarks import harness
from soak.books import SHOWN_MOST
from soak.campaign import PARTS, Campaign
from soak.fleet.campaign import Campaign as FleetCampaign
from support.fleet.network import Loopback


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 when every invariant held, 1 otherwise, 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="scripts/soak", description=__doc__)
    parser.add_argument("--fleet", action="store_true", help="of a fleet")
    parser.add_argument("--alone", action="store_true", help="of a broker that is killed again and again")
    parser.add_argument("--minutes", type=float, default=1.0, help="of load (default 1)")
    parser.add_argument("--seed", type=int, help="fixes the load and the order of faults (default: chance)")
    parser.add_argument("--clients", type=int, default=9, help="runs at once, without --fleet (default 9)")
    parser.add_argument(
        "--without", action="append", choices=PARTS, default=[], help="leave out a hostile part"
    )
    parser.add_argument("--out", type=Path, help="folder of the report (default: a new temporary one)")
    parser.add_argument("--name", help="name of the report's files (default soak, or soak-fleet)")
    parsed = parser.parse_args(arguments)
    if parsed.minutes <= 0 or parsed.clients < 1:
        parser.error("--minutes and --clients must be positive")
    if parsed.seed is None:
        parsed.seed = random.randrange(2**32)
    of_parts = parsed.fleet or parsed.alone
    parsed.name = parsed.name or ("soak-fleet" if of_parts else "soak")
    out = parsed.out or Path(tempfile.mkdtemp(prefix="soak-report-"))
    out.mkdir(parents=True, exist_ok=True)
    chosen = [f" --{name}" for name in ("fleet", "alone") if getattr(parsed, name)]
    head: dict[str, Any] = {
        "date": datetime.now(UTC).strftime("%Y-%m-%d"),
        "minutes": parsed.minutes,
        "seed": parsed.seed,
        "options": "".join([*chosen, *(f" --without {part}" for part in parsed.without)]),
        "machine": harness.machine(),
    }
    started = time.monotonic()
    course: dict[str, Any] = {"seed": parsed.seed, "seconds": parsed.minutes * 60}
    # Short, so that sockets fit under it.
    with Loopback() as network, tempfile.TemporaryDirectory(prefix="soak-", dir="/tmp") as folder:
        campaign = (
            FleetCampaign(Path(folder), network, alone=parsed.alone, **course)
            if of_parts
            else Campaign(Path(folder), clients=parsed.clients, without=parsed.without, **course)
        )
        try:
            asyncio.run(campaign.run())
        finally:
            found = campaign.figures()
            write_report(out, parsed.name, {**head, **found})
            for name, said in campaign.logs.items():
                (out / f"{parsed.name}-{name.replace(' ', '-')}.log").write_text(said, "utf-8")
    wrong = campaign.wrong
    print("\n".join(f"BROKEN {text[:2000]}" for text in wrong[:SHOWN_MOST]))
    verdict = f"{len(wrong)} breaches" if wrong else "every invariant held"
    done = f"{sum(found['faults'].values())} faults in {time.monotonic() - started:.0f} s"
    print(f"{out / parsed.name}.md: {done}, {verdict}")
    return 1 if wrong else 0


def write_report(folder: Path, name: str, report: dict[str, Any]) -> None:
    """Writes NAME.json for programs and NAME.md for people."""
    lines = [
        f"# Soak, {report['date']}",
        "",
        f"`bash scripts/soak{report['options']} --minutes {report['minutes']:g} --seed {report['seed']}`: "
        f"{report['of']}, on {report['machine']['cores']} cores of {report['machine']['system']}.",
        "",
        f"{len(report['wrong'])} breaches:" if report["wrong"] else "Everything held.",
        *(f"- {text[:500]}" for text in report["wrong"]),
        "",
        harness.table(["what was done", "times"], report["faults"].items()),
        "",
        harness.table(["what there was", "count"], report["counts"].items()),
        "",
    ]
    harness.write(folder, name, report, "\n".join(lines))


if __name__ == "__main__":
    sys.exit(main())
