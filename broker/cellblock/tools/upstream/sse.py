"""The older transport over HTTP: one stream of server-sent events has all answers."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import urljoin

import httpx2
from mcp import MCPError

from cellblock.base.budget import OverBudget
from cellblock.tools.upstream.dispatcher import Connection, Pending
from cellblock.tools.upstream.http import HttpWire
from cellblock.tools.upstream.http_requests import (
    EVENTS,
    is_within_origin,
    kind_of,
    refusal_of,
    said_by,
    sent_within_origin,
    words_of,
)
from cellblock.tools.upstream.pace import Flooding
from cellblock.tools.upstream.wire.errors import ConnectionLost, HttpRefused


class SseWire(HttpWire):
    """Speaks the older transport: one stream of events has all answers, and says where messages are posted to."""

    async def request(self, pending: Pending, body: bytes, headers: Mapping[str, str]) -> None:
        pending.sent = True
        await self.post(body, headers, pending.method)

    async def post(self, body: bytes, headers: Mapping[str, str], what: str) -> None:
        try:
            async with sent_within_origin(
                self.client, "POST", self.url, body, {"content-type": "application/json", **headers}
            ) as response:
                if response.status_code >= 300:
                    said = words_of(await refusal_of(response), kind_of(response))
                    raise HttpRefused(response.status_code, said)
        except httpx2.HTTPError as error:
            raise ConnectionLost(said_by(error), sent=True) from None

    def give_up(self, pending: Pending, version: str | None) -> bool:
        return True

    async def run(self, connection: Connection) -> None:
        """Reads the stream until it ends."""
        self.connection = connection
        try:
            async for event in self._stream:
                if event.data and event.name == b"message":
                    await connection.received(event.data)
        except (Flooding, MCPError) as error:
            connection.end(str(error))
        except (httpx2.HTTPError, httpx2.StreamError, OverBudget) as error:
            connection.end(said_by(error), cut=False)

    async def close(self) -> None:
        """Says nothing: the stream's end says it."""

    @asynccontextmanager
    async def opened(self) -> AsyncGenerator[None]:
        """Opens the stream, and waits until it says where to post to. Raises MCPError."""
        headers = {"accept": EVENTS, "cache-control": "no-store"}
        async with sent_within_origin(self.client, "GET", self.url, None, headers) as response:
            if response.status_code >= 300:
                raise HttpRefused(
                    response.status_code, words_of(await refusal_of(response), kind_of(response))
                )
            if kind_of(response) != EVENTS:
                raise ConnectionLost("it answers with no stream of events", sent=False)
            self._stream = self._events(response)
            async for event in self._stream:
                if event.name == b"endpoint":
                    place = urljoin(str(response.request.url), event.data.decode("utf-8", "replace"))
                    if not is_within_origin(httpx2.URL(self.url), httpx2.URL(place)):
                        raise ConnectionLost(
                            f"it wants messages at another origin: {place[:200]}", sent=False
                        )
                    self.url = place
                    break
            else:
                raise ConnectionLost("its stream ended before it said where to post to", sent=False)
            try:
                yield
            finally:
                await self._stream.aclose()
