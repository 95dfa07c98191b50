"""What everybody's own sessions take: memory of a broker with a login of each of 100 principals at each of 5 servers.

Beside it, as the yardstick, the same number of the SDK's own clients, in the same process, each with its list of tools.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
from collections.abc import Sequence

from mcp import Client
from mcp.shared.auth import OAuthClientInformationFull, OAuthToken

from benchmarks.harness import BOUND_SECONDS, broker, parser
from benchmarks.processes import private_bytes
from cellblock.app.process_memory import give_back_free_memory
from cellblock.tools.upstream.auth.record import LoginRecord
from cellblock.tools.upstream.auth.store import LoginStore
from support.entries import http_server


def kib(what: str, before: int, sessions: int) -> int:
    """Prints what a session takes, and returns the bytes that all take."""
    give_back_free_memory()
    taken = private_bytes(os.getpid()) - before
    print(f"{what}: {taken / 2**20:.1f} MiB, {taken / 1024 / sessions:.1f} KiB a session")
    return taken


async def measured(persons: int, servers: int) -> None:
    sessions, names = persons * servers, [f"team:{number}" for number in range(persons)]
    async with contextlib.AsyncExitStack() as stack:
        urls = [stack.enter_context(http_server("--tools", "30")) for _ in range(servers)]
        entries = {f"s{number}": {"url": url, "login": "each"} for number, url in enumerate(urls)}
        made = await stack.enter_async_context(broker(entries))
        client, tokens = OAuthClientInformationFull(client_id="c"), OAuthToken(access_token="t")
        for name, entry in entries.items():
            record = LoginRecord(server_url=str(entry["url"]), client=client, tokens=tokens, since=1.0)
            for person in names:
                auth = made.settings.cellblock.auth
                await LoginStore(made.store, name, record.server_url, auth, person=person).save(record)
        before = private_bytes(os.getpid())
        for person in names:
            made.catalogs_of(person)
            await made.registry.settled(principal=person, at_most=BOUND_SECONDS)
        assert all(made.registry.counts(name)[1] == persons for name in entries)
        kib("connected", before, sessions)
        for name in entries:
            await (made.registry.restart(name) or asyncio.sleep(0))
        while any(made.registry.counts(name)[1] for name in entries):  # noqa: ASYNC110 - nothing tells
            await asyncio.sleep(0.1)
        before += kib("resting", before, sessions)
        for url in urls * persons:
            await (await stack.enter_async_context(Client(url))).list_tools()
        kib("the SDK's clients", before, sessions)


def main(arguments: Sequence[str]) -> int:
    options = parser("bench persons", __doc__)
    options.add_argument("--persons", type=int, default=100)
    options.add_argument("--servers", type=int, default=5)
    asyncio.run(measured(**vars(options.parse_args(arguments))))
    return 0
