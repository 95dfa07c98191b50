"""Clients of a fleet, each with a connection on which it begins its next run with the last answer, in one loop."""

from __future__ import annotations

import asyncio
import itertools
import json
import ssl
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

from benchmarks.client import HEADERS, request_of
from benchmarks.drive import Latencies

NUMBER: Final = b"0000000000"
"""Is in a request where each has its own number: no broker should know a script by its text."""

OPEN_SECONDS: Final = 60.0
AGAIN_SECONDS: Final = 0.1
ANSWER_SECONDS: Final = 120.0
REASON_CHARS: Final = 300
"""Caps what is told of an answer that is none."""

Streams = tuple[asyncio.StreamReader, asyncio.StreamWriter]


def bytes_of(host: str, tool: str, arguments: dict[str, Any], token: str | None) -> bytes:
    """Returns a whole HTTP request that calls a tool."""
    body = request_of(tool, arguments)
    headers = {"Host": host, **HEADERS, "Mcp-Name": tool, "Content-Length": str(len(body))}
    if token is not None:
        headers["Authorization"] = f"Bearer {token}"
    lines = ["POST /mcp HTTP/1.1", *(f"{name}: {value}" for name, value in headers.items()), "", ""]
    return "\r\n".join(lines).encode("latin-1") + body


@dataclass
class Answered:
    """Holds what was answered in a window of `seconds`, and what of it is no right answer, and how often."""

    count: int = 0
    seconds: float = 0.0
    latencies: Latencies = field(default_factory=Latencies)
    wrong: Counter[str] = field(default_factory=Counter[str])

    @property
    def per_second(self) -> float:
        """Returns the right answers per second."""
        return self.count / self.seconds if self.seconds else 0.0


class Clients:
    """Owns connections to one address; `open` first, `close` at the end.

    Args:
        address: Of the balancer, or of the one server: host and port.
        tls: Of the connections; None for none.
    """

    def __init__(self, address: tuple[str, int], tls: ssl.SSLContext | None = None) -> None:
        self._address, self._tls = address, tls
        self._connections: list[Streams] = []
        self._numbers = itertools.count()

    async def open(self, count: int) -> None:
        """Opens so many. One that is refused is tried again: a balancer may just have lost sight of a busy server.
        Raises OSError, TimeoutError."""
        async with asyncio.timeout(OPEN_SECONDS):
            while len(self._connections) < count:
                try:
                    self._connections.append(await asyncio.open_connection(*self._address, ssl=self._tls))
                except ConnectionError:
                    await asyncio.sleep(AGAIN_SECONDS)

    def close(self) -> None:
        """Closes all."""
        for _, writer in self._connections:
            writer.transport.abort()

    async def each(self, request: bytes, right: bytes) -> Answered:
        """Has each make one run, all at once."""
        found = Answered()
        await asyncio.gather(*(self._ask(one, request, right, found) for one in self._connections))
        return found

    async def hold(
        self,
        request: bytes,
        right: bytes,
        *,
        seconds: float,
        windows: int = 1,
        lead: float = 0.0,
        apart: float = 0.0,
        edge: Callable[[], None] = lambda: None,
    ) -> list[Answered]:
        """Has each begin its next run with the last answer, the first ones `apart` seconds after each other; counts
        what is answered in each window, behind the first `lead` seconds. Calls `edge` where a window begins or ends."""
        now, counted, over = asyncio.get_running_loop().time, Answered(), asyncio.Event()
        found: list[Answered] = []

        async def client(number: int, connection: Streams) -> None:
            await asyncio.sleep(number * apart)
            while not over.is_set() and await self._ask(connection, request, right, lambda: counted):
                pass

        async with asyncio.TaskGroup() as group:
            for number, connection in enumerate(self._connections):
                group.create_task(client(number, connection))
            await asyncio.sleep(lead)
            for _ in range(windows):
                edge()
                counted, began = Answered(), now()
                found.append(counted)
                await asyncio.sleep(seconds)
                counted.seconds = now() - began
            edge()
            counted = Answered()
            over.set()
        return found

    async def _ask(
        self, connection: Streams, request: bytes, right: bytes, found: Answered | Callable[[], Answered]
    ) -> bool:
        """Says whether there may be another request; an answer counts where `found` is when it comes."""
        reader, writer = connection
        began = asyncio.get_running_loop().time()
        wrong: str | None = None
        try:
            async with asyncio.timeout(ANSWER_SECONDS):
                writer.write(request.replace(NUMBER, b"%010d" % next(self._numbers)))
                head = await reader.readuntil(b"\r\n\r\n")
                size = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                body = await reader.readexactly(size)
            if right not in body:
                # What a run says of itself begins with what went wrong.
                at = max(body.rfind(b'"diagnostics"'), 0)
                wrong = (body or head)[at : at + REASON_CHARS].decode("utf-8", "replace")
        except (OSError, ValueError, asyncio.IncompleteReadError) as error:
            wrong = f"the connection was lost: {error!r}"
        into = found() if callable(found) else found
        if wrong is None:
            into.count += 1
            into.latencies.add(asyncio.get_running_loop().time() - began)
            return True
        into.wrong[wrong] += 1
        return not wrong.startswith("the connection")


def script_of(calls: int, server: str, call: str) -> str:
    """Returns a script that makes calls one after the other, and gives their number."""
    loop = f"for (let n = 0; n < {calls}; n++) await {server}.{call};" if calls else ""
    return (
        f'import * as {server} from "@codemode/servers/{server}";\n{loop}\n'
        f"globalThis.__codemode_result__ = {calls}; // {NUMBER.decode()}\n"
    )


def right_of(calls: int) -> bytes:
    """Returns what is in each right answer to that script."""
    return json.dumps({"result": calls}, separators=(",", ":"))[1:-1].encode() + b","
