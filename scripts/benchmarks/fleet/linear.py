"""Linear measures throughput against hosts, with real workers whose scripts wait for a tool."""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

from benchmarks.fleet.books import Look, spent
from benchmarks.fleet.client import Offered
from benchmarks.fleet.fit import Fit, Point, fitted
from benchmarks.fleet.stage import Stage, staged
from benchmarks.fleet.steps import Calls, Step
from benchmarks.harness import MIB, say
from benchmarks.load import tree

BROKERS: Final = 2
CAPACITY: Final = 4

CLIENTS_A_PLACE: Final = 1.5
"""Has more clients than places, so that a place has its next run as soon as it is free."""

SETTLE_SECONDS: Final = 60.0
"""Bounds the wait for the runs that are under way at the end."""


async def measure(*, quick: bool) -> dict[str, Any]:
    """Returns a row for each count of hosts, the line, and whether what is off it is within its bound."""
    counts, wait_ms, seconds, windows = (
        ((1, 2, 4), 1_000, 5.0, 1) if quick else ((1, 2, 4, 8, 16), 3_000, 12.0, 3)
    )
    rows: list[dict[str, Any]] = []
    with staged(brokers=BROKERS, hosts=max(counts), capacity=CAPACITY, pinned=False) as stage:
        for hosts in counts:
            stage.with_hosts(hosts)
            if not rows:
                stage.open()
            stage.until(
                lambda hosts=hosts: stage.sum_of("pool_places") == hosts * CAPACITY, "all places lent"
            )
            waits = [Calls(1, "plain", "wait", {"ms": wait_ms})]
            rows.append(await row(stage, hosts, waits, wait_ms, seconds, windows))
            say(
                f"{hosts} hosts: {rows[-1]['per_second']:.2f} runs/s, machine {rows[-1]['machine_share']:.0%}"
            )
    fit = fitted([point_of(row) for row in rows])
    return {
        "brokers": BROKERS,
        "capacity": CAPACITY,
        "wait_ms": wait_ms,
        "rows": rows,
        **as_json(fit),
    }


def point_of(row: dict[str, Any]) -> Point:
    """Returns what a row says to the fit."""
    return Point(row["hosts"], row["per_second"], row["broker_share"], row["machine_share"])


def as_json(fit: Fit) -> dict[str, Any]:
    """Returns the fit as data."""
    return {
        "per_host": round(fit.per_host, 4),
        "residuals": {str(hosts): round(off, 4) for hosts, off in fit.residuals.items()},
        "met": fit.met,
    }


async def row(
    stage: Stage, hosts: int, steps: Sequence[Step], wait_ms: int, seconds: float, windows: int
) -> dict[str, Any]:
    """Returns the row of so many hosts whose places are all in use, by scripts that wait for about `wait_ms`."""
    places = hosts * CAPACITY
    clients = round(places * CLIENTS_A_PLACE)
    asked, right = stage.request(steps)
    load, looks = stage.load(clients), list[Look]()
    await load.open()
    try:
        apart = wait_ms / 1000 / places
        # Until the clients that wait for a place have one: from then on each cycle is like the last one.
        lead = apart * clients + wait_ms / 1000
        found = await load.hold(
            clients,
            seconds,
            asked,
            right,
            lead=lead,
            apart=apart,
            windows=windows,
            edge=lambda: looks.append(stage.books.look()),
        )
        memory = tree_bytes(stage, hosts)
        await load.settled(SETTLE_SECONDS)
    finally:
        load.close()
    return row_of(hosts, found, looks, memory)


def tree_bytes(stage: Stage, hosts: int) -> float:
    """Returns the private memory of one host with its workers, in MiB: the mean."""
    total = sum(
        tree.private_bytes(one.pid) for host in stage.fleet.hosts[:hosts] for one in tree.tree(host.pid)
    )
    return total / hosts / MIB


def row_of(hosts: int, found: list[Offered], looks: list[Look], host_mib: float) -> dict[str, Any]:
    """Returns the row of one count of hosts: medians of its windows."""
    parts = [spent(*pair) for pair in pairwise(looks)]
    runs = [one.answered for one in found]
    latencies = [one.latencies for one in found]
    return {
        "hosts": hosts,
        "per_second": round(statistics.median(one.per_second for one in found), 3),
        "runs": sum(runs),
        "wrong": sum(sum(one.wrong.values()) for one in found),
        "why": next((reason for one in found for reason in one.wrong), ""),
        "p50_ms": statistics.median(one.at(50) for one in latencies),
        "p99_ms": statistics.median(one.at(99) for one in latencies),
        "broker_share": round(
            statistics.median(
                max(share for name, share in part.shares.items() if name.startswith("broker"))
                for part in parts
            ),
            4,
        ),
        "machine_share": round(statistics.median(part.machine for part in parts) / (os.cpu_count() or 1), 4),
        "hosts_ms_a_run": round(
            statistics.median(
                part.us_a_run("hosts", count) / 1000 for part, count in zip(parts, runs, strict=True)
            ),
            2,
        ),
        "host_mib": round(host_mib, 1),
    }
