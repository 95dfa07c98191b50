"""Where the parts of a fleet are, and the links between them, that can be cut, slowed and delayed.

Each part has an address of the loopback, which nobody else uses, and there is a relay in each link.
"""

import asyncio
import contextlib
import os
import shutil
import subprocess
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from anyio.from_thread import start_blocking_portal

HELD_CHUNKS = 64
"""On their way, of one direction of a connection that is delayed; more wait in the kernel."""


class Relay:
    """Passes connections on byte by byte.

    Attributes:
        address: Where it listens.
        delay: Seconds that each byte is on its way.
        rate: Bytes a second in each direction of each connection; 0 for as many as there are.
        flows: While it is cleared, nothing gets through, and nobody is told, as with a cable that was pulled out.
    """

    def __init__(self, address: str, target: tuple[str, int]) -> None:
        self.address = address
        self._target = target
        self.delay = 0.0
        self.rate = 0.0
        self._open: set[asyncio.Task[None]] = set()
        self.flows = asyncio.Event()
        self.flows.set()

    @contextlib.asynccontextmanager
    async def serving(self, port: int) -> AsyncGenerator["Relay"]:
        """Serves inside the block."""
        server = await asyncio.start_server(self._serve, self.address, port)
        try:
            yield self
        finally:
            server.close()
            for task in self._open:
                task.cancel()
            await asyncio.gather(*self._open, return_exceptions=True)
            await server.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        self._open.add(task)
        try:
            await self.flows.wait()
            there, to = await asyncio.open_connection(*self._target)
            try:
                ways = [asyncio.create_task(self._pass(*way)) for way in ((reader, to), (there, writer))]
                try:
                    await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                finally:
                    for way in ways:
                        way.cancel()
            finally:
                to.transport.abort()
        except OSError:
            pass  # as the client sees
        finally:
            writer.transport.abort()
            self._open.discard(task)

    async def _pass(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        held: asyncio.Queue[tuple[float, bytes]] = asyncio.Queue(HELD_CHUNKS)
        reading = asyncio.create_task(self._read(reader, held))
        loop = asyncio.get_running_loop()
        try:
            while (found := await held.get())[1]:
                due, data = found
                if (left := due - loop.time()) > 0:
                    await asyncio.sleep(left)
                await self.flows.wait()
                writer.write(data)
                await writer.drain()
                if self.rate:
                    await asyncio.sleep(len(data) / self.rate)
        except ConnectionError:
            pass  # the other side of it has gone
        finally:
            reading.cancel()

    async def _read(self, reader: asyncio.StreamReader, held: asyncio.Queue[tuple[float, bytes]]) -> None:
        data = b"."
        while data:
            await self.flows.wait()
            try:
                data = await reader.read(65536)
            except ConnectionError:
                data = b""
            await held.put((asyncio.get_running_loop().time() + self.delay, data))


class Place:
    """Where one part is.

    Attributes:
        name: Of the part.
        address: Its own, where its ports are.
    """

    def __init__(self, name: str, address: str, starter: ThreadPoolExecutor) -> None:
        self.name = name
        self.address = address
        self._starter = starter

    def run(self, work: Callable[[], Any]) -> Any:
        """Does something that starts a process, which dies with this program."""
        return self._starter.submit(work).result()

    def spawn(self, command: Sequence[str], *, log: Path, env: Mapping[str, str]) -> subprocess.Popen[bytes]:
        """Starts a program, whose output goes to the end of a file."""
        dying = ["setpriv", "--pdeathsig", "KILL"] if shutil.which("setpriv") else []
        with log.open("ab") as output:
            return self.run(
                lambda: subprocess.Popen(
                    [*dying, *command], stdin=subprocess.DEVNULL, stdout=output, stderr=output, env=dict(env)
                )
            )


class Loopback:
    """Has places, whose addresses are made of this process's id, and the ways between them. `with` owns it.

    Args:
        relays: Whether links can be cut, slowed and delayed.

    Attributes:
        starter: The one thread that starts processes: they die with the thread that has started them.
    """

    def __init__(self, *, relays: bool = True) -> None:
        pid = os.getpid()
        self._prefix = f"127.{64 + pid % 128}.{pid // 128 % 256}"
        self.starter = ThreadPoolExecutor(1, "starter")
        self._stack = contextlib.ExitStack()
        # Relays run in a thread of its own, for callers without a loop.
        self._portal = self._stack.enter_context(start_blocking_portal()) if relays else None
        self._ways: dict[tuple[Place | None, Place, int], Relay] = {}
        self._numbers = iter(range(2, 255))

    def __enter__(self) -> "Loopback":
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()
        self.starter.shutdown()

    def place(self, name: str) -> Place:
        """Makes a place."""
        return Place(name, self._address(), self.starter)

    def way(self, frm: Place | None, to: Place, port: int) -> str:
        """The `ADDRESS:PORT` by which one place reaches a port of another (None: whoever has no place)."""
        if self._portal is None:
            return f"{to.address}:{port}"
        relay = self._ways.get((frm, to, port))
        if relay is None:
            relay = self._ways[frm, to, port] = Relay(self._address(), (to.address, port))
            self._stack.enter_context(self._portal.wrap_async_context_manager(relay.serving(port)))
        return f"{relay.address}:{port}"

    def cut(self, place: Place, *, is_cut: bool = True) -> None:
        """Has nothing get to a place, nor out of it, and nobody told so; or mends that."""
        for relay in self._relays_of(place):
            self._portal.call(relay.flows.clear if is_cut else relay.flows.set)

    def slow(self, place: Place, rate: float = 0.0) -> None:
        """Lets so many bytes a second get to a place, and out of it; 0 for all."""
        for relay in self._relays_of(place):
            relay.rate = rate

    def delay(self, place: Place, seconds: float = 0.0) -> None:
        """Has what goes to a place, or comes from it, take so long."""
        for relay in self._relays_of(place):
            relay.delay = seconds

    def _address(self) -> str:
        return f"{self._prefix}.{next(self._numbers)}"

    def _relays_of(self, place: Place) -> list[Relay]:
        return [relay for (frm, to, _), relay in self._ways.items() if place in (frm, to)]
