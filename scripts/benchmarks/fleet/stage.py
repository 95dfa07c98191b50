"""A stage is a fleet that is measured: brokers behind a balancer on one PostgreSQL, their hosts, clients, and the
books of all.

Where a core can be pinned, brokers have the first one and everything else the second: else a figure would be of
both.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
import time
from collections.abc import AsyncGenerator, Callable, Generator
from functools import partial
from pathlib import Path
from typing import Any, Final

import psutil

from benchmarks.client import TOOL
from benchmarks.fleet.books import Books
from benchmarks.fleet.client import Clients, bytes_of
from benchmarks.harness import SCRIPTS
from benchmarks.processes import cpu_of_tree, cpu_seconds
from support.fleet.fleet import Fleet
from support.fleet.network import Loopback

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
        "max_sessions": 4096,
    },
    "pool": {
        "warm": 1,
        "queue_size": 20_000,
        "queue_wait_ms": 600_000,
        "reserved_places": 0,
    },
}
"""Are the sections of a broker that are not as they come."""


class Stage:
    """Has a fleet whose brokers and balancer serve, and no host yet.

    Attributes:
        fleet: The fleet.
        books: Of its parts.
    """

    def __init__(self, fleet: Fleet, *, pinned: bool) -> None:
        self.fleet = fleet
        self.books = Books()
        if pinned:
            for broker in fleet.brokers:
                broker.wrapper = ["taskset", "-c", str(BROKERS_CORE)]
        for part in (*fleet.brokers, fleet.balancer):
            part.start()
        self.until(lambda: self.sum_of("worker_hosts") == 0, "brokers that answer")

    def with_hosts(self, count: int) -> None:
        """Has so many of the fleet's hosts serve; opens the books with the first."""
        hosts = self.fleet.hosts[:count]
        for host in hosts:
            if host.process is None:
                host.start()
        for host in hosts:
            host.wait()
        self.until(lambda: self.sum_of("worker_hosts") == count * len(self.fleet.brokers), f"{count} hosts")
        self.books.parts["hosts"] = lambda: sum(cpu_of_tree(host.pid) for host in hosts)
        if self.books.postgres is None:
            self._open()

    def _open(self) -> None:
        import psycopg

        brokers = self.fleet.brokers
        self.until(lambda: all(broker.is_ready() for broker in brokers), "brokers that are ready")
        self.fleet.balancer.wait()
        self.until(lambda: self.fleet.balancer.up() == len(brokers), "a balancer that knows them")
        self.books.postgres = psycopg.connect(self.fleet.database.url, autocommit=True)
        server = psutil.Process(self.books.postgres.info.backend_pid).ppid()
        self.books.parts |= {
            **{f"broker {number}": partial(cpu_seconds, one.pid) for number, one in enumerate(brokers)},
            "balancer": partial(cpu_seconds, self.fleet.balancer.pid),
            "client": partial(cpu_seconds, os.getpid()),
            "PostgreSQL": partial(cpu_of_tree, server),
        }

    def close(self) -> None:
        """Closes the books."""
        if self.books.postgres is not None:
            self.books.postgres.close()

    def sum_of(self, gauge: str) -> float:
        """Returns the sum of a gauge over all brokers; -1 where one does not answer."""
        name, total = f"cellblock_{gauge} ".encode(), 0.0
        for broker in self.fleet.brokers:
            status, page = broker.page("/metrics")
            lines = [line for line in page.splitlines() if line.startswith(name)]
            if status != 200 or not lines:
                return -1.0
            total += float(lines[0].split()[1])
        return total

    def until(self, holds: Callable[[], bool], what: str) -> None:
        """Waits until something holds. Raises TimeoutError, also where a broker has ended."""
        until = time.monotonic() + WAIT_SECONDS
        while not holds():
            if time.monotonic() > until or not all(broker.is_running for broker in self.fleet.brokers):
                logs = "\n".join(broker.said()[-2000:] for broker in self.fleet.brokers)
                raise TimeoutError(f"not within {WAIT_SECONDS:g} s: {what}\n{logs}")
            time.sleep(LOOK_SECONDS)

    @contextlib.asynccontextmanager
    async def clients(self, count: int) -> AsyncGenerator[Clients]:
        """Gives so many clients of the fleet, through its balancer."""
        behind = self.fleet.behind()
        clients = Clients((behind.host, behind.port), behind.tls)
        try:
            await clients.open(count)
            yield clients
        finally:
            clients.close()

    def request(self, code: str) -> bytes:
        """Returns the request of a run."""
        behind = self.fleet.behind()
        arguments = {"code": code, "limits": {"timeoutMs": 60_000}}
        return bytes_of(f"{behind.host}:{behind.port}", TOOL, arguments, behind.token)


@contextlib.contextmanager
def staged(*, brokers: int, hosts: int, capacity: int, pinned: bool, **settings: Any) -> Generator[Stage]:
    """Stages a fleet with so many hosts, none of which has begun; nothing is left of it behind the block."""
    # By a short path: a socket's has 107 characters at most.
    folder = Path(tempfile.mkdtemp(prefix="fleet-", dir="/tmp"))
    before = os.sched_getaffinity(0)
    try:
        if pinned:
            # What is started from here on is there, too.
            os.sched_setaffinity(0, {OTHER_CORE})
        with (
            Loopback(relays=False) as network,
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
            contextlib.closing(Stage(fleet, pinned=pinned)) as stage,
        ):
            yield stage
    finally:
        os.sched_setaffinity(0, before)
        shutil.rmtree(folder, ignore_errors=True)


def can_pin() -> bool:
    """Says whether brokers can have a core of their own."""
    return shutil.which("taskset") is not None and {BROKERS_CORE, OTHER_CORE} <= os.sched_getaffinity(0)
