"""Honest neighbours: clients of a daemon that each have a trivial run due at fixed times, whatever became of the last.

A run's latency counts from the time at which it was due, so a stall is paid by every run that was due in it.
"""

from __future__ import annotations

import http.client
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

from benchmarks.client import response_in, run_of, send
from benchmarks.drive import Latencies
from benchmarks.load.scenarios import NO_IMPORT

CLIENTS: Final = 4
"""Each at an address of its own, so that to the broker they are four."""

BROKER: Final = "broker"
P99_MS: Final = 60.0
STALL_MS: Final = 100.0
BROKER_MIB: Final = 400.0
"""Bound a neighbour's p99, the longest stall of the broker's loop, and the broker's memory beside an attack."""

LAST_BOUND_SECONDS: Final = 40.0
"""For an answer, and after the last run was due for all that are still to be made."""


class Visit(NamedTuple):
    """One run of a neighbour's, by the monotonic clock."""

    due: float
    end: float
    failed: bool


@dataclass
class Found:
    """What the neighbours met. `took` counts from when a run was due, `alone` from when it was sent."""

    took: Latencies = field(default_factory=Latencies)
    sent: Latencies = field(default_factory=Latencies)
    visits: list[Visit] = field(default_factory=list[Visit])
    failures: list[str] = field(default_factory=list[str])
    begin: float = 0.0
    end: float = 0.0
    unsent: int = 0
    """Runs that the ones before them left no time for; they count as taking at least as long as they waited."""

    others: int = 0
    """Answers that came from a native worker, which count for nothing."""

    def as_json(self) -> dict[str, Any]:
        """Milliseconds."""
        return {
            "runs": self.took.count,
            "failed": len(self.failures),
            "unsent": self.unsent,
            "failures": sorted(set(self.failures))[:5],
            "p50_ms": round(self.took.at(50), 1),
            "p99_ms": round(self.took.at(99), 1),
            "max_ms": round(self.took.at(100), 1),
            "p50_from_sending_ms": round(self.sent.at(50), 1),
            "p99_from_sending_ms": round(self.sent.at(99), 1),
            "of_native_workers": self.others,
            "seconds": round(self.end - self.begin, 1),
        }


def visit(port: int, token: str, *, runs: int, rate: float) -> Found:
    """Makes trivial runs, `rate` due in a second, until `runs` of them count."""
    found = Found(begin=time.monotonic())
    made = 0
    lock = threading.Lock()

    def one(address: str) -> None:
        nonlocal made
        while True:
            with lock:
                # One more for each that counts for nothing.
                if made >= runs + found.others:
                    return
                number, made = made, made + 1
            due = found.begin + number / rate
            last = found.begin + max(runs, number) / rate + LAST_BOUND_SECONDS
            time.sleep(max(0.0, due - time.monotonic()))
            at = time.monotonic()
            said = "" if at > last else _trivial(port, token, address)
            now = time.monotonic()
            with lock:
                if said == NATIVE:
                    found.others += 1
                    continue
                found.took.add(now - due)
                found.visits.append(Visit(due, now, bool(said)))
                if at > last:
                    found.unsent += 1
                    continue
                found.sent.add(now - at)
                if said:
                    found.failures.append(said)

    threads = [
        threading.Thread(target=one, args=(f"127.0.1.{number + 1}",), daemon=True)
        for number in range(CLIENTS)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    found.end = time.monotonic()
    return found


NATIVE: Final = "no program"
"""What a native worker gives of a script that is not meant for it."""


def _trivial(port: int, token: str, address: str) -> str:
    try:
        status, data = send(port, token, run_of(NO_IMPORT.code), address=address, bound=LAST_BOUND_SECONDS)
        if status != http.client.OK:
            return f"HTTP {status}"
        answer = response_in(data)
    except (OSError, http.client.HTTPException, ValueError) as error:
        return f"{type(error).__name__}: {str(error)[:100]}"
    if answer.get("result") == [NATIVE]:
        return NATIVE
    if answer.get("result") == NO_IMPORT.gives:
        return ""
    return str([entry.get("code") for entry in answer.get("diagnostics", [])])


def verdicts(beside: Mapping[str, Any], failed_alone: int, failed: int) -> dict[str, str]:
    """Each target in words."""
    met = {
        f"p99 ≤ {P99_MS:g} ms": beside["p99_ms"] <= P99_MS and failed <= failed_alone,
        f"no stall over {STALL_MS:g} ms": beside["stall_ms"] <= STALL_MS,
        f"broker under {BROKER_MIB:g} MiB": beside["peak_mib"][BROKER] < BROKER_MIB,
    }
    return {target: "met" if is_met else "not met" for target, is_met in met.items()}
