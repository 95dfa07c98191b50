"""Fleets under load: throughput against hosts, what a run costs a broker, and what it has for hosts and clients."""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import psutil

from benchmarks.fleet.books import Look
from benchmarks.fleet.client import Answered, right_of, script_of
from benchmarks.fleet.stage import BROKERS_CORE, Stage, can_pin, staged
from benchmarks.harness import MIB, machine, say, table, write
from benchmarks.processes import private_bytes, pss_bytes, tree

Row = dict[str, Any]

CAPACITY: Final = 4
CLIENTS_A_PLACE: Final = 1.5
"""Has more clients than places, so that a place has its next run as soon as it is free."""

RESIDUAL: Final = 0.10
"""Bounds how far a point may be off the line, as a share of what the line says."""

FULL: Final = 0.90
"""Says from which share of its time a core, or the machine, counts as full: beyond that, nothing grows."""

LEAST_POINTS: Final = 3
"""Says how few points would fit any line."""

MODES: Final[dict[str, Any]] = {
    # Of the client alone: brokers that are replicas park what waits for people.
    "off": {"mode": "parked", "clients": {"token": "off"}},
    "parked": "parked",
    "all": "all",
}
"""Maps each mode to the broker's setting."""

CALLS: Final = 10
SCRIPTS: Final = {
    "no call": (0, "local", ""),
    f"{CALLS} calls of a Python tool": (CALLS, "local", "noop({})"),
    f"{CALLS} calls of a stdio server": (CALLS, "plain", "give({ ok: 1 })"),
}
HELD_MS: Final = 5_000
IDLE_HOSTS: Final = 8
REST_SECONDS: Final = 2.0
"""Passes before a broker counts as idle: greetings of hosts, or the ends of connections, are behind it."""

CPU_PARTS: Final = ("broker", "hosts", "balancer", "client", "PostgreSQL")


async def main(options: argparse.Namespace) -> int:
    """Measures, prints and writes; 1 where throughput is not linear as far as nothing was full, or an answer
    was wrong."""
    pinned = can_pin()
    result: Row = {"machine": machine(), "quick": options.quick, "beside": options.beside}
    result["parts"] = _parts(pinned=pinned)
    say(result["parts"])
    result["linear"] = await _linear(quick=options.quick)
    result["core"] = await _core(quick=options.quick, pinned=pinned)
    text = markdown(result)
    print(text)
    if options.out:
        for file in write(options.out, options.name.replace("load-", "fleet-", 1), result, text):
            say(f"wrote {file}")
    wrong = [row["why"] for row in (*result["linear"]["rows"], *result["core"]["rows"]) if row["wrong"]]
    if wrong:
        say(f"answers were wrong: {wrong[0]}")
    return 1 if wrong or result["linear"]["met"] is False else 0


def _parts(*, pinned: bool) -> str:
    core = f"brokers have core {BROKERS_CORE} when costs are measured" if pinned else "no core is a broker's"
    return f"brokers, hosts, PostgreSQL and HAProxy, each a process; addresses of the loopback; {core}"


async def _linear(*, quick: bool) -> Row:
    """Returns a row for each count of hosts, whose scripts wait for a tool, and the line through them."""
    counts, wait_ms, seconds, windows = ((1, 2), 500, 3.0, 1) if quick else ((1, 2, 4, 8), 3_000, 12.0, 3)
    rows: list[Row] = []
    code = script_of(1, "plain", f"wait({{ ms: {wait_ms} }})")
    with staged(brokers=2, hosts=max(counts), capacity=CAPACITY, pinned=False) as stage:
        for hosts in counts:
            stage.with_hosts(hosts)
            places = hosts * CAPACITY
            stage.until(lambda places=places: stage.sum_of("pool_places") == places, "all places lent")
            clients = round(places * CLIENTS_A_PLACE)
            apart = wait_ms / 1000 / places
            # Until the clients that wait for a place have one: from then on each cycle is like the last one.
            lead = apart * clients + wait_ms / 1000
            row = await _held(stage, code, 1, clients, seconds, windows, lead, apart)
            pids = [one.pid for host in stage.fleet.hosts[:hosts] for one in tree(host.pid)]
            row |= {"hosts": hosts, "host_mib": round(pss_bytes(pids) / hosts / MIB, 1)}
            row["hosts_ms_a_run"] = round(row["us_a_run"]["hosts"] / 1000, 2)
            rows.append(row)
            say(f"{hosts} hosts: {row['per_second']:.2f} runs/s, machine {row['machine_share']:.0%}")
    return {"brokers": 2, "capacity": CAPACITY, "wait_ms": wait_ms, "rows": rows, **fitted(rows)}


def fitted(rows: Sequence[Row]) -> Row:
    """Fits a line through nothing to the rows at which nothing was full, and judges them; too few are not judged."""
    free = [row for row in rows if row["loop_share"] < FULL and row["machine_share"] < FULL]
    judged = len(free) >= LEAST_POINTS
    points = [(row["hosts"], row["per_second"]) for row in (free if judged else rows) if row["per_second"]]
    if not points:
        return {"per_host": 0.0, "residuals": {}, "met": None}
    # The slope whose relative residuals are least, in squares.
    slope = sum(x / y for x, y in points) / sum((x / y) ** 2 for x, y in points)
    residuals = {str(x): round(y / (slope * x) - 1, 4) for x, y in points}
    met = all(abs(off) <= RESIDUAL for off in residuals.values()) if judged else None
    return {"per_host": round(slope, 4), "residuals": residuals, "met": met}


async def _held(
    stage: Stage,
    code: str,
    calls: int,
    clients: int,
    seconds: float,
    windows: int,
    lead: float,
    apart: float = 0.0,
) -> Row:
    looks: list[Look] = []
    async with stage.clients(clients) as made:
        found = await made.hold(
            stage.request(code),
            right_of(calls),
            seconds=seconds,
            windows=windows,
            lead=lead,
            apart=apart,
            edge=lambda: looks.append(stage.books.look()),
        )
    return figures(found, [after.since(before) for before, after in pairwise(looks)])


def figures(found: Sequence[Answered], spent: Sequence[Look]) -> Row:
    """Returns the medians of windows; the brokers' CPU together, and of the one that used most its share."""

    def median(values: Sequence[float], digits: int = 1) -> float:
        return round(statistics.median(values), digits)

    pairs = [(one, look, max(one.count, 1)) for one, look in zip(found, spent, strict=True)]
    brokers = [name for name in spent[0].parts if name.startswith("broker")]
    return {
        "per_second": median([one.per_second for one in found], 3),
        "runs": sum(one.count for one in found),
        "wrong": sum(one.wrong.total() for one in found),
        "why": next((reason for one in found for reason in one.wrong), ""),
        "p50_ms": median([one.latencies.at(50) for one in found], 2),
        "p99_ms": median([one.latencies.at(99) for one in found], 2),
        "broker_share": median([look.share("broker") for look in spent], 4),
        "loop_share": median([max(map(look.share, brokers)) for look in spent], 4),
        "machine_share": median([look.machine / look.seconds / (os.cpu_count() or 1) for look in spent], 4),
        "us_a_run": {
            part: median([1e6 * look.share(part) * look.seconds / runs for _, look, runs in pairs])
            for part in CPU_PARTS
        },
        "transactions_a_run": median([look.transactions / runs for _, look, runs in pairs], 3),
        "wal_bytes_a_run": median([look.wal_bytes / runs for _, look, runs in pairs], 0),
    }


async def _core(*, quick: bool, pinned: bool) -> Row:
    """Returns what a run and its calls take of a broker, by journal mode, and what it has for hosts and clients."""
    windows, seconds = (1, 1.5) if quick else (3, 4.0)
    rows: list[Row] = []
    memory: Row = {}
    mesh: Row = {}
    for mode, setting in MODES.items():
        hosts = 1 + IDLE_HOSTS if mode == "parked" else 1
        with staged(brokers=1, hosts=hosts, capacity=16, pinned=pinned, journal=setting) as stage:
            stage.with_hosts(1)
            for name, (calls, server, call) in SCRIPTS.items():
                code = script_of(calls, server, call)
                row = await _held(stage, code, calls, 12, seconds, windows, lead=1.0)
                rows.append({"script": name, "journal": mode, "arrival": "closed", "brokers": 1, **row})
                us, full = row["us_a_run"]["broker"], row["broker_share"]
                say(
                    f"{mode}, {name}: {row['per_second']:.0f} runs/s, broker {us:.0f} µs, {full:.0%} of a core"
                )
            if mode == "parked":
                memory = await _memory(stage)
                mesh = await _mesh(stage, 3.0 if quick else 10.0)
    return {"rows": rows, "memory": memory, "mesh": mesh}


async def _memory(stage: Stage) -> Row:
    """Returns what a broker has open and held: itself, a client's connection, a run that waits, at PostgreSQL."""
    count = 16
    (broker,) = (psutil.Process(one.pid) for one in stage.fleet.brokers)
    await asyncio.sleep(REST_SECONDS)
    before, open_before = private_bytes(broker.pid), broker.num_fds()
    async with stage.clients(count) as clients:
        await clients.each(stage.request(script_of(0, "local", "")), right_of(0))
        idle, opened = private_bytes(broker.pid), broker.num_fds()
        held = stage.request(script_of(1, "local", f"nap({{ ms: {HELD_MS} }})"))
        holding = asyncio.create_task(clients.each(held, right_of(1)))
        while (running := int(stage.sum_of("pool_running"))) < count and not holding.done():  # noqa: ASYNC110 - it says so when asked
            await asyncio.sleep(0.1)
        busy = private_bytes(broker.pid)
        await holding
    ((sessions,),) = stage.books.postgres.execute(
        "SELECT count(*) FROM pg_stat_activity WHERE datname = current_database() AND pid <> pg_backend_pid()"
    ).fetchall()
    return {
        "broker_mib": round(before / MIB, 1),
        "kib_a_connection": round((idle - before) / count / 1024, 1),
        "descriptors_a_connection": round((opened - open_before) / count, 2),
        "kib_a_run": round((busy - idle) / max(running, 1) / 1024, 1),
        "runs_held": running,
        "postgresql_sessions": int(sessions),
    }


async def _mesh(stage: Stage, seconds: float) -> Row:
    """Returns what hosts that idle cost a broker a second, and what they take of it."""
    (broker,) = (psutil.Process(one.pid) for one in stage.fleet.brokers)

    async def idle() -> Look:
        await asyncio.sleep(REST_SECONDS)
        before = stage.books.look()
        await asyncio.sleep(seconds)
        return stage.books.look().since(before)

    alone, before, open_before = await idle(), private_bytes(broker.pid), broker.num_fds()
    stage.with_hosts(1 + IDLE_HOSTS)
    many = await idle()
    more = many.share("broker") - alone.share("broker")
    return {
        "hosts": 1 + IDLE_HOSTS,
        "us_a_host_second": round(1e6 * more / IDLE_HOSTS, 2),
        "idle_transactions_a_second": round(alone.transactions / alone.seconds, 2),
        "kib_a_host": round((private_bytes(broker.pid) - before) / IDLE_HOSTS / 1024, 1),
        "descriptors_a_host": round((broker.num_fds() - open_before) / IDLE_HOSTS, 2),
    }


def markdown(result: Row) -> str:
    """Returns the page."""
    about, linear, core = result["machine"], result["linear"], result["core"]
    beside = f", {result['beside']}" if result["beside"] else ""
    quick = " --quick" if result["quick"] else ""
    shown = {None: "**not judged**: too few points with room", True: "**met**", False: "**not met**"}
    grown = [
        (row["hosts"], row["hosts"] * linear["capacity"], f"{row['per_second']:.2f}",
         linear["residuals"].get(str(row["hosts"]), ""), f"{row['p50_ms']:.0f}", f"{row['p99_ms']:.0f}",
         f"{row['loop_share']:.0%}", f"{row['machine_share']:.0%}", row["hosts_ms_a_run"],
         row["host_mib"], row["wrong"])
        for row in linear["rows"]
    ]  # fmt: skip
    cost = [
        (row["script"], row["journal"], f"{row['per_second']:.0f}", f"{row['p50_ms']:.1f}",
         f"{row['broker_share']:.0%}", *(f"{row['us_a_run'][part]:.0f}" for part in CPU_PARTS),
         row["transactions_a_run"], f"{row['wal_bytes_a_run']:.0f}", row["wrong"])
        for row in core["rows"]
    ]  # fmt: skip
    parts = [
        f"# Fleet, {about['date'][:10]}",
        f"{about['cores']} cores, {about['memory_gib']} GiB, {about['system']}, Python {about['python']}, Deno "
        f"{about['deno']}; load before it {about['load_average_before']}{beside}; "
        f"`scripts/loadtest --fleet{quick}`. Parts: {result['parts']}.",
        "## Throughput against hosts",
        f"{linear['brokers']} brokers, scripts that wait {linear['wait_ms'] / 1000:g} s for a stdio server. "
        f"The line: {linear['per_host']:.3g} runs/s a host; within {RESIDUAL:.0%} of it: {shown[linear['met']]}.",
        table(["hosts", "places", "runs/s", "off the line", "p50 ms", "p99 ms", "busiest broker", "machine",
               "hosts' CPU ms a run", "MiB a host (PSS)", "wrong"], grown),
        "## What a run takes of a broker",
        "One broker, one host, twelve clients; CPU in microseconds a run, of all threads of a part.",
        table(["script", "journal", "runs/s", "p50 ms", "broker's core", *CPU_PARTS, "transactions", "WAL bytes",
               "wrong"], cost),
        "## What a broker has for hosts and clients",
        table(["", "figure"], [(name.replace("_", " "), value) for part in ("memory", "mesh")
                               for name, value in core[part].items()]),
    ]  # fmt: skip
    return "\n\n".join(parts) + "\n"
