"""Listeners tells whose program listens on a port of this machine: any user may take one before a daemon does."""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cellblock.frontend.relay.channel import Broken, Unreached

TABLES: Final = Path("/proc/net")
"""Holds where Linux lists sockets."""

_LISTENS: Final = b"0A"
_LOCAL, _STATE, _UID = 1, 3, 7

_PIECE_BYTES: Final = 128
"""Bounds a read to less than a line: asked for more, the kernel goes through all connections, which can take 50 ms."""


class Stranger(Broken):
    """Tells that a program of another user listens; nothing was sent to it."""


def refuse_strangers(host: str, port: int) -> None:
    """Looks whether who listens at an address is this user or root; only Linux says.

    Args:
        host: The IP address that a connection has reached.
        port: Its port.

    Raises:
        Stranger: It is another user.
        Unreached: Nobody listens there any more.
    """
    if not (TABLES / "tcp").exists():
        return
    uid = _uid(host, port)
    if uid is None:
        raise Unreached("nobody listens there any more")
    if uid not in (os.geteuid(), 0):
        raise Stranger(f"a program of another user (uid {uid}) listens there")


# ---- inside ------------------------------------------------------------------------------------------


def _uid(host: str, port: int) -> int | None:
    """Returns the user of the socket that takes connections to an address: its own before one for all addresses."""
    ip = ipaddress.ip_address(host)
    ways = [("tcp", str(ip), "0.0.0.0")] if ip.version == 4 else []
    ways.append(("tcp6", f"::ffff:{ip}" if ip.version == 4 else str(ip), "::"))
    for table, own, every in ways:
        wanted, instead = _written(own, port), _written(every, port)
        found: int | None = None
        for address, uid in _listeners(TABLES / table):
            if address == wanted:
                return uid
            found = uid if address == instead else found
        if found is not None:
            return found
    return None


def _listeners(table: Path) -> Iterator[tuple[bytes, int]]:
    """Gives the address and the user of each socket that listens; the kernel lists them first."""
    if not table.exists():
        return  # a kernel without IPv6
    rest = b""
    with table.open("rb", buffering=0) as file:
        while data := file.read(_PIECE_BYTES):
            *lines, rest = (rest + data).split(b"\n")
            for line in lines:
                words = line.split()
                if words[_STATE] == _LISTENS:
                    yield words[_LOCAL], int(words[_UID])
                elif words[0] != b"sl":
                    return


def _written(ip: str, port: int) -> bytes:
    """Writes an address as the kernel does: in words of 32 bits, each in the machine's order."""
    packed = ipaddress.ip_address(ip).packed
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    return b"".join(
        word[:: -1 if sys.byteorder == "little" else 1] for word in words
    ).hex().upper().encode() + (b":%04X" % port)
