"""A Ray cluster of several raylets on this machine: nodes are added, and killed.

As a program it owns the cluster: Ray takes over the signals of the process that starts one.
"""

import asyncio
import importlib
import importlib.util
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.processes import alive

NO_RAY = "Ray is not installed (215 MB): `bash scripts/ray_check` installs it and runs these tests"
needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason=NO_RAY)

JOB_BOUND_SECONDS = 300.0
"""A job starts workers, hosts and a broker, each in seconds; on a busy machine it takes minutes."""


class RayCluster:
    """A head without room for anything, and nodes, each with a raylet of its own, as on machines of their own."""

    def __init__(self, *cpus: int) -> None:
        self._owner = subprocess.Popen(
            [sys.executable, "-c", "from support.ray_cluster import own; own()"],
            cwd=Path(__file__).parents[1],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        told = self._ask()
        self.address: str = told["address"]
        self.session_dir = Path(told["session_dir"])
        self.nodes: list[psutil.Process] = []
        for count in cpus:
            self._add(count)

    async def add(self, cpus: int) -> psutil.Process:
        """Adds a node and gives its raylet."""
        return await asyncio.to_thread(self._add, cpus)

    async def kill(self, raylet: psutil.Process, *, with_all: bool = False) -> None:
        """Kills a node: its raylet alone, or everything on it at one blow, as when its power goes."""
        self.nodes.remove(raylet)
        await asyncio.to_thread(self._ask, kill=raylet.pid, with_all=with_all)

    def node_of(self, pid: int) -> psutil.Process | None:
        """The raylet that a process comes from; None of one that has ended, or comes from another."""
        try:
            above = psutil.Process(pid).parents()
        except psutil.NoSuchProcess:
            return None
        return next((node for node in self.nodes if node in above), None)

    def processes(self) -> list[psutil.Process]:
        """All that runs on the nodes."""
        return [one for node in self.nodes for one in node.children(recursive=True) if alive(one)]

    async def job(self, code: str, *arguments: str) -> str:
        """The last line that a program prints which is given the cluster's address: a job of it. Ray prints its own
        before, such as of nodes that are gone."""
        done = await asyncio.to_thread(
            subprocess.run,
            [sys.executable, "-c", code, self.address, *arguments],
            capture_output=True,
            text=True,
            timeout=JOB_BOUND_SECONDS,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return done.stdout.splitlines()[-1]

    def close(self) -> None:
        """Ends every node."""
        self._owner.communicate(timeout=JOB_BOUND_SECONDS)

    def _add(self, cpus: int) -> psutil.Process:
        raylet = psutil.Process(self._ask(add=cpus)["raylet"])
        self.nodes.append(raylet)
        return raylet

    def _ask(self, **what: Any) -> dict[str, Any]:
        if what:
            self._owner.stdin.write(json.dumps(what) + "\n")
            self._owner.stdin.flush()
        return json.loads(self._owner.stdout.readline())


def own() -> None:
    """Starts the cluster, and does what the lines of stdin say until it ends."""
    cluster: Any = importlib.import_module("ray.cluster_utils").Cluster(
        initialize_head=True, head_node_args={"num_cpus": 0, "include_dashboard": False}
    )
    raylets: dict[int, Any] = {}
    session_dir = cluster.head_node.get_session_dir_path()
    print(json.dumps({"address": cluster.address, "session_dir": session_dir}), flush=True)
    for line in sys.stdin:
        said = json.loads(line)
        if "add" in said:
            raylet = cluster.add_node(num_cpus=said["add"]).all_processes["raylet"][0].process
            raylets[raylet.pid] = raylet
            print(json.dumps({"raylet": raylet.pid}), flush=True)
            continue
        raylet = raylets.pop(said["kill"])
        below = psutil.Process(raylet.pid).children(recursive=True) if said["with_all"] else []
        for process in (raylet, *below):
            process.kill()
        # What it has started looks whether it is there: it must not stay as a zombie.
        raylet.wait()
        print("{}", flush=True)
    cluster.shutdown()
