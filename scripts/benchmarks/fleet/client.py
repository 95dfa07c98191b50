"""A client has many connections and a run that is due at fixed times, in one loop without a task or a thread
for a run.

A latency counts from when the run was due, not from when a connection was free for it: whoever waits in the
client waits as if it were in the broker's queue (Tene's "coordinated omission"). Speaks MCP 2026-07-28 over
HTTP/1.1, as `load.plain_http` does.
"""

from __future__ import annotations

import asyncio
import json
import ssl
from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.load.plain_http import HEADERS, META
from benchmarks.load.record import Latencies

NUMBER: Final = b"0000000000"
"""Is in a request where each has its own number: no broker should know a script by its text."""

CONNECT_SECONDS: Final = 60.0
"""Bounds the time of all connections, which take milliseconds."""

AGAIN_SECONDS: Final = 0.1

WINDOWS_SECONDS: Final = 120.0
"""Bounds by how much windows may be longer than they should be."""

REASON_CHARS: Final = 300
"""Caps what is told of an answer that is none."""

_END: Final = b"\r\n\r\n"
_LENGTH: Final = b"content-length:"


def request_of(host: str, tool: str, arguments: dict[str, Any], token: str | None) -> bytes:
    """Returns the bytes of a request that calls a tool."""
    params = {"name": tool, "arguments": arguments, "_meta": META}
    body = json.dumps({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": params}).encode()
    headers = {"Host": host, **HEADERS, "Mcp-Name": tool, "Content-Length": str(len(body))}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    lines = ["POST /mcp HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


def due_times(rate: float, seconds: float) -> Iterator[float]:
    """Yields when runs are due, in seconds from the start: evenly apart, the first at once."""
    for number in range(round(rate * seconds)):
        yield number / rate


@dataclass
class Offered:
    """Holds what became of a load.

    Attributes:
        due: Runs that were due in the window.
        answered: Runs that were answered in it, whenever they were due.
        latencies: Of those that are counted, from when they were due.
        seconds: How long the window was.
        wrong: What was answered that is no right answer, and how often.
    """

    due: int = 0
    answered: int = 0
    latencies: Latencies = field(default_factory=Latencies)
    seconds: float = 0.0
    wrong: Counter[str] = field(default_factory=Counter[str])

    @property
    def per_second(self) -> float:
        """Returns the right answers per second of the window."""
        return self.answered / self.seconds if self.seconds else 0.0


class _Connection(asyncio.Protocol):
    """Has one request under way at most."""

    def __init__(self, load: Load) -> None:
        self._load = load
        self._held = b""
        self._size = -1
        self.due = 0.0
        self.transport: asyncio.Transport | None = None

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self.transport = transport

    def send(self, request: bytes, due: float) -> None:
        """Sends one, whose answer is for that time."""
        assert self.transport is not None
        self.due = due
        self.transport.write(request)

    def data_received(self, data: bytes) -> None:
        self._held = self._held + data if self._held else data
        if self._size < 0:
            end = self._held.find(_END)
            if end < 0:
                return
            head = self._held[:end].lower()
            at = head.find(_LENGTH)
            if at < 0:
                self._over(f"an answer without a length: {head[:REASON_CHARS]!r}")
                return
            length = int(head[at + len(_LENGTH) :].partition(b"\r\n")[0])
            self._size = end + len(_END) + length
        if len(self._held) >= self._size:
            self._over(None)

    def connection_lost(self, exc: Exception | None) -> None:
        self._load.lost(self, f"the connection was lost: {exc or 'it was closed'}")

    def _over(self, wrong: str | None) -> None:
        answer, self._held, self._size = self._held, b"", -1
        self._load.answered(self, answer, wrong)


class Load:
    """Owns the connections to one address. `open` first, `close` at the end.

    Args:
        address: Of the balancer, or of the one server: host and port.
        connections: So many runs may be under way.
        tls: Of the connections; None for none.
    """

    def __init__(self, address: tuple[str, int], connections: int, tls: ssl.SSLContext | None = None) -> None:
        self._address, self._count, self._tls = address, connections, tls
        self._loop = asyncio.get_running_loop()
        self._idle: deque[_Connection] = deque()
        self._busy: set[_Connection] = set()
        self._waiting: deque[float] = deque()
        self._request = self._right = b""
        self._number = self._missing = 0
        self._enough = asyncio.Event()
        self._counted: Offered | None = None
        self._on_free: Callable[[_Connection], None] | None = None
        self._quiet = asyncio.Event()

    async def open(self) -> None:
        """Opens all connections; one that is refused is tried again, as a balancer that has just lost sight of a busy
        server refuses some. Raises OSError, TimeoutError."""
        async with asyncio.timeout(CONNECT_SECONDS):
            while len(self._idle) + len(self._busy) < self._count:
                try:
                    self._idle.append(await self._connected())
                except ConnectionError:
                    await asyncio.sleep(AGAIN_SECONDS)

    def close(self) -> None:
        """Closes all."""
        for one in (*self._idle, *self._busy):
            if one.transport is not None:
                one.transport.abort()
        self._idle.clear()
        self._busy.clear()

    async def offer(
        self,
        rate: float,
        seconds: float,
        request: bytes,
        right: bytes,
        *,
        lead: float = 0.0,
        edge: Callable[[], None] = lambda: None,
    ) -> Offered:
        """Has `rate` runs a second due, whether or not those before are answered; counts those that are due,
        and those that are answered, in `seconds` behind the first `lead` seconds. Calls `edge` where the window
        begins and ends."""
        self._take(request, right, self._send_waiting)
        found, began = Offered(seconds=seconds), self._loop.time()
        for due in due_times(rate, lead + seconds):
            if (left := began + due - self._loop.time()) > 0:
                await asyncio.sleep(left)
            if self._counted is None and due >= lead:
                edge()
                self._counted = found
            found.due += due >= lead
            self._waiting.append(began + due)
            self._send_all_waiting()
        await asyncio.sleep(began + lead + seconds - self._loop.time())
        edge()
        self._leave()
        return found

    async def hold(
        self,
        clients: int,
        seconds: float,
        request: bytes,
        right: bytes,
        *,
        lead: float = 0.0,
        apart: float = 0.0,
        windows: int = 1,
        edge: Callable[[], None] = lambda: None,
    ) -> list[Offered]:
        """Has each of so many clients begin its next run with the last answer, the first ones `apart` seconds
        after each other; counts what is answered in each of so many windows of `seconds`, behind the first
        `lead` seconds. Calls `edge` where a window begins or ends."""
        self._take(request, right, self._send_now)
        now, found = self._loop.time, list[Offered]()
        starts = self._loop.create_task(self._start(clients, apart))
        try:
            async with asyncio.timeout(lead + windows * seconds + WINDOWS_SECONDS):
                began = await self._while(clients, now() + lead)
                for _ in range(windows):
                    edge()
                    self._counted = one = Offered()
                    ended = await self._while(clients, began + seconds)
                    one.due, one.seconds, began = one.answered, ended - began, ended
                    found.append(one)
                edge()
        finally:
            starts.cancel()
            self._leave()
        return found

    async def finish(self, runs: int, request: bytes, right: bytes, bound: float) -> Offered:
        """Has so many runs due at once, and waits for all. Raises TimeoutError."""
        self._take(request, right, self._send_waiting)
        self._counted = found = Offered(due=runs)
        began = self._loop.time()
        self._waiting.extend([began] * runs)
        self._send_all_waiting()
        await self.settled(bound)
        found.seconds = self._loop.time() - began
        self._leave()
        return found

    async def settled(self, bound: float) -> None:
        """Waits until nothing is under way. Raises TimeoutError."""
        self._quiet.clear()
        if self._busy:
            async with asyncio.timeout(bound):
                await self._quiet.wait()

    # ---- what connections tell ---------------------------------------------------------------------------

    def answered(self, connection: _Connection, answer: bytes, wrong: str | None) -> None:
        """Takes an answer."""
        self._busy.discard(connection)
        self._missing -= 1
        if self._missing == 0:
            self._enough.set()
        if wrong is None and self._right not in answer:
            # What a run says of itself begins with what went wrong.
            begin = max(answer.rfind(b'"diagnostics"'), answer.find(_END), 0)
            wrong = answer[begin : begin + REASON_CHARS].decode("utf-8", "replace")
        self._count_one(connection.due, wrong)
        self._idle.append(connection)
        if self._on_free is not None:
            self._on_free(connection)
        if not self._busy:
            self._quiet.set()

    def lost(self, connection: _Connection, why: str) -> None:
        """Takes note of a connection that has ended; one with a run under way is a wrong answer."""
        if connection in self._busy:
            self._busy.discard(connection)
            self._count_one(connection.due, why)
        elif connection in self._idle:
            self._idle.remove(connection)
        else:
            return
        if not self._busy:
            self._quiet.set()

    # ---- inside ------------------------------------------------------------------------------------------

    async def _connected(self) -> _Connection:
        _, made = await self._loop.create_connection(lambda: _Connection(self), *self._address, ssl=self._tls)
        return made

    def _take(self, request: bytes, right: bytes, on_free: Callable[[_Connection], None]) -> None:
        self._request, self._right, self._on_free, self._counted = request, right, on_free, None

    def _leave(self) -> None:
        self._counted = self._on_free = None
        self._waiting.clear()

    def _count_one(self, due: float, wrong: str | None) -> None:
        counted = self._counted
        if counted is None:
            return
        if wrong is not None:
            counted.wrong[wrong] += 1
            counted.latencies.errors += 1
        else:
            counted.answered += 1
            counted.latencies.add(self._loop.time() - due)

    def _send(self, connection: _Connection, due: float) -> None:
        self._number += 1
        self._busy.add(connection)
        connection.send(self._request.replace(NUMBER, b"%010d" % self._number), due)

    def _send_now(self, connection: _Connection) -> None:
        self._idle.remove(connection)
        self._send(connection, self._loop.time())

    def _send_waiting(self, connection: _Connection) -> None:
        if self._waiting:
            self._idle.remove(connection)
            self._send(connection, self._waiting.popleft())

    def _send_all_waiting(self) -> None:
        while self._waiting and self._idle:
            self._send(self._idle.popleft(), self._waiting.popleft())

    async def _while(self, answers: int, until: float) -> float:
        """Waits for so many answers, and until that time; gives the time."""
        self._missing = answers
        self._enough.clear()
        await asyncio.sleep(max(0.0, until - self._loop.time()))
        if self._missing > 0:
            await self._enough.wait()
        return self._loop.time()

    async def _start(self, clients: int, apart: float) -> None:
        for _ in range(clients):
            self._send(self._idle.popleft(), self._loop.time())
            await asyncio.sleep(apart)
