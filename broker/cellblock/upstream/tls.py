"""Keeps the TLS settings that every connection to a server shares: reading the machine's certificates takes 40 ms."""

from __future__ import annotations

import asyncio
import functools
import ssl

import httpx2


@functools.cache
def tls_context() -> ssl.SSLContext:
    """Returns TLS settings as httpx2 sets it up by default, made once for the process."""
    return httpx2.create_ssl_context()


async def tls_ready() -> ssl.SSLContext:
    """Returns the shared TLS settings, made in a thread where they are not there yet."""
    return await asyncio.to_thread(tls_context)
