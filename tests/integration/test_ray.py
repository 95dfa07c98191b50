"""Worker hosts on a Ray cluster of several raylets: placed, killed with a node, scaled, shared, gone at the end."""

import asyncio
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from cellblock import Broker
from cellblock.fleet.remote_hosts import pair_on_ray
from cellblock_worker.wire.keys import make_key_file
from integration.holding import Holding
from support.entries import settings
from support.http_server import free_port
from support.processes import command_line, gone, told_to
from support.ray_cluster import RayCluster, needs_ray
from support.responses import error_of, succeeded
from support.waits import until, within

pytestmark = [needs_ray, pytest.mark.timeout(600)]

BOUND = 240.0
"""A raylet, an actor and a host start in a second or two each on a quiet machine. Ray takes 15 s to take a node for
dead."""

ANSWER = "globalThis.__codemode_result__ = 6 * 7;"


@pytest.fixture(scope="module")
def cluster() -> Iterator[RayCluster]:
    """Three nodes, each with room for one host."""
    made = RayCluster(2, 2, 2)
    yield made
    made.close()


def section(cluster: RayCluster, listen: str = "tcp://127.0.0.1:*", **ray: Any) -> dict[str, Any]:
    """A broker whose scripts run on the cluster alone."""
    return {
        "local": False,
        "listen": listen,
        "ray": {"address": cluster.address, "command": "same-user", **ray},
    }


PATIENT = {"queue_wait_ms": int(BOUND * 1000), "capacity": 2, "warm": 1}
"""The section `pool` of brokers whose runs wait for nodes, and of their hosts."""


def pids(broker: Broker) -> set[int]:
    return {hello.pid for hello in broker.hosts}


async def test_a_killed_node_costs_its_own_runs_and_its_host_comes_back_on_another(
    cluster: RayCluster, tmp_path: Path
) -> None:
    holding = Holding()
    config = settings(tmp_path / "state", hosts=section(cluster, hosts=2), pool=PATIENT)
    async with Broker(config, tools=[holding.tool]) as broker:
        await until(lambda: len(pids(broker)) == 2, "two hosts", BOUND)
        lost, stays = sorted(pids(broker))
        node = cluster.node_of(lost)
        assert node is not None and cluster.node_of(stays) not in (None, node)
        held = [asyncio.create_task(broker.run(Holding.RUN)) for _ in range(4)]
        await until(lambda: holding.inside == 4, "both hosts are full", BOUND)

        await cluster.kill(node)
        await until(lambda: sum(run.done() for run in held) == 2, "the runs of the node have ended", BOUND)
        await until(lambda: len(pids(broker)) == 2, "the host is back", BOUND)
        assert stays in pids(broker) and lost not in pids(broker)
        (back,) = pids(broker) - {stays}
        assert cluster.node_of(back) not in (None, cluster.node_of(stays))

        holding.go_on.set()
        responses = await within(asyncio.gather(*held), BOUND)
        ended = [error_of(response, "HOST_LOST").message for response in responses if response.result is None]
        assert ["1 in flight" in message for message in ended] == [True, True]
        assert succeeded(await within(broker.run(ANSWER), BOUND)) == 42
        hosts = hosts_on(cluster)
        assert len(hosts) == 2
    await gone(hosts, BOUND)
    await cluster.add(2)


def hosts_on(cluster: RayCluster) -> list[psutil.Process]:
    """The hosts on the nodes."""
    return [process for process in cluster.processes() if "cellblock_worker" in command_line(process)]


async def test_hosts_come_as_runs_wait_and_go_without_a_run_lost(
    cluster: RayCluster, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cellblock.fleet.remote_hosts.SHRINK_SECONDS", 3.0)
    holding = Holding()
    config = settings(tmp_path / "state", hosts=section(cluster, hosts=[0, 4]), pool=PATIENT)
    async with Broker(config, tools=[holding.tool]) as broker:
        runs = [asyncio.create_task(broker.run(Holding.RUN)) for _ in range(8)]
        await until(lambda: len(pids(broker)) == 3, "as many hosts as there are nodes", BOUND)
        await until(lambda: holding.inside == 6, "they are full", BOUND)
        node = await cluster.add(2)
        await until(lambda: len(pids(broker)) == 4, "a host on the new node", BOUND)
        assert [pid for pid in pids(broker) if cluster.node_of(pid) == node]
        await until(lambda: holding.inside == 8, "nobody waits", BOUND)
        holding.go_on.set()
        assert [succeeded(run) for run in await within(asyncio.gather(*runs))] == [{"result": "held"}] * 8

        holding.go_on.clear()
        # One at each host; three hosts are enough.
        runs = [asyncio.create_task(broker.run(Holding.RUN)) for _ in range(4)]
        await until(lambda: "3 wanted, 3 there, 1 ending" in caplog.text, "a host is told to end", BOUND)
        holding.go_on.set()
        assert [succeeded(run) for run in await within(asyncio.gather(*runs))] == [{"result": "held"}] * 4
        await until(lambda: not pids(broker), "no host is left", BOUND)
        assert succeeded(await within(broker.run(ANSWER), BOUND)) == 42
    await cluster.kill(node)


async def test_brokers_with_one_key_share_their_hosts_and_the_key_is_in_no_file(
    cluster: RayCluster, tmp_path: Path
) -> None:
    own = make_key_file(tmp_path / "broker.key")
    names = [f"tcp://127.0.0.1:{free_port()}" for _ in range(2)]

    def broker(number: int) -> Broker:
        hosts = section(cluster, names[number], connect=names, hosts=2)
        hosts["key"] = str(tmp_path / "broker.key")
        return Broker(settings(tmp_path / str(number), hosts=hosts, pool=PATIENT))

    async with broker(0) as one:
        async with broker(1) as other:
            await until(lambda: len(pids(one)) == 2 and pids(one) == pids(other), "the same hosts", BOUND)
            shared = pids(one)
            told = " ".join(text for process in cluster.processes() for text in told_to(process))
            secret = pair_on_ray(own).secret
            assert own.public in told and secret.hex() not in told
            for folder in (cluster.session_dir, tmp_path):
                for file in folder.rglob("*"):
                    if file.is_file() and not file.is_symlink():
                        found = file.read_bytes()
                        assert secret.hex().encode() not in found and secret not in found, file
        assert succeeded(await within(one.run(ANSWER), BOUND)) == 42
        assert pids(one) == shared
        hosts = [psutil.Process(pid) for pid in shared]
    await gone(hosts, BOUND)


MANY = '''
import json, sys
import ray

ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)

@ray.remote(num_cpus=0)
def job() -> str:
    from cellblock import tool
    from cellblock.ray import run_many

    seen = []

    @tool()
    def double(x: int) -> int:
        "Doubles a number."
        seen.append(x)
        return 2 * x

    call = """import { double } from "@codemode/servers/local";
    globalThis.__codemode_result__ = await double({ x: NUMBER });"""
    scripts = [call.replace("NUMBER", str(number)) for number in range(9)] + ["throw new Error('no')"]
    responses = run_many(scripts, tools=[double], hosts=2, capacity=4, limits={"timeoutMs": 30000})
    return json.dumps([[r.result for r in responses], sorted(seen), responses[-1].diagnostics[0].code])

print(ray.get(job.remote()))
'''


async def test_many_scripts_run_from_inside_a_job(cluster: RayCluster) -> None:
    results, seen, code = json.loads(await cluster.job(MANY))
    assert results == [*({"result": 2 * number} for number in range(9)), None]
    assert seen == list(range(9)) and code == "UNCAUGHT_EXCEPTION"
    await gone(hosts_on(cluster), BOUND)


REFUSED = """
import dataclasses, sys, time
import ray
from cellblock.fleet.ray.fleet import the_fleet
from cellblock.fleet.ray.fleet import NAMESPACE, Plan

ray.init(address=sys.argv[1], namespace=NAMESPACE, logging_level="ERROR", log_to_driver=False)
arguments = ("--connect", "tcp://127.0.0.1:1", "--server-key", "0" * 64, "--capacity", "0")
fleet = the_fleet(Plan(arguments, b"s" * 32, 1, 1, 2, {"CPU": 2}, {}, 1.0))
while "code" not in (said := ray.get(fleet.report.remote("one", 1))):
    time.sleep(0.2)
print(said)
fleet.leave.remote("one")
"""


async def test_the_broker_is_told_why_a_host_does_not_serve(cluster: RayCluster) -> None:
    said = await cluster.job(REFUSED)
    assert said.startswith("1 wanted, 0 there; on ")
    assert "it ended with code 2: cellblock_worker: capacity: " in said


IMPOSTOR = """
import sys
import ray

ray.init(address=sys.argv[1], namespace="cellblock", logging_level="ERROR", log_to_driver=False)

CODE = f"import os; open({sys.argv[2]!r}, 'a').write(os.environ.get('MARK', 'none') + chr(10))"

class Answer:
    def __reduce__(self):
        return exec, (CODE,)

class Fleet:
    def report(self, broker, load):
        return Answer()

    def leave(self, broker):
        ray.actor.exit_actor()

def fleet():
    return next(name for name in ray.util.list_named_actors() if "/" not in name)

name = fleet()
while True:
    try:
        ray.kill(ray.get_actor(name))
        made = ray.remote(Fleet).options(name=name, lifetime="detached", num_cpus=0).remote()
        break
    except ValueError:
        pass  # not gone yet, or made anew by the broker already
print(name)
"""


async def test_whoever_answers_for_the_fleet_is_in_the_process_of_the_command_and_no_further(
    cluster: RayCluster, tmp_path: Path
) -> None:
    """Ray has no boundary between jobs, and unpickles what they answer: the boundary is around what talks to Ray."""
    command = ["env", "MARK=inside", sys.executable, "-m", "cellblock.fleet.ray"]
    hosts = section(cluster, hosts=1, command=command) | {"local": True}
    config = settings(tmp_path / "state", hosts=hosts, pool=PATIENT)
    entered = tmp_path / "entered"
    async with Broker(config) as broker:
        await until(lambda: len(pids(broker)) == 2, "the local host, and one on Ray", BOUND)
        await cluster.job(IMPOSTOR, str(entered))
        await until(lambda: entered.exists() and entered.read_text(), "an answer was unpickled", BOUND)
        assert set(entered.read_text().split()) == {"inside"}
        assert succeeded(await within(broker.run(ANSWER), BOUND)) == 42
    await gone(hosts_on(cluster), BOUND)
