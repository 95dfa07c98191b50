"""Links measures runs whose hosts are far from their broker, beside the same runs with them near, in turns.

Real workers run scripts that make calls one after the other, so the way there and back is in each of them. The
kernel's netem delays the links, and loses packets, where there is one; else a relay in each link holds what goes
through it, and is there in the near turns, too.
"""

from __future__ import annotations

import statistics
from typing import Any, Final

from benchmarks.fleet.linear import row
from benchmarks.fleet.stage import staged
from benchmarks.fleet.steps import Calls
from benchmarks.harness import say

DELAY_SECONDS: Final = 0.005
LOSS: Final = 0.001
HOSTS: Final = 2
CAPACITY: Final = 4
CALLS: Final = 10
WAIT_MS: Final = 1_000
"""Is what a script waits for beside its calls, so that neither workers nor the broker are what is full."""

MEDIANS: Final = ("per_second", "p50_ms", "p99_ms", "machine_share")


async def measure(*, quick: bool) -> dict[str, Any]:
    """Returns a row for each kind of link: medians of its turns."""
    turns, seconds = (2, 4.0) if quick else (5, 10.0)
    steps = [Calls(CALLS, "plain", "give", {"ok": 1}), Calls(1, "plain", "wait", {"ms": WAIT_MS})]
    with staged(brokers=1, hosts=HOSTS, capacity=CAPACITY, pinned=False, delays=True) as stage:
        network = stage.fleet.network
        loses = network.delays_by == "netem"
        kinds = [(0.0, 0.0), (DELAY_SECONDS, 0.0), *([(DELAY_SECONDS, LOSS)] if loses else [])]
        stage.with_hosts(HOSTS)
        stage.open()
        stage.until(lambda: stage.sum_of("pool_places") == HOSTS * CAPACITY, "all places lent")
        found: dict[tuple[float, float], list[dict[str, Any]]] = {kind: [] for kind in kinds}
        for _ in range(turns):
            for delay, loss in kinds:
                for host in stage.fleet.hosts:
                    network.delay(host.place, delay, loss=loss)
                found[delay, loss].append(await row(stage, HOSTS, steps, WAIT_MS, seconds, 1))
    rows = [together(*kind, rows) for kind, rows in found.items()]
    for one in rows:
        say(
            f"links of {one['delay_ms']:g} ms, {one['loss']:.1%} lost: {one['per_second']:.2f} runs/s, "
            f"p50 {one['p50_ms']:.0f} ms"
        )
    return {
        "by": network.delays_by,
        "hosts": HOSTS,
        "calls": CALLS,
        "wait_ms": WAIT_MS,
        "turns": turns,
        "rows": rows,
    }


def together(delay: float, loss: float, rows: list[dict[str, Any]]) -> dict[str, Any]:
    """Returns the row of one kind of link: medians of its turns, and the sums of their runs."""
    return {
        "delay_ms": delay * 1000,
        "loss": loss,
        **{name: round(statistics.median(one[name] for one in rows), 3) for name in MEDIANS},
        "runs": sum(one["runs"] for one in rows),
        "wrong": sum(one["wrong"] for one in rows),
        "why": next((one["why"] for one in rows if one["why"]), ""),
    }
