"""HAProxy, the machine's or unpacked below `.servers`, with the rules of `deploy/haproxy/haproxy.cfg`."""

import os
import shutil
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
SHIPPED: Final = ROOT / "deploy" / "haproxy" / "haproxy.cfg"

UNPACKED: Final = ROOT / ".servers" / "haproxy" / "usr"
"""Is where scripts/_servers.sh unpacks it when the machine has none."""

PROGRAM: Final = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin:{UNPACKED / 'sbin'}")

ENVIRONMENT: Final = {"LD_LIBRARY_PATH": os.pathsep.join(map(str, UNPACKED.glob("lib/*-linux-gnu*")))}

BOUND_SECONDS: Final = 5.0
"""For the answer to a command."""

needs_haproxy = pytest.mark.skipif(PROGRAM is None, reason="no HAProxy on this machine, and none unpacked")


def configured(listen: str, brokers: Mapping[str, str], *, tls: str = "", admin: str = "") -> str:
    """The shipped configuration for brokers at their addresses, by their names.

    Args:
        listen: `ADDRESS:PORT`.
        brokers: `ADDRESS:PORT` of each.
        tls: How the brokers are asked over it.
        admin: A socket for commands.
    """
    text = SHIPPED.read_text("utf-8")
    for shipped, own in (
        (":443 ssl crt /etc/haproxy/cellblock.pem", listen),
        ("hdr Host cellblock.example.com", f"hdr Host {listen}"),
        ("inter 1s", "inter 200ms"),
        (
            "ssl verify required ca-file /etc/haproxy/brokers-ca.pem sni str(cellblock.example.com)",
            tls,
        ),
        ("  server broker-1 10.0.0.5:7433\n  server broker-2 10.0.0.6:7433\n", ""),
        (
            "global\n  log",
            f"global\n  stats socket {admin} mode 600 level admin\n  log" if admin else "global\n  log",
        ),
    ):
        assert text.count(shipped) == 1, shipped
        text = text.replace(shipped, own)
    return text + "".join(f"  server {name} {address}\n" for name, address in brokers.items())


def told(admin: Path, words: str) -> str:
    """What it says to a command at its socket."""
    with socket.socket(socket.AF_UNIX) as asking:
        asking.settimeout(BOUND_SECONDS)
        asking.connect(str(admin))
        asking.sendall(f"{words}\n".encode())
        return b"".join(iter(lambda: asking.recv(65536), b"")).decode()


def states(admin: Path) -> list[str]:
    """The state of each broker, such as `UP`, or `UP 1/3` for one that it tries; none where it does not answer."""
    try:
        rows = told(admin, "show stat").splitlines()
    except OSError:
        return []
    return [row.split(",")[17] for row in rows if row.startswith("brokers,b")]
