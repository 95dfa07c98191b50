"""Whether memory grows, by the samples of a soak. Pure."""

import statistics
from collections import defaultdict
from collections.abc import Sequence
from itertools import pairwise
from typing import Final

from soak.watch import Sample

LEAK_PER_RUN_BYTES: Final = 512
"""Steady growth of resident memory that is a leak; a forgotten response or task is several KiB."""

LEAK_SLACK_BYTES: Final = 4 * 1024 * 1024
"""Steady growth that is noise, over the whole load."""

MEMORY_MOST_BYTES: Final = 400 * 1024 * 1024
"""The most that broker or host may hold, whatever is done to them."""

WINDOWS: Final = 6
"""A leak grows in each of these parts of the load but the first, which fills caches. A high-water mark, which the C
library keeps after a few messages of many MiB came together, is a step between two parts that stay level."""


def growth(values: Sequence[int]) -> tuple[int, int, int]:
    """Medians of the second and the last of `WINDOWS` parts of a series, and the steady growth between them: the
    least rise from one part to the next, once for each."""
    size = len(values) // WINDOWS
    if size == 0:
        return 0, 0, 0
    medians = [int(statistics.median(values[part * size : (part + 1) * size])) for part in range(1, WINDOWS)]
    rises = [after - before for before, after in pairwise(medians)]
    return medians[0], medians[-1], max(0, min(rises)) * len(rises)


def memory_breaches(
    samples: Sequence[Sample], runs: int
) -> tuple[dict[str, tuple[int, int, int]], list[str]]:
    """`growth` of the broker and of the host that lived longest, and what is too much."""
    lives: defaultdict[int, list[int]] = defaultdict(list)
    for sample in samples:
        if sample.host_pid:
            lives[sample.host_pid].append(sample.host_rss)
    longest = max(lives.values(), key=len, default=list[int]())
    whole = {"broker": [sample.broker_rss for sample in samples], "host": longest}
    found = {who: growth(values) for who, values in whole.items()}
    breaches = [
        f"{who}: grows steadily, by {steady} bytes in {runs} runs"
        for who, (_, _, steady) in found.items()
        if steady > LEAK_SLACK_BYTES + LEAK_PER_RUN_BYTES * runs
    ]
    breaches += [
        f"{who}: holds {max(values)} bytes, at most {MEMORY_MOST_BYTES}"
        for who, values in whole.items()
        if max(values, default=0) > MEMORY_MOST_BYTES
    ]
    return found, breaches
