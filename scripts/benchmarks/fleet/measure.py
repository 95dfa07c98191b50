"""Fleets under load: throughput against hosts with real workers, and what a broker's core does, with synthetic
ones."""

from __future__ import annotations

import argparse
from typing import Any

from benchmarks.fleet import core, linear, links, report, yardsticks
from benchmarks.fleet.stage import BROKERS_CORE, can_pin
from benchmarks.harness import machine, say
from support import haproxy
from support.fleet.network import can_namespaces


async def main(options: argparse.Namespace) -> int:
    """Measures, prints and writes; 1 where throughput is not linear as far as nothing was full, or an answer
    was wrong."""
    pinned = can_pin()
    result: dict[str, Any] = {"machine": machine(), "quick": options.quick, "beside": options.beside}
    result |= _facts(pinned=pinned)
    say(result["parts"])
    result["yardstick"] = await yardsticks.measure(quick=options.quick, pinned=pinned)
    result["linear"] = await linear.measure(quick=options.quick)
    result["delayed"] = await links.measure(quick=options.quick)
    result["core"] = await core.measure(quick=options.quick, pinned=pinned)
    print(report.markdown(result))
    if options.out:
        for file in report.write(result, options.out, options.name.replace("load-", "fleet-", 1)):
            say(f"wrote {file}")
    wrong = sum(
        row["wrong"]
        for row in (*result["linear"]["rows"], *result["delayed"]["rows"], *result["core"]["rows"])
    )
    if wrong:
        say(f"{wrong} answers were wrong")
    return 0 if result["linear"]["met"] and not wrong else 1


def _facts(*, pinned: bool) -> dict[str, str]:
    """Returns what the figures are of, in sentences."""
    spaces = can_namespaces()
    balancer = "HAProxy, by sessions" if haproxy.PROGRAM else "a relay of the tests (no HAProxy here)"
    where = "network namespaces of their own, TLS" if spaces else "addresses of the loopback, no TLS"
    other = (
        f"One broker has core {BROKERS_CORE} in the synthetic part, everything else the other one; two "
        f"brokers share core {BROKERS_CORE}."
        if pinned
        else "No core could be given to brokers alone: figures of a core are of what they had."
    )
    return {
        "parts": f"brokers, hosts, PostgreSQL and {balancer}, each a process; {where}",
        "links": "The links are not delayed but where it is said.",
        "cores": other,
    }
