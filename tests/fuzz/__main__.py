"""Fuzzes the frame codec, or the contexts of processes that are reused. See `scripts/fuzz_frames`."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from fuzz.campaign import fuzz, say
from fuzz.contexts import fuzz_contexts
from fuzz.oracle import Violation

MIB = 1024 * 1024
ROUNDS = 200


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 when everything held, 1 otherwise, 2 for wrong usage."""
    parser = argparse.ArgumentParser(prog="scripts/fuzz_frames", description=__doc__)
    parser.add_argument("--frames", type=int, default=1_000_000, help="to make (default a million)")
    parser.add_argument("--seed", type=int, default=1, help="of all chance (default 1)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the figures there too")
    parser.add_argument("--contexts", type=float, metavar="MINUTES", help="fuzz contexts, for so long")
    parsed = parser.parse_args(arguments)
    if parsed.frames < 1:
        parser.error("--frames must be positive")
    try:
        if parsed.contexts is not None:
            print(
                f"{fuzz_contexts(ROUNDS, parsed.seed, seconds=60 * parsed.contexts):,} runs; seed {parsed.seed}"
            )
            return 0
        found = fuzz(parsed.frames, parsed.seed, progress=say)
    except Violation as violation:
        print(f"BROKEN: {violation}\nstream: {violation.stream.hex()}")
        return 1
    except AssertionError as failure:
        print(f"BROKEN: {failure}")
        return 1
    print(f"{found.frames:,} frames in {found.streams:,} streams, {found.seconds:.0f} s, ", end="")
    print(f"{found.frames / found.seconds:,.0f} frames a second; seed {parsed.seed}")
    print(
        f"accepted: {found.accepted_frames:,} frames; {found.messages:,} times as a message of one direction"
    )
    print(f"behaviours: {found.behaviours:,}; corpus: {found.corpus:,} streams")
    for text, count in found.errors.most_common(20):
        print(f"  {count:9,}  {text}")
    grown = (found.rss_after - found.rss_before) / MIB
    print(f"memory: resident {found.rss_after / MIB:.1f} MiB, {grown:+.1f}; ", end="")
    print(f"peak of one stream {found.peak_bytes / MIB:.2f} MiB")
    print(
        f"both decoders: {found.compared:,} streams, {found.both_accept:,} accepted by both, no disagreement"
    )
    if parsed.json is not None:
        parsed.json.write_text(json.dumps(found.as_json(), indent=1) + "\n", encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
