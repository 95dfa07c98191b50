"""Runs scripts on Ray clusters of this machine while their nodes come, go and are killed. See `scripts/ray_check`."""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import os
import random
import secrets
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncGenerator, Generator
from pathlib import Path
from typing import Any, Final

import psutil

from cellblock import Broker, RunResponse, tool
from cellblock.app.config.load import parse_settings
from cellblock.base.settings.settings import Settings
from cellblock.fleet.ray.fleet import ORPHAN_SECONDS
from cellblock_worker.wire.keys import make_key_file
from support.http_server import free_port
from support.processes import command_line, gone
from support.ray_cluster import RayCluster
from support.waits import until

BOUND: Final = 240.0
HOSTS: Final = 3
CAPACITY: Final = 4
FAULT_SECONDS: Final = (8.0, 16.0)
AFTERMATH_SECONDS: Final = 30.0
"""Bounds the time from a node's death to the last end of a run that was on it."""

WITHOUT_TOKEN: Final = {"RAY_AUTH_MODE": "disabled"}
"""Has clusters and their users ask for no token, whatever this machine's user has."""

CALLS: Final = """
    import { mark } from "@codemode/servers/local";
    for (const step of [0, 1, 2]) {
      await mark({ id: `${NUMBER}-${step}` });
      await new Promise((resolve) => setTimeout(resolve, 300));
    }
    globalThis.__codemode_result__ = NUMBER;
"""


class Books:
    """Counts what was asked, answered and done."""

    def __init__(self) -> None:
        self.marks: Counter[str] = Counter()
        self.ended: Counter[str] = Counter()
        self.kills: list[float] = []
        self.back: list[float] = []
        self.breaches: list[str] = []

        @tool()
        async def mark(id: str) -> str:
            """Notes that it was called."""
            self.marks[id] += 1
            return id

        self.mark = mark

    def hold(self, holds: object, what: str) -> None:
        """Notes what should have been."""
        if not holds:
            self.breaches.append(what)

    def answered(self, number: int, response: RunResponse) -> None:
        """Takes the one answer of a run."""
        codes = [found.code for found in response.diagnostics if found.severity == "error"]
        kind = codes[0] if codes else "ok"
        self.ended[kind] += 1
        made = sum(self.marks[f"{number}-{step}"] for step in range(3))
        if kind == "ok":
            self.hold(
                response.result == number and made == 3, f"run {number}: {response.result}, {made} calls"
            )
            return
        # Sent to a host at the moment of its death, a script is not started.
        is_told = kind == "HOST_LOST" or (kind == "WORKER_UNAVAILABLE" and made == 0)
        self.hold(is_told, f"run {number}: {made} calls, {response.diagnostics}")
        last = max((when for when in self.kills if when <= time.monotonic()), default=-1e9)
        self.hold(
            time.monotonic() - last < AFTERMATH_SECONDS, f"run {number} was lost without a death of a node"
        )


def settings_of(folder: Path, address: str, listen: str, *, key: Path | None = None, **ray: Any) -> Settings:
    """Returns a broker's settings: its scripts run on the cluster alone."""
    hosts: dict[str, Any] = {
        "local": False,
        "listen": listen,
        "ray": {"address": address, "command": "same-user", **ray},
    }
    if key is not None:
        hosts["key"] = str(key)
    pool = {"queue_wait_ms": int(BOUND * 1000), "capacity": CAPACITY, "warm": 1}
    return parse_settings({"cellblock": {"state_dir": str(folder), "hosts": hosts, "pool": pool}})


@contextlib.asynccontextmanager
async def two_brokers(work: Path, address: str, books: Books) -> AsyncGenerator[list[Broker]]:
    """Starts two brokers that share three hosts."""
    make_key_file(work / "broker.key")
    names = [f"tcp://127.0.0.1:{free_port('')}" for _ in range(2)]
    shared: dict[str, Any] = {"connect": names, "hosts": HOSTS}
    made = [
        settings_of(work / str(number), address, name, key=work / "broker.key", **shared)
        for number, name in enumerate(names)
    ]
    async with contextlib.AsyncExitStack() as stack:
        yield [await stack.enter_async_context(Broker(one, tools=[books.mark])) for one in made]


def pids(broker: Broker) -> set[int]:
    """Returns the hosts that a broker has."""
    return {hello.pid for hello in broker.hosts}


async def under_load(work: Path, seconds: float, books: Books) -> None:
    """Runs scripts through two brokers while nodes are killed and added."""
    began = time.monotonic()
    cluster = await asyncio.to_thread(RayCluster, 2, 2, 2, 2)
    started = time.monotonic()
    try:
        async with two_brokers(work, cluster.address, books) as brokers:
            await until(lambda: all(len(pids(one)) == HOSTS for one in brokers), "three hosts", BOUND)
            now = time.monotonic()
            print(
                f"4 nodes after {started - began:.1f} s; two brokers, three hosts {now - started:.1f} s later"
            )
            until_when = now + seconds
            numbers = iter(range(1_000_000_000))

            async def client(broker: Broker) -> None:
                while time.monotonic() < until_when:
                    number = next(numbers)
                    books.answered(number, await broker.run(CALLS.replace("NUMBER", str(number))))

            load = [
                asyncio.create_task(client(broker)) for broker in brokers for _ in range(HOSTS * CAPACITY)
            ]
            await faults(cluster, brokers, until_when, books)
            await asyncio.gather(*load)
            hosts = [psutil.Process(pid) for pid in pids(brokers[0])]
        await gone(hosts, BOUND)
        left = [one for one in cluster.processes() if "cellblock_worker" in command_line(one)]
        books.hold(not left, f"hosts are left: {left}")
        twice = [id for id, count in books.marks.items() if count > 1]
        books.hold(not twice, f"calls were made twice: {twice[:5]}")
    finally:
        cluster.close()


async def faults(cluster: RayCluster, brokers: list[Broker], until_when: float, books: Books) -> None:
    """Kills a node that has a host, waits until there are three again, and adds another; again and again."""
    while time.monotonic() < until_when:
        await asyncio.sleep(random.uniform(*FAULT_SECONDS))
        victim = random.choice(sorted(pids(brokers[0])))
        node = cluster.node_of(victim)
        if node is None:
            continue
        began = time.monotonic()
        books.kills.append(began)
        await cluster.kill(node, with_all=random.random() < 0.5)
        await until(
            lambda victim=victim: all(victim not in pids(one) for one in brokers), "it is gone", BOUND
        )
        await until(lambda: all(len(pids(one)) == HOSTS for one in brokers), "three hosts again", BOUND)
        books.back.append(time.monotonic() - began)
        await cluster.add(2)


@contextlib.contextmanager
def scaled_cluster(folder: Path) -> Generator[tuple[str, psutil.Process, Path]]:
    """Starts a head whose autoscaler starts and ends raylets of this machine as a cloud does nodes. Its users show
    a token."""
    services: Any = __import__("ray.util", fromlist=["get_node_ip_address"])
    address = f"{services.get_node_ip_address()}:{free_port('')}"
    lists = [f"{name}_commands" for name in ("initialization", "setup", "head_setup", "worker_setup")]
    lists += ["head_start_ray_commands", "worker_start_ray_commands"]
    lists += ["cluster_synced_files", "rsync_exclude", "rsync_filter"]
    flags = ("use_node_id_as_ip", "disable_node_updaters", "disable_launch_config_check")
    config: dict[str, Any] = {
        "cluster_name": "check",
        "max_workers": 4,
        "provider": {"type": "fake_multinode", "gcs_address": address, **dict.fromkeys(flags, True)},
        "available_node_types": {
            "ray.head.default": {"resources": {"CPU": 0}, "node_config": {}, "max_workers": 0},
            "box": {"resources": {"CPU": 2}, "node_config": {}, "min_workers": 0, "max_workers": 4},
        },
        "head_node_type": "ray.head.default",
        "upscaling_speed": 1.0,
        "idle_timeout_minutes": 0.1,
        "file_mounts_sync_continuously": False,
    }
    # Ray wants every key that its own clusters have.
    config |= {name: [] for name in lists} | {name: {} for name in ("auth", "docker", "file_mounts")}
    (folder / "scaled.json").write_text(json.dumps(config))
    command = [
        sys.executable, "-m", "ray.scripts.scripts", "start", "--head", "--block", "--num-cpus=0",
        "--include-dashboard=false", f"--port={address.rpartition(':')[2]}", f"--temp-dir={folder / 'ray'}",
        f"--autoscaling-config={folder / 'scaled.json'}",
    ]  # fmt: skip
    (folder / "token").write_text(secrets.token_hex(32))
    # Brokers pass these on to what they ask Ray by.
    with_token = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN_PATH": str(folder / "token")}
    os.environ |= with_token
    environment = {**os.environ, "RAY_FAKE_CLUSTER": "1", "AUTOSCALER_UPDATE_INTERVAL_S": "1"}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    owner = psutil.Process(process.pid)
    try:
        yield address, owner, folder / "ray" / "session_latest" / "logs" / "monitor.log"
    finally:
        for one in [*owner.children(recursive=True), owner]:
            with contextlib.suppress(psutil.NoSuchProcess):
                one.kill()
        process.wait()
        os.environ |= WITHOUT_TOKEN


def raylets(owner: psutil.Process) -> int:
    """Returns how many nodes there are, without the head."""
    return (
        sum("raylet/raylet" in "".join(command_line(one)[:1]) for one in owner.children(recursive=True)) - 1
    )


async def by_the_autoscaler(work: Path, books: Books) -> None:
    """Lets the queue have nodes started, and an empty one have them ended."""
    with scaled_cluster(work) as (address, owner, log):
        given: dict[str, Any] = {"hosts": [0, HOSTS]}
        config = settings_of(work / "scaled", address, "tcp://127.0.0.1:*", **given)
        began = time.monotonic()
        async with Broker(config, tools=[books.mark]) as broker:
            sleep = "await new Promise((resolve) => setTimeout(resolve, 6000)); globalThis.__codemode_result__ = 1;"
            runs = [asyncio.create_task(broker.run(sleep)) for _ in range(HOSTS * CAPACITY * 2)]
            await until(lambda: len(pids(broker)) == HOSTS, "three hosts on nodes that were not there", BOUND)
            up = time.monotonic() - began
            results = [response.result for response in await asyncio.gather(*runs)]
            books.hold(results == [1] * len(runs), f"on scaled nodes: {results}")
            asked = log.read_text(errors="replace")
            books.hold("request_resources()" in asked, "the autoscaler was not asked for room")
            ended = time.monotonic()
            await until(lambda: not pids(broker) and raylets(owner) == 0, "no hosts, and no nodes", BOUND)
            down = time.monotonic() - ended
    print(f"by the autoscaler: three nodes and hosts after {up:.1f} s; none {down:.1f} s after the last run")


KILLED: Final = """
import asyncio, json, sys
from cellblock import Broker
from cellblock.app.config.load import parse_settings

async def main() -> None:
    async with Broker(parse_settings(json.loads(sys.argv[1]))) as broker:
        while not broker.hosts:
            await asyncio.sleep(0.1)
        print("there", flush=True)
        await asyncio.sleep(600)

asyncio.run(main())
"""


ACTORS: Final = """
import json, sys
import ray
ray.init(address=sys.argv[1], logging_level="ERROR", log_to_driver=False)
print(json.dumps(ray.util.list_named_actors(all_namespaces=True)))
"""


async def of_a_killed_broker(work: Path, books: Books) -> None:
    """Kills a broker: its hosts have nobody then, and end."""
    cluster = await asyncio.to_thread(RayCluster, 2)
    try:
        config = settings_of(work / "killed", cluster.address, "tcp://127.0.0.1:*")
        given = json.dumps(config.model_dump(mode="json", by_alias=True, exclude_unset=True))
        broker = await asyncio.create_subprocess_exec(
            sys.executable, "-c", KILLED, given, stdout=asyncio.subprocess.PIPE
        )
        assert broker.stdout is not None
        await asyncio.wait_for(broker.stdout.readline(), BOUND)
        hosts = [one for one in cluster.processes() if "cellblock_worker" in command_line(one)]
        books.hold(len(hosts) == 1, f"hosts of the broker that is killed: {hosts}")
        books.hold(len(json.loads(await cluster.job(ACTORS))) == 2, "a fleet and a host are actors")
        broker.send_signal(signal.SIGKILL)
        await broker.wait()
        began = time.monotonic()
        await gone(hosts, ORPHAN_SECONDS + BOUND)
        print(f"the hosts of a killed broker have ended after {time.monotonic() - began:.0f} s")
        books.hold(json.loads(await cluster.job(ACTORS)) == [], "an actor is left")
    finally:
        cluster.close()


async def main() -> int:
    """Returns 0 when everything held."""
    parser = argparse.ArgumentParser(prog="scripts/ray_check", description=__doc__)
    parser.add_argument("--seconds", type=float, default=90.0, help="of load (default 90)")
    parser.add_argument("--seed", type=int, default=random.randrange(2**32), help="of the faults")
    given = parser.parse_args()
    random.seed(given.seed)
    os.environ |= WITHOUT_TOKEN
    print(f"seed {given.seed}; load average {os.getloadavg()[0]:.1f}")
    books = Books()
    # Short: Ray's sockets are below it.
    with tempfile.TemporaryDirectory(prefix="ray-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        work = Path(folder)
        await under_load(work, given.seconds, books)
        back = ", ".join(f"{seconds:.0f}" for seconds in books.back)
        print(f"{sum(books.ended.values())} runs: {dict(books.ended)}")
        print(f"{len(books.kills)} nodes were killed; three hosts again after {back} s")
        await by_the_autoscaler(work, books)
        await of_a_killed_broker(work, books)
    for breach in books.breaches[:20]:
        print(f"BROKEN {breach}")
    print(f"{len(books.breaches)} breaches" if books.breaches else "everything held")
    return 1 if books.breaches else 0


if __name__ == "__main__":
    sys.exit(asyncio.run(main()))
