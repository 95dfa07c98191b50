"""HAProxy, the machine's or unpacked below `.servers`, with the rules of `deploy/haproxy/haproxy.cfg`; and several real
daemons behind one address.
"""

import contextlib
import os
import shutil
import socket
import ssl
from base64 import b64encode
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import pytest

from support.http_daemon import Daemon, daemon
from support.http_server import free_port
from support.processes import owned_process
from support.waits import until

ROOT: Final = Path(__file__).parents[2]
SHIPPED: Final = ROOT / "deploy" / "haproxy" / "haproxy.cfg"

UNPACKED: Final = ROOT / ".servers" / "haproxy" / "usr"
"""Is where scripts/_servers.sh unpacks it when the machine has none."""

PROGRAM: Final = shutil.which("haproxy", path=f"{os.environ['PATH']}:/usr/sbin:{UNPACKED / 'sbin'}")

ENVIRONMENT: Final = {"LD_LIBRARY_PATH": os.pathsep.join(map(str, UNPACKED.glob("lib/*-linux-gnu*")))}

BOUND_SECONDS: Final = 60.0
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


KEY = b64encode(bytes(range(32))).decode()

SECTION: dict[str, Any] = {
    "auth": {"keyring": "off"},
    "typecheck": "off",
}


@dataclass
class Fleet:
    """Daemons that share a state, and their balancer."""

    daemons: list[Daemon]
    port: int
    database: str

    def behind(self) -> Daemon:
        """The daemons as clients reach them."""
        return replace(self.daemons[0], port=self.port, tls=None)


@contextlib.asynccontextmanager
async def fleet(
    folder: Path,
    database: str,
    *options: str,
    count: int = 2,
    tls: ssl.SSLContext | None = None,
    balancer_tls: str = "",
    **cellblock: Any,
) -> AsyncGenerator[Fleet]:
    """So many daemons on one PostgreSQL, with the token of one state directory."""
    port = free_port()
    async with contextlib.AsyncExitStack() as stack:
        daemons: list[Daemon] = []
        # One after the other: the first one makes the token.
        for number in range(count):
            section = {**SECTION, "state": {"url": database, "key": KEY, "broker": f"b{number}"}, **cellblock}
            http = {"allowed_hosts": [f"127.0.0.1:{port}"]}
            daemons.append(
                await stack.enter_async_context(daemon(folder, *options, http=http, tls=tls, **section))
            )
        brokers = {f"b{number}": f"{one.host}:{one.port}" for number, one in enumerate(daemons)}
        file, admin = folder / "haproxy.cfg", folder / "admin"
        text = configured(f"127.0.0.1:{port}", brokers, tls=balancer_tls, admin=str(admin))
        file.write_text(text, "utf-8")
        balancer = owned_process(PROGRAM, "-db", "-f", file, env=os.environ | ENVIRONMENT)
        await stack.enter_async_context(balancer)
        await until(lambda: states(admin).count("UP") == count, "HAProxy has found all brokers ready")
        yield Fleet(daemons, port, database)
