"""Shows a fleet on this machine: a run is approved at another broker, after the node of its host was killed.

Two `cellblock serve --http` share a PostgreSQL and stand behind a balancer (HAProxy where it is installed). Their
scripts run in three worker hosts, each an actor on a node of a local Ray cluster. All are processes of their own. See
`scripts/demo`.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import platform
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

import psutil

from soak.watch import adopt_orphans
from support.fleet.fleet import Fleet
from support.fleet.network import Loopback
from support.fleet.parts import Broker
from support.http_daemon import TOOL
from support.modern_client import allowing, ask
from support.processes import alive, command_line, descendants, workers_of
from support.ray_cluster import RayCluster
from support.waits import until, within

BOUND: Final = 90.0
"""Bounds each step, which takes seconds; Ray takes 15 s to take a node for dead."""

HOSTS: Final = 3

SCRIPT: Final = """import { echo, give } from "@codemode/servers/plain";
const order = await echo({ step: "looked up" });
const paid = await give({ step: "paid", order });
await echo({ step: "told the customer" });
globalThis.__codemode_result__ = paid;
"""
STEPS: Final = ["looked up", "paid", "told the customer"]


class Steps:
    """Prints each step with the time at which it was over, and what it took."""

    def __init__(self) -> None:
        self._began = self._last = time.monotonic()

    def done(self, what: str) -> None:
        """Prints a step."""
        now = time.monotonic()
        print(f"{now - self._began:6.1f} s  (+{now - self._last:4.1f})  {what}", flush=True)
        self._last = now


def hosts_of(cluster: RayCluster) -> list[psutil.Process]:
    """Returns the worker hosts on the nodes."""
    return [one for one in cluster.processes() if "cellblock_worker" in command_line(one)]


def host_at_work(cluster: RayCluster) -> psutil.Process | None:
    """Returns the host that has the run: none keeps a worker without one here."""
    return next((one for one in hosts_of(cluster) if alive(one) and workers_of(one.pid)), None)


def broker_of_the_run(fleet: Fleet) -> Broker:
    """Returns the broker to which the one run belongs."""
    ((owner,),) = fleet.database.rows("SELECT owner FROM cellblock.runs")
    return next(one for one in fleet.brokers if one.folder.parent.name == owner.partition(".")[0])


def is_parked(fleet: Fleet) -> bool:
    """Says whether the one run is parked: without a process, and nobody's."""
    return fleet.database.rows("SELECT state FROM cellblock.runs") == [("parked",)]


async def show(folder: Path, steps: Steps) -> None:
    """Goes through all of it. Raises AssertionError: Something is not as it should be."""
    environment = {name: value for name, value in os.environ.items() if name.startswith("RAY_")}
    environment["PYTHONPATH"] = os.environ["PYTHONPATH"]
    settings: dict[str, Any] = {
        "typecheck": "off",
        "policy": {"default": {"approve": ["plain.give"]}},
        "pool": {"warm": 0, "capacity": 2, "queue_wait_ms": int(BOUND * 1000), "reserved_places": 0},
    }
    with contextlib.ExitStack() as stack:
        cluster = await asyncio.to_thread(RayCluster, *[2] * HOSTS)
        stack.callback(cluster.close)
        steps.done(f"a Ray cluster of {HOSTS} nodes, each with a raylet of its own, at {cluster.address}")
        network = stack.enter_context(Loopback(relays=False))
        fleet = stack.enter_context(
            Fleet(folder / "f", network, hosts=0, settings=settings, environment=environment)
        )
        version = fleet.database.rows("SHOW server_version")[0][0]
        steps.done(f"PostgreSQL {version}, of a wheel, at {fleet.database.place.address}")
        names = fleet.names_for(fleet.balancer.place)
        ray = {
            "address": cluster.address,
            "connect": names,
            "min": HOSTS,
            "max": HOSTS,
        }
        fleet.settings["hosts"] = {"ray": ray}
        await asyncio.to_thread(fleet.start)
        steps.done(f"two brokers, and HAProxy in front of them at {fleet.behind().url}")
        await until(lambda: len(hosts_of(cluster)) == HOSTS, "three worker hosts", BOUND)
        steps.done(f"{HOSTS} worker hosts, each an actor on a node; they dial both brokers")
        await a_run(fleet, cluster, steps)


async def a_run(fleet: Fleet, cluster: RayCluster, steps: Steps) -> None:
    """Has a run begun, its node killed, its call allowed at the other broker, and its calls counted."""
    given: dict[str, Any] = {"name": TOOL, "arguments": {"code": SCRIPT, "durable": True}}
    asked = (await within(ask(fleet.behind(), "tools/call", TOOL, **given), BOUND))["result"]
    question = next(iter(asked["inputRequests"].values()))["params"]["message"]
    here = broker_of_the_run(fleet)
    (there,) = (broker for broker in fleet.brokers if broker is not here)
    steps.done(
        f"a run, through the balancer: {here.name} has it, and its client is asked: {question.splitlines()[0]}"
    )
    host = host_at_work(cluster)
    assert host is not None, "no host has the run"
    node = cluster.node_of(host.pid)
    assert node is not None
    await cluster.kill(node, with_all=True)
    steps.done(
        f"the node of its worker host is killed: raylet {node.pid}, host {host.pid}, and all else on it"
    )
    await until(lambda: host_at_work(cluster) not in (None, host), "another host has the run", BOUND)
    again = host_at_work(cluster)
    steps.done(
        f"{here.name} has the run replayed by {f'host {again.pid}' if again else 'another host'}, up to the question"
    )
    await until(lambda: is_parked(fleet), "the run is parked", BOUND)
    steps.done("nobody has answered yet: the run is parked, a row in PostgreSQL without a process")
    answer = await within(ask(there.served, "tools/call", TOOL, **given, **allowing(asked)), BOUND)
    response = answer["result"]["structuredContent"]
    steps.done(f"the client allows the call at {there.name}, which goes on with the run to its end")
    shown = {name: response[name] for name in ("result", "diagnostics")} | {"usage": response["usage"]}
    print(json.dumps(shown, indent=2))
    judge(fleet, response)
    steps.done(f"the server's own ledger: {', '.join(f'{step!r} once' for step in STEPS)}")


def judge(fleet: Fleet, response: dict[str, Any]) -> None:
    """Holds what the client was told against what the servers have recorded. Raises AssertionError."""
    made = Counter(event["arguments"]["step"] for event in fleet.ledger() if event["event"] == "call")
    assert made == Counter(STEPS), f"calls that were made: {made}"
    assert response["result"]["step"] == "paid" and response["usage"]["resumed"], response


async def main() -> int:
    """Returns the exit code."""
    if not sys.platform.startswith("linux"):
        print(
            f"The fleet's parts have addresses 127.x.y.z of their own, which {platform.system()} has not: on Linux."
        )
        return 1
    adopt_orphans()
    steps = Steps()
    # Short: sockets are below it, Ray's too.
    with tempfile.TemporaryDirectory(prefix="cb-", dir="/tmp", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / "f").mkdir()
        os.environ["RAY_TMPDIR"] = name
        await show(folder, steps)
    await until(lambda: not descendants(os.getpid()), "all processes have ended", BOUND)
    steps.done("everything has ended")
    return 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
