"""Several real daemons behind one address, and the small balancer in front of them."""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import ssl
from base64 import b64encode
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cellblock.base.state_keys import derived_key
from cellblock.frontend.replicas.words import PURPOSE, Words
from support.http_daemon import Daemon, daemon

KEY = bytes(range(32))

SECTION: dict[str, Any] = {
    "auth": {"keyring": "off"},
    "typecheck": "off",
    "pool": {"warm": 1, "max_warm": 1, "idle_warm": 1},
    "replicas": {},
}


class Balancer:
    """Gives each connection to the next daemon in turn, byte by byte, and leaves out those that do not answer."""

    def __init__(self) -> None:
        self.ports: Sequence[int] = ()
        self._turns = itertools.count()
        self._open: set[asyncio.Task[None]] = set()
        self.port = 0

    @contextlib.asynccontextmanager
    async def serving(self) -> AsyncGenerator[Balancer]:
        """Serves inside the block."""
        server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        self.port = server.sockets[0].getsockname()[1]
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
            there, to = await self._connected()
            try:
                ways = [asyncio.create_task(_copy(*way)) for way in ((reader, to), (there, writer))]
                await asyncio.wait(ways, return_when=asyncio.FIRST_COMPLETED)
                for way in ways:
                    way.cancel()
            finally:
                to.transport.abort()
        finally:
            writer.transport.abort()
            self._open.discard(task)

    async def _connected(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        for _ in self.ports:
            with contextlib.suppress(ConnectionError):
                return await asyncio.open_connection(
                    "127.0.0.1", self.ports[next(self._turns) % len(self.ports)]
                )
        raise ConnectionError("no daemon answers")


async def _copy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with contextlib.suppress(ConnectionError):
        while data := await reader.read(65536):
            writer.write(data)
            await writer.drain()


@dataclass
class Fleet:
    """Daemons that share a state, and their balancer."""

    daemons: list[Daemon]
    balancer: Balancer
    database: str

    def behind(self) -> Daemon:
        """The daemons as clients reach them."""
        return replace(self.daemons[0], port=self.balancer.port)


@contextlib.asynccontextmanager
async def fleet(
    folder: Path,
    database: str,
    *options: str,
    count: int = 2,
    tls: ssl.SSLContext | None = None,
    **cellblock: Any,
) -> AsyncGenerator[Fleet]:
    """So many daemons on one PostgreSQL, with the token of one state directory."""
    state = {"url": database, "key": b64encode(KEY).decode()}
    async with contextlib.AsyncExitStack() as stack:
        balancer = await stack.enter_async_context(Balancer().serving())
        http = {"allowed_hosts": [f"127.0.0.1:{balancer.port}"]}
        section = {**SECTION, "state": state, **cellblock}
        # One after the other: the first one makes the token.
        daemons = [
            await stack.enter_async_context(daemon(folder, *options, http=http, tls=tls, **section))
            for _ in range(count)
        ]
        balancer.ports = [one.port for one in daemons]
        yield Fleet(daemons, balancer, database)


def words() -> Words:
    """What signs as the daemons do."""
    return Words([derived_key(KEY, PURPOSE, "", len(KEY))])
