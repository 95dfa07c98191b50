"""Core measures what runs, calls and hosts cost a broker that has one core, with synthetic hosts: nothing here
runs a script.

Each load is of clients that begin a run with the last answer, so many that the broker's core is full, but for
the climb, where runs are due at fixed times, ever more of them.
"""

from __future__ import annotations

import asyncio
import os
import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

from benchmarks.fleet.books import Look, Spent, descriptors, spent
from benchmarks.fleet.client import Offered
from benchmarks.fleet.stage import Stage, staged
from benchmarks.fleet.steps import Calls, Step
from benchmarks.harness import MIB, say
from benchmarks.load.tree import private_bytes

MODES: Final[dict[str, Any]] = {
    # Of the client alone: brokers that are replicas park what waits for people.
    "off": {"mode": "parked", "clients": {"token": "off"}},
    "parked": "parked",
    "all": "all",
}
"""Maps each mode to the broker's setting."""

CALLS: Final = 10
CLIENTS: Final = 48
CALLING_CLIENTS: Final = 16
"""Are fewer where a run makes calls: each has one under way all the time."""

HOSTS: Final = 4
CAPACITY: Final = 64
CLIMB: Final = (0.25, 0.5, 0.75, 0.9, 1.0)
"""Are the rates of the climb, as shares of what filled the core."""

SCRIPTS: Final[dict[str, Sequence[Step]]] = {
    "no call": [],
    f"{CALLS} calls of a Python tool": [Calls(CALLS, "local", "noop", {})],
    f"{CALLS} calls of a stdio server": [Calls(CALLS, "plain", "give", {"ok": 1})],
}

NO_CALL: Final = next(iter(SCRIPTS))
LEAD_SECONDS: Final = 0.5
SETTLE_SECONDS: Final = 60.0
REST_SECONDS: Final = 2.0
"""Passes before a broker counts as idle: greetings of hosts, or the ends of connections, are behind it."""

ONE_BY_ONE: Final = 100.0
"""Is a rate at which hardly two runs are under way."""

HELD_MS: Final = 5_000
LOOK_SECONDS: Final = 0.1


async def measure(*, quick: bool, pinned: bool) -> dict[str, Any]:
    """Returns what each journal's mode costs, what hosts, connections and runs that wait take, and two
    brokers."""
    rows: list[dict[str, Any]] = []
    memory: dict[str, Any] = {}
    for mode, setting in MODES.items():
        with staged(brokers=1, pinned=pinned, journal=setting) as stage:
            stage.with_synthetic(HOSTS, CAPACITY)
            stage.open()
            rows += await _scripts(stage, mode, quick=quick)
            if mode == "parked":
                memory = await _memory(stage, quick=quick)
                if not quick:
                    rows += await _climb(stage, mode, rows)
    few = next(row for row in rows if (row["script"], row["journal"]) == (NO_CALL, "off"))
    mesh = await _mesh(few["us_a_run"]["broker"], quick=quick, pinned=pinned)
    with staged(brokers=2, pinned=pinned, journal="parked") as stage:
        stage.with_synthetic(HOSTS, CAPACITY)
        stage.open()
        rows.append(await _row(stage, NO_CALL, "parked", windows_of(quick), what="closed"))
    return {"rows": rows, "memory": memory, "mesh": mesh}


def windows_of(quick: bool) -> tuple[int, float]:
    """Returns how many windows of how many seconds each load has."""
    return (1, 1.5) if quick else (3, 4.0)


async def _scripts(stage: Stage, mode: str, *, quick: bool) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for name in SCRIPTS:
        rows.append(await _row(stage, name, mode, windows_of(quick), what="closed"))
        row = rows[-1]
        say(
            f"journal {mode}, {name} (synthetic): {row['per_second']:.0f} runs/s, broker "
            f"{row['broker_share']:.0%} of a core, "
            f"{row['us_a_run']['broker']:.0f} µs a run"
        )
    return rows


async def _climb(stage: Stage, mode: str, rows: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns a row for each rate, up to what has filled the core."""
    most = next(row["per_second"] for row in rows if (row["script"], row["journal"]) == (NO_CALL, mode))
    return [
        await _row(stage, NO_CALL, mode, windows_of(False), what="offered", rate=share * most)
        for share in CLIMB
    ]


async def _row(
    stage: Stage,
    script: str,
    mode: str,
    windows: tuple[int, float],
    *,
    what: str,
    rate: float = 0.0,
) -> dict[str, Any]:
    asked, right = stage.request(SCRIPTS[script])
    clients = (CLIENTS if script == NO_CALL else CALLING_CLIENTS) * len(stage.fleet.brokers)
    # Runs that are due at fixed times wait here when all connections have one.
    load, looks = stage.load(clients * (4 if rate else 1)), list[Look]()
    count, seconds = windows

    def edge() -> None:
        looks.append(stage.books.look())

    await load.open()
    try:
        if rate:
            found = [await load.offer(rate, count * seconds, asked, right, lead=LEAD_SECONDS, edge=edge)]
        else:
            found = await load.hold(
                clients, seconds, asked, right, lead=LEAD_SECONDS, windows=count, edge=edge
            )
        await load.settled(SETTLE_SECONDS)
    finally:
        load.close()
    return {
        "script": script,
        "journal": mode,
        "arrival": what,
        "offered": round(rate, 1),
        "brokers": len(stage.fleet.brokers),
        "synthetic": True,
        **figures(found, [spent(*pair) for pair in pairwise(looks)]),
    }


def figures(found: Sequence[Offered], parts: Sequence[Spent]) -> dict[str, Any]:
    """Returns the medians of windows; the brokers' CPU together, and of the one that used most its share."""
    each = [part.as_json(one.answered) for part, one in zip(parts, found, strict=True)]

    def median(values: Sequence[float], digits: int = 1) -> float:
        return round(statistics.median(values), digits)

    def brokers(of: dict[str, float]) -> list[float]:
        return [value for name, value in of.items() if name.startswith("broker")]

    others = [name for name in each[0]["us_a_run"] if not name.startswith("broker")]
    us = {name: median([one["us_a_run"][name] for one in each]) for name in others}
    us["broker"] = median([sum(brokers(one["us_a_run"])) for one in each])
    return {
        "per_second": median([one.per_second for one in found]),
        "runs": sum(one.answered for one in found),
        "wrong": sum(sum(one.wrong.values()) for one in found),
        "why": next((reason for one in found for reason in one.wrong), ""),
        "p50_ms": median([one.latencies.at(50) for one in found], 2),
        "p99_ms": median([one.latencies.at(99) for one in found], 2),
        "broker_share": median([sum(brokers(one["share"])) for one in each], 4),
        "loop_share": median([max(brokers(one["loop_share"])) for one in each], 4),
        "machine_share": median([one["machine_share"] / (os.cpu_count() or 1) for one in each], 4),
        "us_a_run": us,
        "transactions_a_run": median([one["transactions_a_run"] for one in each], 3),
        "wal_bytes_a_run": median([one["wal_bytes_a_run"] for one in each], 0),
    }


async def _memory(stage: Stage, *, quick: bool) -> dict[str, Any]:
    """Returns what a broker has open and held: itself, a client's connection, a run that waits, at PostgreSQL."""
    count = 100 if quick else 200
    (broker,) = (one.pid for one in stage.fleet.brokers)
    await asyncio.sleep(REST_SECONDS)
    before, open_before = private_bytes(broker), descriptors(broker)
    load = stage.load(count)
    await load.open()
    # One after the other, so that no more is held than each connection holds.
    asked, right = stage.request([])
    await load.offer(ONE_BY_ONE, count / ONE_BY_ONE, asked, right)
    await load.settled(SETTLE_SECONDS)
    idle, opened = private_bytes(broker), descriptors(broker)
    asked, right = stage.request([Calls(1, "local", "nap", {"ms": HELD_MS})])
    holding = asyncio.create_task(load.finish(count, asked, right, SETTLE_SECONDS))
    while (running := int(stage.sum_of("pool_running"))) < count and not holding.done():  # noqa: ASYNC110 - it says so when asked
        await asyncio.sleep(LOOK_SECONDS)
    busy = private_bytes(broker)
    await holding
    load.close()
    sessions = stage.books.postgres.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    ).fetchone()
    return {
        "broker_mib": round(before / MIB, 1),
        "kib_a_connection": round((idle - before) / count / 1024, 1),
        "descriptors_a_connection": round((opened - open_before) / count, 2),
        "kib_a_run": round((busy - idle) / max(running, 1) / 1024, 1),
        "runs_held": running,
        "postgresql_sessions": int(sessions[0]),
    }


async def _mesh(few_us: float, *, quick: bool, pinned: bool) -> dict[str, Any]:
    """Returns what hosts that idle cost a broker a second, what they take of it, and what a run costs beside them,
    which takes `few_us` beside few."""
    many, seconds = (100, 3.0) if quick else (400, 10.0)
    with staged(brokers=1, pinned=pinned, journal=MODES["off"]) as stage:
        stage.with_synthetic(1, CAPACITY)
        stage.open()
        (broker,) = (one.pid for one in stage.fleet.brokers)
        alone = await _idle(stage, seconds)
        before, open_before = private_bytes(broker), descriptors(broker)
        stage.with_synthetic(many, CAPACITY)
        crowd = await _idle(stage, seconds)
        after, opened = private_bytes(broker), descriptors(broker)
        beside = await _row(stage, NO_CALL, "off", windows_of(quick), what="closed")
    shares = alone.shares["broker 0"], crowd.shares["broker 0"]
    # Without what the hosts cost anyway, which few runs would share.
    us = beside["us_a_run"]["broker"] - 1e6 * (shares[1] - shares[0]) / beside["per_second"]
    return {
        "hosts": many + 1,
        "idle_share": [round(share, 5) for share in shares],
        "us_a_host_second": round(1e6 * (shares[1] - shares[0]) / many, 2),
        "idle_transactions_a_second": round(alone.transactions / alone.seconds, 2),
        "kib_a_host": round((after - before) / many / 1024, 1),
        "descriptors_a_host": round((opened - open_before) / many, 2),
        "us_a_run": {str(HOSTS): few_us, str(many + 1): round(us, 1)},
        "runs_a_second": beside["per_second"],
        "synthetic": True,
    }


async def _idle(stage: Stage, seconds: float) -> Spent:
    await asyncio.sleep(REST_SECONDS)
    before = stage.books.look()
    await asyncio.sleep(seconds)
    return spent(before, stage.books.look())
