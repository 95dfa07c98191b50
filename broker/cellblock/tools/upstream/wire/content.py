"""Unpacks what comes over HTTP: one coding that was asked for, in pieces, with the loop free between two."""

from __future__ import annotations

import zlib
from collections.abc import AsyncGenerator, Callable
from typing import Final

import httpx2

from cellblock.base.steps import next_step

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
    if said in ("", "identity"):
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
