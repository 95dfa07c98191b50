"""A fuzzing run: streams until so many frames were made, guided by behaviours that were not seen before."""

from __future__ import annotations

import random
import sys
import time
import tracemalloc
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import psutil

from fuzz import typescript
from fuzz.mutate import Mutator
from fuzz.oracle import CAP, Outcome, examine

SAMPLE_EVERY: Final = 50
"""Every so many streams one is kept for the comparison with the sandbox's decoder, and its memory is traced."""

SAMPLE_MOST: Final = 2_000

RSS_SLACK_BYTES: Final = 32 * 1024 * 1024
"""What a run may grow: its own corpus and samples are a few MiB."""

PEAK_SLACK_BYTES: Final = 512 * 1024
PEAK_FACTOR: Final = 64
"""A decoded header takes at most about 60 bytes for each of its own (maps in lists, a few entries each)."""


@dataclass
class Found:
    """Figures of a run."""

    frames: int = 0
    streams: int = 0
    accepted_frames: int = 0
    messages: int = 0
    errors: Counter[str] = field(default_factory=Counter[str])
    behaviours: int = 0
    corpus: int = 0
    seconds: float = 0.0
    rss_before: int = 0
    rss_after: int = 0
    peak_bytes: int = 0
    compared: int = 0
    both_accept: int = 0

    def as_json(self) -> dict[str, Any]:
        """Plain JSON data."""
        return {**vars(self), "errors": dict(self.errors.most_common())}


def fuzz(frames: int, seed: int, *, progress: Callable[[Found], None] | None = None) -> Found:
    """Makes and examines so many frames.

    Raises:
        Violation: Something does not hold, memory included.
    """
    mutator = Mutator(seed)
    chance = random.Random(seed + 1)
    found = Found()
    seen: set[int] = set()  # hashes: the behaviours themselves would be most of this process's memory
    sample: list[tuple[bytes, Outcome]] = []
    process = psutil.Process()
    started = time.monotonic()
    while found.frames < frames:
        stream, count = mutator.stream()
        traced = found.streams % SAMPLE_EVERY == 0
        outcome = _traced(stream, mutator, found) if traced else examine(stream, mutator.cuts(stream))
        found.frames += count
        found.streams += 1
        _count(found, outcome)
        if hash(outcome.behaviour) not in seen:
            seen.add(hash(outcome.behaviour))
            mutator.keep(stream)
        if traced:
            _sampled(sample, (stream, outcome), chance)
        if found.streams == 1000:
            # Past the first uses: compiled validators, regular expressions.
            found.rss_before = process.memory_info().rss
        if progress is not None and found.streams % 20_000 == 0:
            progress(found)
    found.rss_after = process.memory_info().rss
    found.seconds = time.monotonic() - started
    found.behaviours, found.corpus = len(seen), len(mutator.corpus)
    if found.rss_before and found.rss_after - found.rss_before > RSS_SLACK_BYTES:
        raise AssertionError(f"resident memory went from {found.rss_before} to {found.rss_after} bytes")
    _compare(found, sample)
    return found


def _traced(stream: bytes, mutator: Mutator, found: Found) -> Outcome:
    chunks = mutator.cuts(stream)
    tracemalloc.start()
    try:
        outcome = examine(stream, chunks)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    found.peak_bytes = max(found.peak_bytes, peak)
    allowed = PEAK_SLACK_BYTES + PEAK_FACTOR * min(len(stream), CAP)
    if peak > allowed:
        raise AssertionError(f"{len(stream)} bytes took {peak}, at most {allowed}: {stream[:200].hex()}")
    return outcome


def _count(found: Found, outcome: Outcome) -> None:
    found.accepted_frames += len(outcome.frames)
    found.messages += outcome.messages
    if outcome.error is not None:
        found.errors[str(outcome.behaviour[0])] += 1


def _sampled(sample: list[tuple[bytes, Outcome]], each: tuple[bytes, Outcome], chance: random.Random) -> None:
    if len(sample) < SAMPLE_MOST:
        sample.append(each)
    else:
        sample[chance.randrange(SAMPLE_MOST)] = each


def _compare(found: Found, sample: list[tuple[bytes, Outcome]]) -> None:
    answers = typescript.decode([stream for stream, _ in sample])
    for (stream, outcome), answer in zip(sample, answers, strict=True):
        found.both_accept += typescript.agree(stream, outcome, answer)
    found.compared = len(sample)


def say(found: Found) -> None:
    """Progress on stderr."""
    print(
        f"{found.frames:>9,} frames, {found.accepted_frames:,} accepted, {sum(found.errors.values()):,} errors",
        file=sys.stderr,
        flush=True,
    )
