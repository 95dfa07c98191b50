"""Remote_http speaks HTTP with a daemon on another machine, or over TLS: with the proxies and certificates of the
environment."""

from __future__ import annotations

import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import asynccontextmanager

import httpx2

from cellblock.frontend.relay.channel import CONNECT_SECONDS, SILENCE_SECONDS, Broken


@asynccontextmanager
async def remote_http(
    headers: Mapping[str, str], tls: ssl.SSLContext | None, *, trust_env: bool
) -> AsyncGenerator[RemoteHttp]:
    """Opens a way to a daemon with headers for every request. `tls` None trusts what the system trusts; `trust_env`
    uses proxies of the environment."""
    timeout = httpx2.Timeout(CONNECT_SECONDS, read=SILENCE_SECONDS)
    async with httpx2.AsyncClient(
        headers=headers, timeout=timeout, verify=tls or True, trust_env=trust_env
    ) as client:
        yield RemoteHttp(client)


class RemoteHttp:
    """The channel to another machine reaches a daemon through a client."""

    def __init__(self, client: httpx2.AsyncClient) -> None:
        self._client = client

    @asynccontextmanager
    async def ask(
        self, method: str, url: str, headers: Mapping[str, str] | None = None, body: bytes = b""
    ) -> AsyncGenerator[RemoteAnswer]:
        """Sends one request; it is over when its answer is left. Raises Broken."""
        try:
            async with self._client.stream(method, url, headers=headers, content=body) as response:
                yield RemoteAnswer(response)
        except httpx2.HTTPError as error:
            raise _broken(error) from None


class RemoteAnswer:
    """An answer of another machine's daemon has its head read."""

    def __init__(self, response: httpx2.Response) -> None:
        self.status = response.status_code
        self.headers: Mapping[str, str] = response.headers
        self._response = response

    async def pieces(self) -> AsyncIterator[bytes]:
        """Gives the body in pieces. Raises Broken."""
        try:
            async for piece in self._response.aiter_bytes():
                yield piece
        except httpx2.HTTPError as error:
            raise _broken(error) from None


def _broken(error: httpx2.HTTPError) -> Broken:
    return Broken(str(error) or type(error).__name__)
