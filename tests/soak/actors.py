"""Who acts beside the load: hostile servers that flood, hostile HTTP clients, a quiet neighbour who is measured; and
random deaths: SIGKILL, SIGSTOP and later SIGKILL, or a pause, of workers, hosts and upstream servers."""

import asyncio
import contextlib
import random
import socket
import time
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import psutil

from benchmarks.client import run_of
from benchmarks.hostile.hostile_server import boxes
from benchmarks.hostile.neighbours import Found, visit
from benchmarks.hostile.stage import ATTACKER, Stage
from benchmarks.hostile.workloads import IDLE, SLEEPS
from soak.books import Books
from soak.load import KILLED
from soak.watch import by_role

RATE: Final = 4.0
"""The neighbour's runs that are due in a second."""

CALM_SECONDS: Final = 12.0
FLOOD_SECONDS: Final = 2.0
"""Between two floods of the hostile servers, and of one."""

CLIENT_EVERY_SECONDS: Final = 3.0
"""Between two deeds of hostile HTTP clients, on average."""

HELD_SECONDS: Final = 2.0
"""How long what is opened and says nothing is kept."""

ANSWER_SECONDS: Final = 10.0
"""For the refusal of a request that is none."""

META_BYTES: Final = 7_400 * 1024

FLOODS: Final = "floods of servers"
CLIENT_DEEDS: Final = {
    "requests that are none": 6,
    "silent connections": 3,
    "idle connections": 1,
    "requests of 7.4 MB": 2,
}
"""What hostile HTTP clients do, by how often."""

REFUSED: Final = {
    "no token": b"POST /mcp HTTP/1.1\r\nHost: %(host)s\r\nContent-Length: 2\r\n\r\n{}",
    "wrong token": b"POST /mcp HTTP/1.1\r\nHost: %(host)s\r\nAuthorization: Bearer x\r\nContent-Length: 2\r\n\r\n{}",
    "length and chunks": b"POST /mcp HTTP/1.1\r\nHost: %(host)s\r\nAuthorization: Bearer %(token)s\r\n"
    b"Content-Length: 4\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n",
    "long headers": b"GET /mcp HTTP/1.1\r\nHost: %(host)s\r\nX-Long: " + b"x" * 300_000 + b"\r\n\r\n",
    "foreign host": b"GET /mcp HTTP/1.1\r\nHost: evil.example\r\n\r\n",
    "no HTTP": b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n",
}
"""Requests by what is wrong with them: each is refused (400 to 499), or its connection is closed."""

SILENT: Final = (
    b"",
    b"POST /mcp HT",
    b"POST /mcp HTTP/1.1\r\nHost: %(host)s\r\nAuthorization: Bearer %(token)s\r\nContent-Length: 9999\r\n\r\n{",
)
"""Beginnings of requests that do not go on."""


@dataclass
class Actors:
    """All of them, for one daemon, while they run.

    Args:
        stage: Where the daemon is.
        books: Told of what is wrong.
        seed: Fixes what hostile clients do, and when.
        without: Of `campaign.PARTS`, who is left out.
    """

    stage: Stage
    books: Books
    seed: int
    without: Collection[str] = ()
    deeds: Counter[str] = field(default_factory=Counter[str])
    met: Found | None = None

    def __post_init__(self) -> None:
        self._chance = random.Random(self.seed + 1)
        self._large = run_of(SLEEPS, None, boxes(META_BYTES))

    async def neighbour(self, seconds: float) -> None:
        """Measures the quiet neighbour for so long."""
        self.met = await asyncio.to_thread(
            visit, self.stage.port, self.stage.token, runs=int(seconds * RATE), rate=RATE
        )
        unserved = [one for one in self.met.failures if not any(code in one for code in KILLED)]
        self.books.breach("neighbours are served", *unserved)

    async def run(self, until: float) -> None:
        """Acts, all kinds at once, and returns when everything that was begun before `until` has ended."""
        chance = random.Random(self.seed)
        acts = {
            "floods": lambda: self._again(chance, 1 / CALM_SECONDS, {FLOODS: 1}, until),
            "clients": lambda: self._again(self._chance, 1 / CLIENT_EVERY_SECONDS, CLIENT_DEEDS, until),
        }
        await asyncio.gather(*(act() for name, act in acts.items() if name not in self.without))

    def close(self) -> None:
        """Ends what threads still hold or send."""
        self.stage.over.set()
        self.stage.go.unlink(missing_ok=True)

    def figures(self) -> dict[str, Any]:
        """For the report."""
        met = {} if self.met is None else self.met.as_json()
        return {**{f"neighbour: {name}": value for name, value in met.items()}, **self.deeds}

    async def _again(
        self, chance: random.Random, rate: float, deeds: Mapping[str, int], until: float
    ) -> None:
        while await _slept(chance.expovariate(rate), until):
            await self._do(chance.choices(list(deeds), list(deeds.values()))[0])

    async def _do(self, deed: str) -> None:
        self.deeds[deed] += 1
        match deed:
            case "floods of servers":
                self.stage.go.touch()
                await asyncio.sleep(FLOOD_SECONDS)
                self.stage.go.unlink(missing_ok=True)
            case "requests that are none":
                await asyncio.to_thread(self._refused, *self._chance.choice(list(REFUSED.items())))
            case "silent connections":
                await asyncio.to_thread(self._silent, self._chance.choice(SILENT), 20)
            case "idle connections":
                await asyncio.to_thread(self._silent, b"GET /livez HTTP/1.1\r\nHost: %(host)s\r\n\r\n", IDLE)
            case _:
                large = [asyncio.to_thread(self.stage.send, self._large) for _ in range(4)]
                await asyncio.gather(*large)

    def _refused(self, name: str, request: bytes) -> None:
        with contextlib.suppress(OSError), self._connected() as one:
            one.sendall(self._filled(request))
            head = one.recv(64)
            status = head.split()[1:2]
            if head and not (status and status[0].startswith(b"4")):
                self.books.breach("hostile requests are refused", f"{name}: {head!r}")

    def _silent(self, request: bytes, count: int) -> None:
        with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
            for _ in range(count):
                stack.enter_context(self._connected()).sendall(self._filled(request))
            self.stage.over.wait(HELD_SECONDS)

    def _connected(self) -> socket.socket:
        return socket.create_connection(
            ("127.0.0.1", self.stage.port), timeout=ANSWER_SECONDS, source_address=(ATTACKER, 0)
        )

    def _filled(self, request: bytes) -> bytes:
        host = f"127.0.0.1:{self.stage.port}".encode()
        return request.replace(b"%(host)s", host).replace(b"%(token)s", self.stage.token.encode())


async def _slept(seconds: float, until: float) -> bool:
    """Sleeps, but not beyond `until`; whether there is time left."""
    left = until - time.monotonic()
    await asyncio.sleep(max(0.0, min(seconds, left)))
    return seconds < left


WORKER_EVERY_SECONDS: Final = 1.5
UPSTREAM_EVERY_SECONDS: Final = 12.0
HOST_EVERY_SECONDS: Final = 40.0
"""Mean pauses between faults of one kind; the pauses are exponential, so some come close together."""

HOST_SHARE: Final = 0.6
"""Hosts are killed in this first part of the load only: in the rest one host lives on, so that its memory shows."""


@dataclass(frozen=True)
class Fault:
    """What was done; `at` in seconds since the load began. `how` is kill, stop-kill or pause."""

    at: float
    role: str
    how: str


class Faults:
    """Kills descendants of one broker only.

    Args:
        broker: The broker's process.
        seed: Fixes the order of faults, not what they meet.
        began: When the load began, by the monotonic clock.
        until: Seconds after which hosts are left alone.
    """

    def __init__(self, broker: psutil.Process, seed: int, began: float, *, until: float) -> None:
        self._broker = broker
        self._chance = random.Random(seed)
        self._began = began
        self._hosts_until = until
        self.done: list[Fault] = []

    async def run(self) -> None:
        """Goes on until cancelled. What it has stopped is then killed or set going."""
        async with asyncio.TaskGroup() as group:
            group.create_task(self._again(WORKER_EVERY_SECONDS, "worker", 1.0))
            group.create_task(self._again(UPSTREAM_EVERY_SECONDS, "upstream", 3.0))
            group.create_task(self._again(HOST_EVERY_SECONDS, "host", 10.0))

    async def kill_one(self, role: str) -> None:
        """SIGKILL to one process of a role, if there is one."""
        if (victim := self._choose(role)) is not None:
            victim.kill()

    async def _again(self, mean: float, role: str, longest_stop: float) -> None:
        while True:
            await asyncio.sleep(self._chance.expovariate(1 / mean))
            if role == "host" and time.monotonic() - self._began > self._hosts_until:
                return
            # bubblewrap is the parent of each worker; either may die first.
            chosen = self._chance.choice(["worker", "worker", "bubblewrap"]) if role == "worker" else role
            victim = self._choose(chosen)
            if victim is not None:
                how = self._chance.choices(["kill", "stop-kill", "pause"], [6, 3, 2])[0]
                self.done.append(Fault(round(time.monotonic() - self._began, 2), chosen, how))
                with contextlib.suppress(psutil.Error):
                    await self._harm(victim, how, self._chance.uniform(0.05, longest_stop))

    async def _harm(self, victim: psutil.Process, how: str, seconds: float) -> None:
        if how == "kill":
            victim.kill()
            return
        victim.suspend()
        try:
            await asyncio.sleep(seconds)
        finally:
            with contextlib.suppress(psutil.Error):
                victim.resume() if how == "pause" else victim.kill()

    def _choose(self, role: str) -> psutil.Process | None:
        try:
            candidates = by_role(self._broker).get(role, [])
        except psutil.Error:
            return None
        candidates.sort(key=lambda process: process.pid)
        return self._chance.choice(candidates) if candidates else None
