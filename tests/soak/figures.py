"""Figures of a soak from its books, faults and samples. Pure."""

from __future__ import annotations

import statistics
from collections import Counter, defaultdict
from collections.abc import Sequence
from dataclasses import fields
from typing import Any, Final

from soak.books import Record
from soak.faults import Fault
from soak.watch import Sample

BINS_MOST: Final = 120
BIN_LEAST_SECONDS: Final = 2.0

MEMORY_SLACK_BYTES: Final = 32 * 1024 * 1024
"""What resident memory may rise over the load beside `MEMORY_SLACK_PER_RUN`: arenas and caches that fill late."""

MEMORY_SLACK_PER_RUN: Final = 256
"""Bytes a run may leave behind; a forgotten response or task is several KiB."""

Point = tuple[float, float]


def percentile(values: Sequence[float], share: float) -> float:
    """The value that `share` of the values do not exceed; 0 for none."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] if ordered else 0.0


def bin_seconds(total: float) -> float:
    """Width of one bin of a series over `total` seconds."""
    return max(BIN_LEAST_SECONDS, total / BINS_MOST)


def series(records: Sequence[Record], began: float, total: float) -> dict[str, list[Point]]:
    """Answers in a second, and p50 and p99 of the latency of trivial runs in ms, over time."""
    width = bin_seconds(total)
    answered: Counter[int] = Counter()
    latencies: defaultdict[int, list[float]] = defaultdict(list)
    for record in records:
        if record.answered is None or not 0 <= record.answered - began < total:
            continue
        place = int((record.answered - began) / width)
        answered[place] += 1
        if record.kind == "trivial" and record.latency is not None:
            latencies[place].append(record.latency * 1000)
    middles = [(place, round((place + 0.5) * width, 2)) for place in range(int(total / width))]
    return {
        "runs_per_second": [(at, round(answered[place] / width, 2)) for place, at in middles],
        "p50_ms": [
            (at, round(percentile(latencies[place], 0.5), 1)) for place, at in middles if latencies[place]
        ],
        "p99_ms": [
            (at, round(percentile(latencies[place], 0.99), 1)) for place, at in middles if latencies[place]
        ],
    }


def kinds(records: Sequence[Record]) -> list[dict[str, Any]]:
    """For each kind of run: how many, how they ended, and latencies in ms."""
    grouped: defaultdict[str, list[Record]] = defaultdict(list)
    for record in records:
        grouped[record.kind].append(record)
    rows: list[dict[str, Any]] = []
    for kind, members in sorted(grouped.items(), key=lambda pair: -len(pair[1])):
        latencies = [record.latency * 1000 for record in members if record.latency is not None]
        endings = Counter(code for record in members for code in record.codes[:1])
        rows.append(
            {
                "kind": kind,
                "runs": len(members),
                "without_error": sum(record.ok for record in members),
                "endings": dict(endings.most_common()),
                "p50_ms": round(percentile(latencies, 0.5), 1),
                "p99_ms": round(percentile(latencies, 0.99), 1),
            }
        )
    return rows


def recoveries(records: Sequence[Record], faults: Sequence[Fault], began: float) -> list[float]:
    """Seconds from each SIGKILL of a host to the next run without an error that was sent after it."""
    good = sorted((record.answered, record.sent) for record in records if record.ok and record.answered)
    found: list[float] = []
    for fault in faults:
        if (fault.role, fault.how) == ("host", "kill"):
            at = began + fault.at
            after = next((answered for answered, sent in good if sent > at), None)
            if after is not None:
                found.append(round(after - at, 2))
    return found


def columns(samples: Sequence[Sample]) -> dict[str, list[float]]:
    """The samples as one list for each field."""
    return {field.name: [getattr(sample, field.name) for sample in samples] for field in fields(Sample)}


def growth(values: Sequence[int]) -> tuple[int, int]:
    """Medians of the second and of the last fifth of a series."""
    fifth = len(values) // 5
    if fifth == 0:
        return 0, 0
    return int(statistics.median(values[fifth : 2 * fifth])), int(statistics.median(values[-fifth:]))


def memory_breaches(samples: Sequence[Sample], runs: int) -> tuple[dict[str, tuple[int, int]], list[str]]:
    """Early and late memory of the broker and of the host that lived longest, and what has grown too much."""
    lives: defaultdict[int, list[int]] = defaultdict(list)
    for sample in samples:
        if sample.host_pid:
            lives[sample.host_pid].append(sample.host_rss)
    longest = max(lives.values(), key=len, default=list[int]())
    found = {"broker": growth([sample.broker_rss for sample in samples]), "host": growth(longest)}
    allowed = MEMORY_SLACK_BYTES + MEMORY_SLACK_PER_RUN * runs
    grown = [
        f"{who}: from {early} to {late} bytes in {runs} runs, {allowed} more are allowed"
        for who, (early, late) in found.items()
        if late - early > allowed
    ]
    return found, grown
