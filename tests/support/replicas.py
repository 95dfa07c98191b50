"""Several real daemons behind one address, and a relay in front of them."""

from __future__ import annotations

import contextlib
import ssl
from base64 import b64encode
from collections.abc import AsyncGenerator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from cellblock.base.state_keys import derived_key
from cellblock.frontend.replicas.words import PURPOSE, Words
from support.fleet.relay import Relay
from support.http_daemon import Daemon, daemon

KEY = bytes(range(32))

SECTION: dict[str, Any] = {
    "auth": {"keyring": "off"},
    "typecheck": "off",
    "pool": {"warm": 1},
    "replicas": {},
}


@dataclass
class Fleet:
    """Daemons that share a state, and their balancer."""

    daemons: list[Daemon]
    balancer: Relay
    database: str

    def behind(self) -> Daemon:
        """The daemons as clients reach them."""
        return replace(self.daemons[0], port=self.balancer.port)


@contextlib.asynccontextmanager
async def fleet(
    folder: Path,
    database: str,
    *options: str,
    count: int = 2,
    tls: ssl.SSLContext | None = None,
    **cellblock: Any,
) -> AsyncGenerator[Fleet]:
    """So many daemons on one PostgreSQL, with the token of one state directory."""
    state = {"url": database, "key": b64encode(KEY).decode()}
    async with contextlib.AsyncExitStack() as stack:
        balancer = await stack.enter_async_context(Relay().serving())
        http = {"allowed_hosts": [f"127.0.0.1:{balancer.port}"]}
        section = {**SECTION, "state": state, **cellblock}
        # One after the other: the first one makes the token.
        daemons = [
            await stack.enter_async_context(daemon(folder, *options, http=http, tls=tls, **section))
            for _ in range(count)
        ]
        balancer.targets = [(one.host, one.port) for one in daemons]
        yield Fleet(daemons, balancer, database)


def words() -> Words:
    """What signs as the daemons do."""
    return Words([derived_key(KEY, PURPOSE, "", len(KEY))])
