"""Checks the head of a request before anybody believes what it says about the body.

h11 bounds a head only while it is incomplete, so that one which comes in a single piece may have any size; and of two
answers to where a body ends it takes one. A proxy in front of us may take the other, and what we then read as the next
request was a part of somebody's body (RFC 9112, sections 5.2, 6.1, 6.3 and 11.2).
"""

from __future__ import annotations

import re
from typing import Final

import h11

MAX_HEADER_BYTES: Final = 32 * 1024
"""Bounds the request line and all headers; tokens of authorization servers take a few KiB."""

_END = re.compile(rb"\n\r?\n")
_FRAMING = re.compile(rb"\n(?:content-length|transfer-encoding)[ \t]*:([^\n]*)", re.IGNORECASE)
_LINE = re.compile(rb"[^\n]*HTTP/1\.1\r\n")


class StrictConnection(h11.Connection):
    """h11's, which reads no request whose head is too large, or can be read in two ways."""

    def next_event(self) -> h11.Event | type[h11.NEED_DATA] | type[h11.PAUSED]:
        """Gives the next event as h11 does. Raises h11.RemoteProtocolError also for what `fault_of` finds."""
        if self.their_state is h11.IDLE and (fault := fault_of(self.trailing_data[0])) is not None:
            raise h11.RemoteProtocolError(fault, error_status_hint=400)
        return super().next_event()


def fault_of(data: bytes) -> str | None:
    """Says what is wrong with a head, or with as much of it as there is; None: nothing that is looked for here.

    Args:
        data: From the request line on; what follows the head does no harm.
    """
    end = _END.search(data)
    if (len(data) if end is None else end.end()) > MAX_HEADER_BYTES:
        return "the head is too large"
    if end is None:
        return None
    head = data[: end.end()]
    if b"\n " in head or b"\n\t" in head:
        return "a header is folded"
    if head.count(b"\n") != head.count(b"\r\n"):
        return "a line ends without a carriage return"
    framing = _FRAMING.findall(head)
    if len(framing) > 1 or (framing and b"," in framing[0]):
        return "the length is said twice"
    # Before HTTP/1.1 nobody had to know chunks, and may take them for what comes next.
    if b"transfer-encoding" in head.lower() and _LINE.match(head) is None:
        return "chunks before HTTP/1.1"
    return None
