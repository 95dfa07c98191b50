"""How often a client may ask is one number, also where a balancer brings it to several brokers."""

from __future__ import annotations

import contextlib
import logging
from pathlib import Path
from typing import Any, cast

import pytest
from mcp.server.auth.provider import AccessToken

from cellblock.base import count_rows
from cellblock.base.count_rows import CountRows
from cellblock.base.sqlite import SqliteDatabase
from cellblock.config.http import HttpSettings
from cellblock.frontend.http.gate import Gate
from cellblock.frontend.http.places import Places
from cellblock.policy import counts as counts_module
from cellblock.policy.counts import Counts
from support.waits import until

HOST = "127.0.0.1:1"


class AnnsToken:
    async def verify_token(self, token: str) -> AccessToken | None:
        return AccessToken(token="", client_id="token:ann", subject="token:ann", scopes=[])


async def answering(scope: Any, receive: Any, send: Any) -> None:
    await send({"type": "http.response.start", "status": 200, "headers": []})
    await send({"type": "http.response.body", "body": b""})


async def ask(gate: Gate, address: str) -> int:
    """The status of one request of Ann's, from an address of hers."""
    seen: list[int] = []

    async def send(message: Any) -> None:
        seen.extend([message["status"]] if "status" in message else [])

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    headers = [
        (b"host", HOST.encode()),
        (b"mcp-protocol-version", b"2026-07-28"),
        (b"authorization", b"Bearer x"),
    ]
    scope = {"type": "http", "method": "GET", "path": "/mcp", "headers": headers, "client": (address, 2)}
    await gate({**scope, "query_string": b""}, receive, send)
    return seen[0]


async def test_a_client_of_two_brokers_has_one_rate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(counts_module, "SYNC_SECONDS", 0.02)

    def rows() -> CountRows:
        file = SqliteDatabase(tmp_path / "c", count_rows.MIGRATIONS, "counts", logging.getLogger())
        return CountRows(file, count_rows.SQLITE_NOW)

    def gate(counts: Counts) -> Gate:
        return Gate(
            answering,
            HttpSettings(requests_per_second=0.001, burst=20),
            apart=cast(Any, None),
            places=Places(8, 8),
            share_of=lambda total: total,
            hosts=[HOST],
            origins=[],
            verifier=AnnsToken(),
            ready=lambda busy: True,
            pages=None,
            counts=counts,
        )

    both = [Counts(rows, lambda: None) for _ in range(2)]
    async with contextlib.AsyncExitStack() as stack:
        for counts in both:
            counts.start()
            stack.push_async_callback(counts.close)
        here, there = (gate(counts) for counts in both)

        def seen(counts: Counts) -> tuple[int, bool]:
            """What a broker knows that was asked, and whether it has told of all that it was asked."""
            known = list(counts._known.values())
            return sum(count.used for count in known), not any(count.added for count in known)

        asked = 0
        for times in (1, 7):
            # What was asked before a broker has seen the client is not held against it there.
            for one, address in ((here, "10.0.0.1"), (there, "10.0.0.2")):
                assert [await ask(one, address) for _ in range(times)] == [200] * times
            asked += 2 * times
            await until(
                lambda told=asked: all(seen(counts) == (told, True) for counts in both), "each has seen it"
            )
        # Eight here, and seven or eight there.
        answers = [await ask(here, "10.0.0.3") for _ in range(6)]
        assert answers in ([200] * 4 + [429] * 2, [200] * 5 + [429])
