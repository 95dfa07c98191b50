"""Checks the form of a network endpoint; apart from `keys`, so that reading a configuration needs no ZeroMQ."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Final

_TCP: Final = re.compile(r"tcp://(\[[0-9A-Fa-f:.%\w]+\]|[\w.*-]+):(\d{1,5}|\*)")


DNS: Final = "dns://"
"""Begins a name that stands for a broker at each of its addresses."""


class EndpointError(ValueError):
    """Tells that an endpoint may not be used so; the text says why."""


def check_tcp(endpoint: str) -> None:
    """Raises EndpointError unless a text is `tcp://HOST:PORT` (`*` for any interface, or any free port)."""
    match = _TCP.fullmatch(endpoint)
    if match is None or (match[2] != "*" and int(match[2]) > 65535):
        raise EndpointError(f"{endpoint!r} is not of the form tcp://HOST:PORT")


def check_names(names: Iterable[str]) -> None:
    """Raises EndpointError unless each is `tcp://HOST:PORT` or `dns://NAME:PORT`."""
    for name in names:
        check_tcp(f"tcp://{name.removeprefix(DNS)}" if name.startswith(DNS) else name)
