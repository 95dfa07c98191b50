"""A TCP relay, that can be cut, slowed and delayed."""

import asyncio
import contextlib
import threading
from collections.abc import AsyncGenerator, Coroutine
from typing import Any, TypeVar

CHUNK_BYTES = 65536
HELD_CHUNKS = 64
"""On their way, of one direction of a connection that is delayed; more wait in the kernel."""

BOUND_SECONDS = 120.0
"""For what the thread of relays is asked to do, which takes milliseconds."""

Target = tuple[str, int]
_T = TypeVar("_T")


class Relay:
    """Passes connections on byte by byte.

    Attributes:
        address: Where it listens.
        delay: Seconds that each byte is on its way.
        rate: Bytes a second in each direction of each connection; 0 for as many as there are.
    """

    def __init__(self, address: str, target: Target) -> None:
        self.address = address
        self._target = target
        self.delay = 0.0
        self.rate = 0.0
        self._open: set[asyncio.Task[None]] = set()
        self._flows = asyncio.Event()
        self._flows.set()

    def cut(self) -> None:
        """Lets nothing through, and says so to nobody, as a cable does that was pulled out."""
        self._flows.clear()

    def mend(self) -> None:
        """Lets all through that waits, and what comes."""
        self._flows.set()

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
        assert task is not None
        self._open.add(task)
        try:
            await self._flows.wait()
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
                await self._flows.wait()
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
            await self._flows.wait()
            try:
                data = await reader.read(CHUNK_BYTES)
            except ConnectionError:
                data = b""
            await held.put((asyncio.get_running_loop().time() + self.delay, data))


class Relays:
    """Runs relays in a thread of its own, for callers without a loop."""

    def __init__(self) -> None:
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._stack = contextlib.AsyncExitStack()

    def add(self, address: str, port: int, to: Target) -> Relay:
        """Starts one."""
        return self._do(self._stack.enter_async_context(Relay(address, to).serving(port)))

    def cut(self, relay: Relay, is_cut: bool) -> None:
        """Cuts one, or mends it."""
        self._loop.call_soon_threadsafe(relay.cut if is_cut else relay.mend)

    def close(self) -> None:
        """Ends all."""
        self._do(self._stack.aclose())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(BOUND_SECONDS)
        self._loop.close()

    def _do(self, work: Coroutine[Any, Any, _T]) -> _T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(BOUND_SECONDS)
