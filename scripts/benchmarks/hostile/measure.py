"""One workload: the neighbours alone, then beside the attacker, in the same daemon."""

from __future__ import annotations

import tempfile
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.hostile import neighbours
from benchmarks.hostile.loop_watch import NO_STALL, stalls
from benchmarks.hostile.roles import BROKER, Memory
from benchmarks.hostile.stage import Stage, stage
from benchmarks.hostile.workloads import PAUSE_SECONDS, Workload, stand_by
from security.native.harness import Native

RATE: Final = 10.0
"""Neighbours' runs that are due in a second: a fifth of what two cores can do."""

HEAD_START_SECONDS: Final = 0.5
"""Of the attacker, before the first neighbour's run beside it is due."""

ATTACK_BOUND_SECONDS: Final = 90.0
"""For what the attacker has begun to end, after it is told to."""

WARM_RUNS: Final = 20

P99_MS: Final = 60.0
STALL_MS: Final = 100.0
BROKER_MIB: Final = 400.0

Row = dict[str, Any]


def measure(workload: Workload, native: Native | None, *, runs: int, say: Callable[[str], None]) -> Row:
    """Everything of one workload as JSON data; `native` is the attacker, for a workload that needs it."""
    with tempfile.TemporaryDirectory(prefix="hostile-") as scratch:
        folder = Path(scratch)
        go = folder / "go"
        with (
            workload.servers(go) as servers,
            stage(folder, servers, workload.cellblock, go, native) as found,
        ):
            warm = neighbours.visit(found.port, found.token, runs=WARM_RUNS, rate=RATE)
            if warm.failures:
                raise SystemExit(
                    f"{workload.name}: the neighbours fail without an attacker: {warm.failures[0]}"
                )
            say(f"{workload.name}: alone")
            alone, alone_row = _watched(found, runs // 2)
            say(f"{workload.name}: beside {workload.says}")
            attackers = [
                *(
                    threading.Thread(target=stand_by, args=(found, f"127.0.3.{number + 1}"), daemon=True)
                    for number in range(workload.bystanders)
                ),
                *(
                    threading.Thread(target=_again, args=(workload, found), daemon=True)
                    for _ in range(workload.attackers)
                ),
            ]
            for attacker in attackers:
                attacker.start()
            time.sleep(HEAD_START_SECONDS)
            beside, beside_row = _watched(found, runs)
            found.over.set()
            go.unlink(missing_ok=True)
            deadline = time.monotonic() + ATTACK_BOUND_SECONDS
            for attacker in attackers:
                attacker.join(max(0.0, deadline - time.monotonic()))
            bill = found.bill.as_json()
            bill["unfinished"] = sum(attacker.is_alive() for attacker in attackers)
    row: Row = {
        "workload": workload.name,
        "says": workload.says,
        "alone": alone_row,
        "beside": beside_row,
        "billed": bill,
    }
    row["targets"] = verdicts(beside_row, len(alone.failures), len(beside.failures))
    row["targets_alone"] = verdicts(alone_row, len(alone.failures), len(alone.failures))
    return row


def missed(rows: Sequence[Row]) -> list[str]:
    """Names the targets that were not met beside a workload, though the neighbours alone met them."""
    return [
        f"{row['workload']}: {target}"
        for row in rows
        for target, word in row["targets"].items()
        if word == NOT_MET and row["targets_alone"][target] == MET
    ]


def verdicts(beside: Row, failed_alone: int, failed: int) -> dict[str, str]:
    """Each target in words."""
    return {
        f"p99 ≤ {P99_MS:g} ms": _word(beside["p99_ms"] <= P99_MS and failed <= failed_alone),
        f"no stall over {STALL_MS:g} ms": _word(beside["stall_ms"] <= STALL_MS),
        f"broker under {BROKER_MIB:g} MiB": _word(beside["peak_mib"][BROKER] < BROKER_MIB),
    }


MET: Final = "met"
NOT_MET: Final = "not met"


def _word(met: bool) -> str:
    return MET if met else NOT_MET


def _again(workload: Workload, found: Stage) -> None:
    while not found.over.is_set():
        workload.attack(found)
        found.over.wait(PAUSE_SECONDS)


def _watched(found: Stage, runs: int) -> tuple[neighbours.Found, Row]:
    memory = Memory(found.pid)
    cpu = found.cpu_seconds()
    met = neighbours.visit(found.port, found.token, runs=runs, rate=RATE)
    peaks = memory.close()
    # One that has begun is written when it is over.
    time.sleep(HEAD_START_SECONDS)
    held = stalls(found.watch, met.begin, met.end)
    longest = max(held, key=lambda one: one.seconds, default=NO_STALL)
    return met, {
        **met.as_json(),
        "stall_ms": round(longest.seconds * 1000, 1),
        "stall_cpu_ms": round(longest.cpu_seconds * 1000, 1),
        "stall_coreless_ms": round(longest.coreless_seconds * 1000, 1),
        "stalls_over_target": sum(one.seconds * 1000 > STALL_MS for one in held),
        "broker_cpu_s": round(found.cpu_seconds() - cpu, 2),
        "peak_mib": {role: round(size / 2**20, 1) for role, size in sorted(peaks.items())},
    }
