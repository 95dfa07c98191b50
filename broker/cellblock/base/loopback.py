"""Loopback says which hosts of URLs are this machine."""

from __future__ import annotations

import ipaddress


def is_loopback(host: str | None) -> bool:
    """Says whether a URL's host is `localhost`, or an address of the loopback."""
    try:
        return host == "localhost" or ipaddress.ip_address(host or "").is_loopback
    except ValueError:
        return False
