"""Judges a soak by the targets beside hostile workloads: what a quiet neighbour met while each of them was under way.
Pure.

In the mixed part they are under way at once, so a row tells beside what something happened, not by whose fault; then
each has its turn alone.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final, NamedTuple

from benchmarks.hostile.loop_watch import EVERY_SECONDS, NO_STALL, Stall
from benchmarks.hostile.neighbours import BROKER, STALL_MS, Visit, verdicts
from soak.figures import percentile
from soak.watch import Sample

Interval = tuple[float, float]

MIB: Final = 1 << 20
HOSTLESS: Final = "a host that is dead or stopped"
ALL: Final = "all of these at once"
ALONE: Final = "nothing, before the load"


class Seen(NamedTuple):
    """What was seen over some time, by the monotonic clock."""

    visits: Sequence[Visit]
    stalls: Sequence[Stall]
    samples: Sequence[Sample]
    """Their times count from `began`."""

    began: float


def rows(alone: Seen, loaded: Seen, acts: Mapping[str, Sequence[Interval]]) -> list[dict[str, Any]]:
    """A row for each kind of act, one for what was before the load, and one for all of it.

    A neighbour's run or a stall while a host was dead is in the row of that, and in no other but the last: no hostile
    workload has killed it.
    """
    hostless = acts.get(HOSTLESS, ())
    others = _without(loaded, hostless)
    found = [_row(ALONE, alone, None)]
    found += [
        _row(name, _within(loaded if name == HOSTLESS else others, spans), alone)
        for name, spans in acts.items()
    ]
    found = [row for row in found if row["runs"]]
    return [*found, _row(ALL, loaded, alone)]


def long_computing(stalls: Sequence[Stall]) -> list[Stall]:
    """Those in which the loop's thread itself was busy for longer than it may."""
    return [one for one in stalls if one.cpu_seconds > STALL_MS / 1000 + EVERY_SECONDS]


def _row(name: str, seen: Seen, alone: Seen | None) -> dict[str, Any]:
    longest = max(seen.stalls, key=lambda one: one.seconds, default=NO_STALL)
    took = [(visit.end - visit.due) * 1000 for visit in seen.visits]
    row: dict[str, Any] = {
        "beside": name,
        "runs": len(took),
        "failed": sum(visit.failed for visit in seen.visits),
        "p50_ms": round(percentile(took, 0.5), 1),
        "p99_ms": round(percentile(took, 0.99), 1),
        "stall_ms": round(longest.seconds * 1000, 1),
        "stall_cpu_ms": round(longest.cpu_seconds * 1000, 1),
        "stall_coreless_ms": round(longest.coreless_seconds * 1000, 1),
        "stalls_over": sum(one.seconds * 1000 > STALL_MS for one in seen.stalls),
        "computing_ms": round(max((one.cpu_seconds for one in seen.stalls), default=0.0) * 1000, 1),
        "computing_over": len(long_computing(seen.stalls)),
        "peak_mib": {BROKER: round(max((one.broker_rss for one in seen.samples), default=0) / MIB, 1)},
    }
    failed_alone = 0 if alone is None else sum(visit.failed for visit in alone.visits)
    row["targets"] = verdicts(row, failed_alone, row["failed"])
    return row


def _within(seen: Seen, spans: Sequence[Interval]) -> Seen:
    """What touches one of the spans."""
    return _chosen(seen, spans, touching=True)


def _without(seen: Seen, spans: Sequence[Interval]) -> Seen:
    """What touches none of them."""
    return _chosen(seen, spans, touching=False)


def _chosen(seen: Seen, spans: Sequence[Interval], *, touching: bool) -> Seen:
    def chosen(begin: float, end: float) -> bool:
        return any(start < end and begin < stop for start, stop in spans) is touching

    return Seen(
        [one for one in seen.visits if chosen(one.due, one.end)],
        [one for one in seen.stalls if chosen(one.until - one.seconds, one.until)],
        [one for one in seen.samples if chosen(seen.began + one.at - 1, seen.began + one.at)],
        seen.began,
    )
