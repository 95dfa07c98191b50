"""Listeners tells whose program listens on a port of this machine: any user may take one before a daemon does."""

from __future__ import annotations

import ipaddress
import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cellblock.frontend.relay.channel import Broken, Unreached

_TABLES: Final = ("tcp", "tcp6")
_LISTENS: Final = "0A"
_LOCAL, _STATE, _UID = 1, 3, 7


class Stranger(Broken):
    """A program of another user listens; it has been sent nothing."""


def refuse_strangers(host: str, port: int, tables: Path = Path("/proc/net")) -> None:
    """Looks whether who listens at an address is this user or root; only Linux says.

    Args:
        host: The IP address that a connection has reached.
        port: Its port.
        tables: Where the kernel lists sockets.

    Raises:
        Stranger: It is another user.
        Unreached: Nobody listens there any more.
    """
    if not (tables / _TABLES[0]).exists():
        return
    uids = set(_uids(host, port, tables))
    if not uids:
        raise Unreached("nobody listens there any more")
    if strangers := uids - {os.geteuid(), 0}:
        raise Stranger(f"a program of another user (uid {min(strangers)}) listens there")


# ---- inside ------------------------------------------------------------------------------------------


def _uids(host: str, port: int, tables: Path) -> Iterator[int]:
    ip = ipaddress.ip_address(host)
    both = [ip, ipaddress.ip_address("0.0.0.0"), ipaddress.ip_address("::")]
    if ip.version == 4:
        both.append(ipaddress.ip_address(f"::ffff:{ip}"))
    wanted = {f"{_written(one.packed)}:{port:04X}" for one in both}
    for table in _TABLES:
        try:
            text = (tables / table).read_text()
        except OSError:
            continue  # a kernel without IPv6
        for line in text.splitlines()[1:]:
            words = line.split()
            if words[_LOCAL] in wanted and words[_STATE] == _LISTENS:
                yield int(words[_UID])


def _written(packed: bytes) -> str:
    """Writes an address as the kernel does: in words of 32 bits, each in the machine's order."""
    words = (packed[at : at + 4] for at in range(0, len(packed), 4))
    return "".join(word[:: -1 if sys.byteorder == "little" else 1].hex() for word in words).upper()
