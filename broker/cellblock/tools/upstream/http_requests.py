"""HTTP requests to one server: redirects are followed within its origin, with the same method and body, and what it
says in a refusal is read, short."""

from __future__ import annotations

import functools
import ssl
import zlib
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from typing import Final

import httpx2

from cellblock.base.raw_json import next_step

ACCEPTED: Final = {"accept-encoding": "gzip, deflate"}

PIECE_BYTES: Final = 256 * 1024
"""Bounds what is unpacked at once."""

FREE_BYTES: Final = 1024 * 1024
MOST_RATIO: Final = 200
"""Bounds what is unpacked, in times of what came, past the first bytes: rows of text have 5 to 50."""

_GZIP_OR_ZLIB: Final = 32 + zlib.MAX_WBITS


async def unpacked(response: httpx2.Response) -> AsyncGenerator[bytes]:
    """Gives the body of a response. Raises httpx2.HTTPError, httpx2.StreamError."""
    said = response.headers.get("content-encoding", "").strip().lower()
    if not any(coding in said for coding in ("gzip", "deflate", "compress", "br", "zstd")):
        # Some name the characters there, or nothing that is known.
        async for chunk in response.aiter_raw():
            yield chunk
        return
    if said not in ("gzip", "x-gzip", "deflate"):
        raise httpx2.DecodingError(f"it is coded as `{said[:100]}`; Cellblock takes gzip or deflate, once")
    unpacker = zlib.decompressobj(_GZIP_OR_ZLIB)
    came = given = 0
    async for chunk in response.aiter_raw():
        if unpacker.eof:
            raise httpx2.DecodingError(f"its {said} goes on after its end")
        came += len(chunk)
        while piece := _piece(unpacker.decompress, chunk):
            given += len(piece)
            if given > FREE_BYTES and given > came * MOST_RATIO:
                raise httpx2.DecodingError(f"unpacked it has over {MOST_RATIO} times its size")
            yield piece
            await next_step()
            chunk = unpacker.unconsumed_tail


def _piece(decompress: Callable[[bytes, int], bytes], packed: bytes) -> bytes:
    try:
        return decompress(packed, PIECE_BYTES)
    except zlib.error as error:
        raise httpx2.DecodingError(f"it cannot be unpacked ({error})") from None


CONNECT_SECONDS: Final = 30.0
"""Bounds the making of a connection; whoever asks bounds the answer."""

MOST_REDIRECTS: Final = 5
"""Bounds the redirects that one request follows."""

REFUSAL_BYTES: Final = 64 * 1024
"""Bounds what is read of the body of a refusal."""

REFUSAL_CHARS: Final = 300
"""Bounds what is told of it."""

EVENTS: Final = "text/event-stream"


def http_client(
    headers: Mapping[str, str], auth: httpx2.Auth | None, tls: ssl.SSLContext
) -> httpx2.AsyncClient:
    """Makes the client of one server."""
    timeout = httpx2.Timeout(CONNECT_SECONDS, read=None, write=None)
    return httpx2.AsyncClient(headers={**ACCEPTED, **headers}, auth=auth, timeout=timeout, verify=tls)


@asynccontextmanager
async def sent_within_origin(
    client: httpx2.AsyncClient, method: str, url: str, body: bytes | None, headers: Mapping[str, str]
) -> AsyncGenerator[httpx2.Response]:
    """Sends a request and gives the response unread; redirects that keep method and body are followed within the
    origin, others are given as they are: credentials never follow to another."""
    request = client.build_request(method, url, content=body, headers=headers)
    response = await client.send(request, stream=True, follow_redirects=False)
    for _ in range(MOST_REDIRECTS):
        following = response.next_request
        if (
            following is None
            or following.method != request.method
            or following.url.userinfo not in (b"", request.url.userinfo)
            or not is_within_origin(request.url, following.url)
        ):
            break
        await response.aclose()
        request = following
        response = await client.send(request, stream=True, follow_redirects=False)
    try:
        yield response
    finally:
        await response.aclose()


def is_within_origin(url: httpx2.URL, location: httpx2.URL) -> bool:
    """Says whether a location is of the same origin, or its upgrade to HTTPS on the default ports."""
    if url.host != location.host:
        return False
    if (url.scheme, url.port) == (location.scheme, location.port):
        return True
    return url.scheme == "http" and location.scheme == "https" and url.port is None and location.port is None


def kind_of(response: httpx2.Response) -> str:
    return response.headers.get("content-type", "").partition(";")[0].strip().lower()


async def refusal_of(response: httpx2.Response) -> bytes:
    """Reads the beginning of a refusal's body."""
    body = b""
    with suppress(httpx2.HTTPError, httpx2.StreamError):
        async for chunk in unpacked(response):
            body += chunk
            if len(body) > REFUSAL_BYTES:
                break
    return body[:REFUSAL_BYTES]


def words_of(body: bytes, kind: str) -> str:
    """Returns what a refusal says, short, and without half a word, which may be a secret; nothing of a page."""
    text = body.decode("utf-8", "replace").strip()
    if kind == "text/html" or text[:1] == "<":
        return ""
    said = " ".join(text.split())
    return said if len(said) <= REFUSAL_CHARS else said[:REFUSAL_CHARS].rpartition(" ")[0]


def said_by(error: Exception) -> str:
    said = str(error) or type(error).__name__
    if isinstance(error, httpx2.ConnectError) and said.startswith("[Errno -"):
        # What a resolver says has no name in it.
        return f"{said}: {error.request.url.host}"
    return said


@functools.cache
def tls_context() -> ssl.SSLContext:
    """Returns TLS settings as httpx2 sets it up by default, made once for the process: that blocks."""
    return httpx2.create_ssl_context()
