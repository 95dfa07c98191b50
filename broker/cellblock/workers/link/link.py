"""Defines what the pool needs of a wire to worker hosts, whatever carries it.

Two carriers implement it: `router.RouterLink` for the host on this machine, `curve_link.CurveLink` for hosts on
others; tests have a third one that puts a host in the same process.
"""

from __future__ import annotations

from typing import Protocol

from cellblock_worker.wire import protocol


class LinkEvents(Protocol):
    """Hears what a link tells the pool, always from the event loop."""

    def host_says(self, host: bytes, token: bytes, message: protocol.FromHost, body: bytes) -> None:
        """Takes a well-formed message of a host; `token` is empty for messages about the host itself."""
        ...

    def host_broke_protocol(self, host: bytes, why: str) -> None:
        """Hears that a host sent what is no message. Its process is not to be trusted with another run."""
        ...


class HostLink(Protocol):
    """Sends to hosts by their identity."""

    def send(self, host: bytes, token: bytes, message: protocol.ToHost, body: bytes = b"") -> None:
        """Sends one message. Raises OSError when that host cannot be reached."""
        ...

    def reaches(self, host: bytes) -> bool:
        """Says whether a host of this identity is this wire's."""
        ...

    def close(self) -> None:
        """Closes the wire; nothing is told after it."""
        ...
