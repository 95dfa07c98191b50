"""Who acts beside the load: hostile servers that flood, hostile HTTP clients, and a quiet neighbour who is measured."""

from __future__ import annotations

import asyncio
import contextlib
import random
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Generator
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.hostile.hostile_server import boxes
from benchmarks.hostile.neighbours import Found, visit
from benchmarks.hostile.plain_client import request_body
from benchmarks.hostile.stage import ATTACKER, Stage
from benchmarks.hostile.workloads import IDLE, SLEEPS
from soak.books import Books
from soak.load import KILLED

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
    acts: dict[str, list[tuple[float, float]]] = field(default_factory=dict[str, list[tuple[float, float]]])
    """When each deed began and ended, by the monotonic clock."""

    met: Found | None = None

    async def run(self, seconds: float) -> None:
        """Acts for so long, and returns when everything that was begun has ended."""
        neighbour = asyncio.to_thread(
            visit, self.stage.port, self.stage.token, runs=int(seconds * RATE), rate=RATE
        )
        acts = {"floods": self._floods, "clients": self._clients}
        hostile = [asyncio.create_task(act()) for name, act in acts.items() if name not in self.without]
        try:
            self.met = await neighbour
        finally:
            self.stage.over.set()
            for task in hostile:
                task.cancel()
            await asyncio.gather(*hostile, return_exceptions=True)
            self.stage.go.unlink(missing_ok=True)
        for failure in self.met.failures:
            if not any(code in failure for code in KILLED):
                self.books.breach("neighbours are served", failure)

    def figures(self) -> dict[str, Any]:
        """For the report."""
        return {
            "neighbours": {} if self.met is None else self.met.as_json(),
            "deeds": dict(self.deeds),
            "endings": dict(self.stage.bill.endings),
        }

    async def _floods(self) -> None:
        chance = random.Random(self.seed)
        while True:
            await asyncio.sleep(chance.expovariate(1 / CALM_SECONDS))
            with self._doing("floods of servers"):
                self.stage.go.touch()
                try:
                    await asyncio.sleep(FLOOD_SECONDS)
                finally:
                    self.stage.go.unlink(missing_ok=True)

    async def _clients(self) -> None:
        chance = random.Random(self.seed + 1)
        large = request_body(SLEEPS, None, boxes(META_BYTES))
        deeds: dict[str, Callable[[], None]] = {
            "requests that are none": lambda: self._refused(*chance.choice(list(REFUSED.items()))),
            "silent connections": lambda: self._silent(chance.choice(SILENT), 20),
            "idle connections": lambda: self._silent(b"GET /livez HTTP/1.1\r\nHost: %(host)s\r\n\r\n", IDLE),
            "requests of 7.4 MB": lambda: self._together(lambda: self.stage.send(large), 4),
        }
        while True:
            await asyncio.sleep(chance.expovariate(1 / CLIENT_EVERY_SECONDS))
            name = chance.choices(list(deeds), [6, 3, 1, 2])[0]
            # A thread cannot be cancelled: what it has begun has a bound, and is waited for.
            with self._doing(name):
                await asyncio.shield(asyncio.to_thread(deeds[name]))

    @contextlib.contextmanager
    def _doing(self, deed: str) -> Generator[None]:
        self.deeds[deed] += 1
        begin = time.monotonic()
        try:
            yield
        finally:
            self.acts.setdefault(deed, []).append((begin, time.monotonic()))

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
                one = stack.enter_context(self._connected())
                one.sendall(self._filled(request))
            self.stage.over.wait(HELD_SECONDS)

    def _connected(self) -> socket.socket:
        return socket.create_connection(
            ("127.0.0.1", self.stage.port), timeout=ANSWER_SECONDS, source_address=(ATTACKER, 0)
        )

    def _filled(self, request: bytes) -> bytes:
        host = f"127.0.0.1:{self.stage.port}".encode()
        return request.replace(b"%(host)s", host).replace(b"%(token)s", self.stage.token.encode())

    @staticmethod
    def _together(work: Callable[[], object], count: int) -> None:
        threads = [threading.Thread(target=work, daemon=True) for _ in range(count)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
