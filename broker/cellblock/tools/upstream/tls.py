"""Keeps the TLS settings that every connection to a server shares: reading the machine's certificates takes 40 ms."""

from __future__ import annotations

import functools
import ssl

import httpx2


@functools.cache
def tls_context() -> ssl.SSLContext:
    """Returns TLS settings as httpx2 sets it up by default, made once for the process: that blocks."""
    return httpx2.create_ssl_context()
