"""A fuzzing run: streams until so many frames were made, guided by behaviours that were not seen before."""

import tracemalloc
from collections import Counter, deque
from dataclasses import dataclass, field
from typing import Final

from fuzz.mutate import Mutator
from fuzz.oracle import CAP, Outcome, agree, decode, examine

SAMPLE_EVERY: Final = 50
"""Every so many streams one is kept for the comparison with the sandbox's decoder, and its memory is traced."""

SAMPLE_MOST: Final = 2_000
"""Bounds what is kept; the newest are the oddest."""

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
    compared: int = 0
    both_accept: int = 0


def fuzz(frames: int, seed: int) -> Found:
    """Makes and examines so many frames.

    Raises:
        Violation: Something does not hold.
        AssertionError: A stream took too much memory.
    """
    mutator = Mutator(seed)
    found = Found()
    seen: set[int] = set()  # hashes: the behaviours themselves would be most of this process's memory
    sample: deque[tuple[bytes, Outcome]] = deque(maxlen=SAMPLE_MOST)
    while found.frames < frames:
        stream, count = mutator.stream()
        if found.streams % SAMPLE_EVERY == 0:
            outcome = _traced(stream, mutator.cuts(stream))
            sample.append((stream, outcome))
        else:
            outcome = examine(stream, mutator.cuts(stream))
        found.frames += count
        found.streams += 1
        found.accepted_frames += len(outcome.frames)
        found.messages += outcome.messages
        if outcome.error is not None:
            found.errors[str(outcome.behaviour[0])] += 1
        if hash(outcome.behaviour) not in seen:
            seen.add(hash(outcome.behaviour))
            mutator.keep(stream)
    answers = decode([stream for stream, _ in sample])
    for (stream, outcome), answer in zip(sample, answers, strict=True):
        found.both_accept += agree(stream, outcome, answer)
    found.behaviours, found.compared = len(seen), len(sample)
    return found


def _traced(stream: bytes, chunks: list[bytes]) -> Outcome:
    tracemalloc.start()
    try:
        outcome = examine(stream, chunks)
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    allowed = PEAK_SLACK_BYTES + PEAK_FACTOR * min(len(stream), CAP)
    assert peak <= allowed, f"{len(stream)} bytes took {peak}, at most {allowed}: {stream[:200].hex()}"
    return outcome
