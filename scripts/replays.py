"""Proves recordings with generated scripts; see `scripts/replays`."""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
import time
from typing import Final

from support.replaying import Tally, World, prove, world

AT_ONCE: Final = 3
"""Sets how many scripts are at work: they are to disturb each other."""

TOLD_SECONDS: Final = 30.0


async def main() -> int:
    """Returns the exit code."""
    arguments = argparse.ArgumentParser(prog="scripts/replays", description=__doc__)
    arguments.add_argument("--scripts", type=int, default=2_000)
    arguments.add_argument("--first", type=int, default=0, help="number of the first one")
    options = arguments.parse_args()
    # A tool that raises is a generated script's right, and logged each time.
    logging.disable(logging.ERROR)
    numbers = iter(range(options.first, options.first + options.scripts))
    total, told = Tally(), [time.monotonic()]

    async def work(place: World) -> None:
        for number in numbers:
            total.add(await prove(place, number))
            if time.monotonic() > told[0] + TOLD_SECONDS:
                told[0] = time.monotonic()
                print(f"… {total['scripts']} scripts, {total['cut']} cuts", file=sys.stderr, flush=True)

    async with world() as place:
        await asyncio.gather(*(work(place) for _ in range(AT_ONCE)))
    print(
        f"{total['scripts']} scripts, {total['calls']} requests, {total['events']} events\n"
        f"replayed in another process: {total['scripts'] - total['differing']} the same, {total['differing']} not\n"
        f"cut and gone on from there: {total['cut'] - total['resumed_wrongly']} right, {total['resumed_wrongly']} not; "
        f"recorded calls made again in {total['made_again']}\n"
        f"changed calls: {total['mutants'] - total['undetected']} found, {total['undetected']} not"
    )
    sys.stderr.write(total.said)
    return 1 if total.said else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
