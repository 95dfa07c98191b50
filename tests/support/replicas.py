"""Several real daemons behind one address, and HAProxy in front of them."""

import asyncio
import contextlib
import os
import ssl
from base64 import b64encode
from collections.abc import AsyncGenerator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from support import haproxy
from support.http_daemon import Daemon, daemon
from support.http_server import free_port
from support.waits import until, within

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
        await stack.enter_async_context(_balancing(folder, port, daemons, balancer_tls))
        yield Fleet(daemons, port, database)


@contextlib.asynccontextmanager
async def _balancing(folder: Path, port: int, daemons: Sequence[Daemon], tls: str) -> AsyncGenerator[None]:
    """Balances by HAProxy inside the block."""
    brokers = {f"b{number}": f"{one.host}:{one.port}" for number, one in enumerate(daemons)}
    file, admin = folder / "haproxy.cfg", folder / "admin"
    file.write_text(haproxy.configured(f"127.0.0.1:{port}", brokers, tls=tls, admin=str(admin)), "utf-8")
    process = await asyncio.create_subprocess_exec(
        *(haproxy.PROGRAM, "-db", "-f", str(file)), env=os.environ | haproxy.ENVIRONMENT
    )
    try:
        await until(
            lambda: haproxy.states(admin).count("UP") == len(daemons), "HAProxy has found all brokers ready"
        )
        yield
    finally:
        process.kill()
        await within(process.wait())
