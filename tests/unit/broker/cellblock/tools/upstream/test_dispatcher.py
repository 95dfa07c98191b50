"""What a server asks is answered, whatever becomes of it here."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import mcp_types as types
import pytest
from mcp import MCPError

from cellblock.tools.upstream.dispatcher import Connection, Pending
from support.waits import within

ASKED = b'{"jsonrpc": "2.0", "id": 7, "method": "roots/list"}'


class OneRequest:
    """A wire on which the server asks once, and keeps the answer."""

    def __init__(self) -> None:
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def request(self, pending: Pending, body: bytes, headers: Mapping[str, str]) -> None:
        raise AssertionError("nothing is asked of the server")

    async def post(self, body: bytes, headers: Mapping[str, str], what: str) -> None:
        self.answer.set_result(json.loads(body))

    def give_up(self, pending: Pending, version: str | None) -> bool:
        return False

    async def run(self, connection: Connection) -> None:
        assert await connection.received(ASKED)
        await asyncio.wait([self.answer])


@pytest.mark.parametrize(
    ("failure", "code"),
    [(MCPError(-5, "no"), -5), (RuntimeError("a fault of ours"), types.INTERNAL_ERROR)],
    ids=["refused", "failed"],
)
async def test_a_servers_request_that_fails_here_is_answered(failure: Exception, code: int) -> None:
    async def asked(*_: object) -> dict[str, Any]:
        raise failure

    async def told(*_: object) -> None:
        raise AssertionError("nothing is told")

    wire = OneRequest()
    await within(Connection(wire, asyncio.Event(), lambda _: None).run(asked, told))
    said = wire.answer.result()
    assert (said["id"], said["error"]["code"]) == (7, code) and "fault of ours" not in str(said)
