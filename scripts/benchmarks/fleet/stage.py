"""A stage is a fleet that is measured: brokers behind a balancer on one PostgreSQL, their hosts, a client, and
the books of all.

Where a core can be pinned, brokers have the first one and everything else the second: else a figure would be of
both.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import Callable, Generator, Sequence
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.fleet.books import Books
from benchmarks.fleet.client import NUMBER, Load, request_of
from benchmarks.fleet.steps import Step, calls_in, script_of
from benchmarks.harness import MIB, SCRIPTS
from support.fleet.fleet import Fleet
from support.fleet.network import Place, best_network
from support.fleet.parts import Broker, Host

BROKERS_CORE: Final = 0
OTHER_CORE: Final = 1

WAIT_SECONDS: Final = 120.0
"""Bounds the wait for what a fleet does within seconds on a quiet machine."""

LOOK_SECONDS: Final = 0.1

SETTINGS: Final[dict[str, Any]] = {
    "tools": ["benchmarks.load.scenarios"],
    "typecheck": "off",
    "http": {
        # One client is to fill a broker, which these are there to prevent.
        "requests_per_second": 1_000_000,
        "burst": 1_000_000,
        "max_connections": 8192,
        "max_held_bytes": 1024 * MIB,
    },
    "pool": {
        "warm": 1,
        "queue_size": 20_000,
        "queue_wait_ms": 600_000,
        "reserved_places": 0,
    },
}
"""Are the sections of a broker that are not as they come."""


class SyntheticHosts(Host):
    """Is a process that stands for so many hosts."""

    def __init__(
        self,
        place: Place,
        folder: Path,
        names: Sequence[str],
        keys: tuple[Path, str],
        *,
        count: int,
        capacity: int,
    ) -> None:
        super().__init__(place, folder, names, keys, ("--capacity", capacity, "--warm", min(capacity, 32)))
        self.count = count
        self.environment["PYTHONPATH"] = str(SCRIPTS)

    def command(self) -> list[str]:
        python, _, _, *rest = super().command()
        return [python, "-m", "benchmarks.fleet.synthetic", "--hosts", str(self.count), *rest]

    def is_ready(self) -> bool:
        return self.said().count("connected to the broker") >= self.count * len(self.names)


class Stage:
    """Has a fleet whose brokers and balancer serve, and no host yet.

    Attributes:
        fleet: The fleet.
        books: Of its parts.
    """

    def __init__(self, fleet: Fleet, *, pinned: bool) -> None:
        self.fleet = fleet
        self.books = Books()
        self._pinned = pinned
        if pinned:
            for broker in fleet.brokers:
                broker.wrapper = ["taskset", "-c", str(BROKERS_CORE)]
        for part in (*fleet.brokers, fleet.balancer):
            part.start()
        self.until(lambda: self.sum_of("worker_hosts") == 0, "brokers that answer")

    def open(self) -> None:
        """Opens the books, when the brokers have hosts and are ready."""
        import psycopg

        self.until(lambda: all(broker.is_ready() for broker in self.fleet.brokers), "brokers that are ready")
        self.fleet.balancer.wait()
        self.until(lambda: self.fleet.balancer.up() == len(self.fleet.brokers), "a balancer that knows them")
        asking = psycopg.connect(self.fleet.database.url, autocommit=True)
        server = psutil.Process(asking.info.backend_pid).ppid()
        brokers = [broker.pid for broker in self.fleet.brokers]
        self.books.postgres = asking
        self.books.processes |= {
            **{f"broker {number}": [pid] for number, pid in enumerate(brokers)},
            "balancer": [self.fleet.balancer.pid],
            "client": [os.getpid()],
        }
        self.books.trees |= {"PostgreSQL": [server]}
        self.books.below |= {"servers": brokers}
        if self._pinned:
            for child in (child for pid in brokers for child in psutil.Process(pid).children(recursive=True)):
                child.cpu_affinity([OTHER_CORE])

    def close(self) -> None:
        """Closes the books."""
        if self.books.postgres is not None:
            self.books.postgres.close()

    def with_hosts(self, count: int) -> None:
        """Has so many of the fleet's real hosts serve."""
        hosts = self.fleet.hosts[:count]
        for host in hosts:
            if host.process is None:
                host.start()
        for host in hosts:
            host.wait()
        self.books.trees["hosts"] = [host.pid for host in hosts]
        self.until(lambda: self.sum_of("worker_hosts") == count * len(self.fleet.brokers), f"{count} hosts")

    def with_synthetic(self, count: int, capacity: int) -> SyntheticHosts:
        """Starts a process of so many synthetic hosts, and waits until brokers know all."""
        known, number = int(self.sum_of("worker_hosts")), len(self.fleet.parts)
        place = self.fleet.network.place(f"synthetic hosts {number}")
        names = self.fleet.names_for(place)
        part = SyntheticHosts(
            place,
            self.fleet.folder / f"s{number}",
            names,
            self.fleet.host_keys,
            count=count,
            capacity=capacity,
        )
        self.fleet.add(part)
        part.start()
        wanted = known + count * len(self.fleet.brokers)
        self.until(
            lambda: part.is_running and self.sum_of("worker_hosts") == wanted,
            f"{count} more hosts",
            part.said,
        )
        self.books.processes.setdefault("hosts", []).append(part.pid)
        return part

    def sum_of(self, gauge: str) -> float:
        """Returns the sum of a gauge over all brokers; -1 where one does not answer."""
        total = 0.0
        for broker in self.fleet.brokers:
            found = gauge_of(broker, gauge)
            if found is None:
                return -1.0
            total += found
        return total

    def until(self, holds: Callable[[], bool], what: str, said: Callable[[], str] = lambda: "") -> None:
        """Waits until something holds. Raises TimeoutError, also where a broker has ended."""
        until = time.monotonic() + WAIT_SECONDS
        while not holds():
            if time.monotonic() > until or not all(broker.is_running for broker in self.fleet.brokers):
                logs = [said(), *(broker.said() for broker in self.fleet.brokers)]
                raise TimeoutError(
                    f"not within {WAIT_SECONDS:g} s: {what}\n" + "\n".join(log[-2000:] for log in logs)
                )
            time.sleep(LOOK_SECONDS)

    def load(self, connections: int) -> Load:
        """Returns a client of the fleet, through its balancer."""
        behind = self.fleet.behind()
        return Load((behind.host, behind.port), connections, behind.tls)

    def request(self, steps: Sequence[Step], timeout_ms: int = 60_000) -> tuple[bytes, bytes]:
        """Returns the request of a run that takes these steps, and what is in each right answer."""
        behind = self.fleet.behind()
        code = f"{script_of(steps)}// {NUMBER.decode()}\n"
        arguments = {"code": code, "limits": {"timeoutMs": timeout_ms}}
        asked = request_of(f"{behind.host}:{behind.port}", "codemode.run", arguments, behind.token)
        return asked, b'"result":%d,' % calls_in(steps)


@contextlib.contextmanager
def staged(
    *, brokers: int, hosts: int = 0, capacity: int = 4, pinned: bool, delays: bool = False, **settings: Any
) -> Generator[Stage]:
    """Stages a fleet with so many real hosts, none of which has begun, by links that can be delayed where `delays`
    says so; nothing is left of it behind the block."""
    # By a short path: a socket's has 107 characters at most.
    folder = Path(tempfile.mkdtemp(prefix="fleet-", dir="/tmp"))
    before = os.sched_getaffinity(0)
    try:
        if pinned:
            # What is started from here on is there, too.
            os.sched_setaffinity(0, {OTHER_CORE})
        with (
            best_network(delays=delays) as network,
            Fleet(
                folder,
                network,
                brokers=brokers,
                hosts=hosts,
                capacity=capacity,
                warm=min(capacity, 2),
                settings={**SETTINGS, **settings},
                environment={"PYTHONPATH": str(SCRIPTS)},
            ) as fleet,
        ):
            stage = Stage(fleet, pinned=pinned)
            try:
                yield stage
            finally:
                stage.close()
    finally:
        os.sched_setaffinity(0, before)
        shutil.rmtree(folder, ignore_errors=True)


def can_pin() -> bool:
    """Says whether brokers can have a core of their own."""
    return shutil.which("taskset") is not None and {BROKERS_CORE, OTHER_CORE} <= os.sched_getaffinity(0)


def gauge_of(broker: Broker, gauge: str) -> float | None:
    """Returns a gauge of a broker; None where it does not answer."""
    status, page = broker.page("/metrics")
    name = f"cellblock_{gauge} ".encode()
    lines = [line for line in page.splitlines() if line.startswith(name)]
    return float(lines[0].split()[1]) if status == 200 and lines else None
