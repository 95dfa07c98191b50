"""Loopback says which hosts of URLs are this machine, or in a private network."""

from __future__ import annotations

import asyncio
import ipaddress


def is_loopback(host: str | None) -> bool:
    """Says whether a URL's host is `localhost`, or an address of the loopback."""
    try:
        return host == "localhost" or ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False


async def is_nearer(host: str, than: str) -> bool:
    """Says whether a host is at a private address and another is not, or on this machine and the other is not.

    A name that cannot be looked up here is taken for public: a proxy may know it.
    """
    return host != than and max(await _nearness(host)) > min(await _nearness(than))


async def _nearness(host: str) -> list[int]:
    try:
        found = await asyncio.get_running_loop().getaddrinfo(host, None)
    except (OSError, UnicodeError):
        return [0]
    addresses = {ipaddress.ip_address(str(sockaddr[0]).partition("%")[0]) for *_, sockaddr in found}
    plain = [getattr(one, "ipv4_mapped", None) or one for one in addresses]
    return [2 if one.is_loopback or one.is_unspecified else int(not one.is_global) for one in plain]
