"""Fuzzes the frame codec, or the contexts of processes that are reused. See `scripts/fuzz_frames`."""

import argparse
import sys
from collections.abc import Sequence

from fuzz.campaign import fuzz
from fuzz.contexts import fuzz_contexts
from fuzz.oracle import Violation


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 when everything held, 1 otherwise, 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz_frames", description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000, help="to make (default a million)")
    parser.add_argument("--seed", type=int, default=1, help="of all chance (default 1)")
    parser.add_argument("--contexts", type=float, metavar="MINUTES", help="fuzz contexts, for so long")
    parsed = parser.parse_args(arguments)
    if parsed.frames < 1:
        parser.error("--frames must be positive")
    try:
        if parsed.contexts is not None:
            print(
                f"{fuzz_contexts(200, parsed.seed, seconds=60 * parsed.contexts):,} runs; seed {parsed.seed}"
            )
            return 0
        found = fuzz(parsed.frames, parsed.seed)
    except Violation as violation:
        print(f"BROKEN: {violation}\nstream: {violation.stream.hex()}")
        return 1
    except AssertionError as failure:
        print(f"BROKEN: {failure}")
        return 1
    print(f"seed {parsed.seed}: {found.frames:,} frames in {found.streams:,} streams")
    print(
        f"accepted: {found.accepted_frames:,} frames, {found.messages:,} times as a message of one direction"
    )
    print(
        f"behaviours: {found.behaviours:,}; both decoders: {found.both_accept:,} of {found.compared:,} accepted"
    )
    for text, count in found.errors.most_common(20):
        print(f"  {count:9,}  {text}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
