"""What a server asks is answered, whatever becomes of it here."""

import asyncio
import json
from collections.abc import Mapping
from typing import Any

import mcp_types as types
import pytest
from mcp import MCPError
from pydantic import ValidationError

from cellblock.tools.upstream.dispatcher import Connection, Pending
from support.waits import within

ASKED: dict[str, Any] = {"id": 7, "method": "roots/list"}


class OneMessage:
    """A wire on which the server says one thing, and keeps the answer."""

    where = "its stdout"

    def __init__(self, said: dict[str, Any]) -> None:
        self.said = json.dumps({"jsonrpc": "2.0", **said}).encode()
        self.answer: asyncio.Future[Any] = asyncio.get_running_loop().create_future()

    async def request(self, pending: Pending, body: bytes, headers: Mapping[str, str]) -> None:
        raise AssertionError("nothing is asked of the server")

    async def post(self, body: bytes, headers: Mapping[str, str], what: str) -> None:
        self.answer.set_result(json.loads(body))

    def give_up(self, pending: Pending, version: str | None) -> bool:
        return False

    async def run(self, connection: Connection) -> None:
        assert await connection.received(self.said)
        await asyncio.wait([self.answer])


@pytest.mark.parametrize(
    ("failure", "code"),
    [
        (MCPError(-5, "no"), -5),
        (RuntimeError("a fault of ours"), types.INTERNAL_ERROR),
        (ValidationError.from_exception_data("a request", []), types.INVALID_PARAMS),
    ],
    ids=["refused", "failed", "unreadable"],
)
async def test_a_servers_request_that_fails_here_is_answered(failure: Exception, code: int) -> None:
    async def asked(*_: object) -> dict[str, Any]:
        raise failure

    async def told(*_: object) -> None:
        raise AssertionError("nothing is told")

    wire, notes = OneMessage(ASKED), list[str]()
    await within(Connection(wire, asyncio.Event(), notes.append).run(asked, told))
    said = wire.answer.result()
    assert (said["id"], said["error"]["code"]) == (7, code) and "fault of ours" not in str(said)
    assert notes == (
        ["The parameters of its request roots/list are none of it."] if code == types.INVALID_PARAMS else []
    )


@pytest.mark.parametrize(
    ("said", "heard"),
    [
        ({"level": "WARN", "message": "low"}, {"level": "warning", "data": "low"}),
        ({"level": 7, "data": None, "logger": {}}, {"level": "info", "data": None}),
        (
            {"level": "error", "data": [1], "logger": "disk"},
            {"level": "error", "data": [1], "logger": "disk"},
        ),
    ],
)
async def test_no_log_message_is_lost_for_one_field(said: dict[str, Any], heard: dict[str, Any]) -> None:
    wire, found = OneMessage({"method": "notifications/message", "params": said}), list[object]()

    async def told(_: object, method: str, params: object) -> None:
        found.append(params)
        wire.answer.set_result(None)

    await within(Connection(wire, asyncio.Event(), lambda _: None).run(told, told))
    assert found == [heard]


async def test_a_form_of_php_reaches_a_person() -> None:
    """An empty object is a list there, and what is absent null."""
    form = {"title": None, "properties": {"name": {"type": "string", "title": None}}, "required": {}}
    wire = OneMessage({**ASKED, "params": {"message": "Who?", "mode": None, "requestedSchema": form}})
    found: list[object] = []

    async def asked(_: object, method: str, params: object) -> dict[str, Any]:
        found.append(params)
        return {}

    await within(Connection(wire, asyncio.Event(), lambda _: None).run(asked, asked))
    assert found == [
        {"message": "Who?", "requestedSchema": {"type": "object", "properties": {"name": {"type": "string"}}}}
    ]
