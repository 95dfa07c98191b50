"""Local_http speaks HTTP/1.1 with a daemon on this machine: what its web server sends, and nothing more. A general
client takes twice as long to import as all else that the relay needs."""

from __future__ import annotations

import asyncio
import select
import time
from collections.abc import AsyncGenerator, AsyncIterator, Coroutine, Mapping
from contextlib import asynccontextmanager
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

from cellblock.frontend.relay.channel import CONNECT_SECONDS, SILENCE_SECONDS, Broken, HungUp, Unreached
from cellblock.frontend.relay.listeners import refuse_strangers

PIECE_BYTES: Final = 256 * 1024

IDLE_SECONDS: Final = 4.0
"""Bounds the idle time after which a connection is not used again: without a token, the daemon ends it after 5 s."""

MAX_IDLE: Final = 4
"""Bounds the connections kept for the next requests."""


class _Line(NamedTuple):
    """Holds a connection that is free since a point in time."""

    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter
    since: float


class LocalHttp:
    """The channel of this machine reaches a daemon over plain HTTP. Owns its connections; `close` ends those that are
    free.

    Args:
        headers: For every request.
        own: Sends nothing to a program of another user, which has taken the port: the headers are a secret.
    """

    def __init__(self, headers: Mapping[str, str], *, own: bool = False) -> None:
        self._headers = dict(headers)
        self._own = own
        self._free: list[_Line] = []

    @asynccontextmanager
    async def ask(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> AsyncGenerator[LocalAnswer]:
        """Sends one request; it is over when its answer is left. Raises Broken."""
        parts = urlsplit(url)
        host = parts.netloc.rpartition("@")[2]
        target = (parts.path or "/") + (f"?{parts.query}" if parts.query else "")
        given = {"host": host, "content-length": str(len(body)), **self._headers, **(headers or {})}
        head = f"{method} {target} HTTP/1.1\r\n" + "".join(
            f"{key}: {value}\r\n" for key, value in given.items()
        )
        reader, writer = await self._connection(parts.hostname or "", parts.port or 80)
        answer = None
        try:
            try:
                # Not drained: an answer may come before all is sent, from a daemon that does not want the rest.
                writer.write(head.encode("latin-1") + b"\r\n" + body)
                answer = await _begun(reader, method)
            except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
                raise _broken(error) from None
            yield answer
        finally:
            unsent = writer.transport.get_write_buffer_size()
            if answer is not None and answer.over and not unsent and len(self._free) < MAX_IDLE:
                self._free.append(_Line(reader, writer, time.monotonic()))
            else:
                writer.close()

    def close(self) -> None:
        """Ends free connections."""
        while self._free:
            self._free.pop().writer.close()

    async def _connection(self, host: str, port: int) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        while self._free:
            line = self._free.pop()
            if time.monotonic() - line.since < IDLE_SECONDS and not _has_ended(line):
                return line.reader, line.writer
            line.writer.close()
        try:
            async with asyncio.timeout(CONNECT_SECONDS):
                reader, writer = await asyncio.open_connection(host, port, limit=PIECE_BYTES)
        except (OSError, ValueError) as error:
            raise Unreached(*_broken(error).args) from None
        if self._own:
            try:
                # None where it was reset at once, as by a daemon that is killed.
                if (address := writer.get_extra_info("peername")) is None:
                    raise Unreached("it has hung up")
                refuse_strangers(*address[:2])
            except Broken:
                writer.close()
                raise
        return reader, writer


class LocalAnswer:
    """An answer of this machine's daemon has its head read."""

    def __init__(
        self, reader: asyncio.StreamReader, status: int, headers: Mapping[str, str], *, empty: bool
    ) -> None:
        self.status = status
        self.headers = headers
        self.over = False
        """Says whether the whole answer is read, and the connection can be used again."""
        self._reader = reader
        self._empty = empty
        self._stays = headers.get("connection", "").lower() != "close"
        if empty:
            self.over = self._stays

    async def pieces(self) -> AsyncIterator[bytes]:
        """Gives the body in pieces. Raises Broken."""
        if self._empty:
            return
        try:
            if self.headers.get("transfer-encoding", "").lower() == "chunked":
                while size := int((await _soon(self._reader.readuntil(b"\r\n"))).partition(b";")[0], 16):
                    async for piece in self._exactly(size):
                        yield piece
                    await _soon(self._reader.readuntil(b"\r\n"))
                while await _soon(self._reader.readuntil(b"\r\n")) != b"\r\n":
                    pass
                self.over = self._stays
            elif "content-length" in self.headers:
                async for piece in self._exactly(int(self.headers["content-length"])):
                    yield piece
                self.over = self._stays
            else:
                while piece := await _soon(self._reader.read(PIECE_BYTES)):
                    yield piece
        except (OSError, EOFError, ValueError, asyncio.LimitOverrunError) as error:
            raise _broken(error) from None

    async def _exactly(self, size: int) -> AsyncIterator[bytes]:
        while size > 0:
            piece = await _soon(self._reader.read(min(size, PIECE_BYTES)))
            if not piece:
                raise EOFError
            size -= len(piece)
            yield piece


# ---- inside ------------------------------------------------------------------------------------------


async def _begun(reader: asyncio.StreamReader, method: str) -> LocalAnswer:
    status = 100
    headers: dict[str, str] = {}
    while status < 200:
        head = (await _soon(reader.readuntil(b"\r\n\r\n"))).decode("latin-1")
        first, *lines = head.split("\r\n")
        version, _, rest = first.partition(" ")
        if version != "HTTP/1.1":
            raise ValueError("it does not speak HTTP/1.1")
        status = int(rest[:3])
        headers = {
            name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in lines)
        }
    return LocalAnswer(reader, status, headers, empty=method == "HEAD" or status in (204, 304))


def _has_ended(line: _Line) -> bool:
    """Says whether a free connection has something to read: its end, which the loop may not have seen yet."""
    if line.reader.at_eof() or line.writer.is_closing():
        return True
    poll = select.poll()
    poll.register(line.writer.get_extra_info("socket").fileno(), select.POLLIN)
    return bool(poll.poll(0))


async def _soon(work: Coroutine[Any, Any, bytes]) -> bytes:
    async with asyncio.timeout(SILENCE_SECONDS):
        return await work


def _broken(error: Exception) -> Broken:
    if isinstance(error, EOFError | ConnectionResetError | BrokenPipeError):
        return HungUp("it has hung up")
    if isinstance(error, TimeoutError):
        return Broken("it is silent")
    if isinstance(error, ConnectionRefusedError):
        return Broken("nobody listens there")
    return Broken(str(error) or type(error).__name__)
