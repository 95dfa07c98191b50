"""Names say where a host's brokers are: addresses, and names that stand for several."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Awaitable, Callable, Sequence
from typing import Final

from cellblock_worker.wire.endpoints import DNS, check_names

logger = logging.getLogger("cellblock.host")

LOOK_UP_BOUND_SECONDS: Final = 10.0
"""Bounds one look-up: a resolver's own retries take longer, and the next look-up is as good."""


class Names:
    """Knows the brokers' endpoints, as of the last `look_up`.

    Args:
        names: `tcp://HOST:PORT` is one broker; `dns://NAME:PORT` is one at each address of the name.
        resolve: Returns the addresses of a name, or raises OSError.

    Attributes:
        endpoints: Each `tcp://HOST:PORT`. What a name stood for stays while it cannot be looked up.

    Raises:
        EndpointError: A name has neither form.
    """

    def __init__(
        self, names: Sequence[str], resolve: Callable[[str], Awaitable[list[str]]] | None = None
    ) -> None:
        check_names(names)
        self._resolve = resolve or addresses_of
        self._found: dict[str, list[str]] = {
            name: [] if name.startswith(DNS) else [name] for name in dict.fromkeys(names)
        }

    @property
    def endpoints(self) -> list[str]:
        return list(dict.fromkeys(endpoint for found in self._found.values() for endpoint in found))

    async def look_up(self) -> None:
        for name in self._found:
            if not name.startswith(DNS):
                continue
            host, _, port = name.removeprefix(DNS).rpartition(":")
            try:
                async with asyncio.timeout(LOOK_UP_BOUND_SECONDS):
                    addresses = await self._resolve(host)
            except OSError as error:
                logger.error("%s cannot be looked up: %s", host, error or "no answer in time")
                continue
            self._found[name] = [f"tcp://{_bracketed(address)}:{port}" for address in sorted(set(addresses))]


async def addresses_of(host: str) -> list[str]:
    """Returns a name's IPv4 addresses, or those of IPv6 where it has no other: a broker with both would be dialled
    twice.

    Raises:
        OSError: It cannot be looked up.
    """
    found = await asyncio.get_running_loop().getaddrinfo(host, None, type=socket.SOCK_STREAM)
    fours = [str(address[0]) for family, *_, address in found if family == socket.AF_INET]
    return fours or [str(address[0]) for *_, address in found]


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
