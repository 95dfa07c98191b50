"""Lines of a stdio client that are no messages: what is a request gets the error of JSON-RPC 2.0, nothing else does."""

from __future__ import annotations

import json
from typing import Any

import anyio
import mcp_types as types
import pytest
from mcp.shared.message import SessionMessage
from pydantic import ValidationError

from cellblock.frontend.stdio.unreadable import AnsweringStream, answer_to

CALL = '{"jsonrpc":"2.0","id":11,"method":"tools/call","params":'


def refused(line: str) -> Exception:
    """What the SDK hands on for a line."""
    with pytest.raises(ValidationError) as error:
        types.jsonrpc_message_adapter.validate_json(line, by_name=False)
    return error.value


@pytest.mark.parametrize(
    ("line", "code", "request_id"),
    [
        ("no json", -32700, None),
        ("{", -32700, None),
        ("[" * 5_000 + "]" * 5_000, -32700, None),
        (CALL + '{"arguments":{"code":"\\ud83d"}}}', -32700, 11),
        (CALL + "[]}", -32602, 11),
        (CALL + '"x"}', -32602, 11),
        ('{"jsonrpc":"2.0","id":"a","method":"ping","params":5}', -32602, "a"),
        ('{"id":3,"method":"ping"}', -32600, 3),
        ('{"jsonrpc":"1.0","id":3,"method":"ping"}', -32600, 3),
        ('{"jsonrpc":"2.0","id":3,"method":1}', -32600, 3),
        ('{"jsonrpc":"2.0","id":3}', -32600, 3),
        ('{"id":true}', -32600, None),
        ('[{"jsonrpc":"2.0","id":3,"method":"ping"}]', -32600, None),
        ("7", -32600, None),
        ("{}", -32600, None),
    ],
)
def test_what_asks_for_an_answer_gets_one(line: str, code: int, request_id: Any) -> None:
    answer = answer_to(refused(line))
    assert answer is not None
    sent = json.loads(answer.model_dump_json(by_alias=True, exclude_unset=True))
    assert (sent["jsonrpc"], sent["id"], sent["error"]["code"]) == ("2.0", request_id, code)
    assert len(sent["error"]["message"]) < 500


@pytest.mark.parametrize(
    "line",
    [
        "",
        " \r\n",
        '{"jsonrpc":"2.0","method":"notifications/cancelled","params":[]}',
        '{"jsonrpc":"2.0","id":1,"result":5}',
        '{"jsonrpc":"2.0","id":1,"error":"x"}',
        '{"jsonrpc":"2.0","id":1,"error":{"code":1,"message":"\\ud83d"}}',
        '{"jsonrpc":"2.0","id":1,"method":5,"result":5,"error":5}',
    ],
)
def test_nothing_answers_an_answer_or_a_notification(line: str) -> None:
    assert answer_to(refused(line)) is None
    assert answer_to(ValueError("of the transport")) is None


async def test_messages_and_what_is_not_answered_pass() -> None:
    send, inner = anyio.create_memory_object_stream[SessionMessage | Exception](10)
    answers, answered = anyio.create_memory_object_stream[SessionMessage](10)
    message = SessionMessage(types.JSONRPCRequest(jsonrpc="2.0", id=1, method="ping"))
    other = ValueError("x")
    for item in (refused("no json"), message, other, refused(CALL + "[]}")):
        await send.send(item)
    await send.aclose()
    async with AnsweringStream(inner, answers) as stream:
        assert await stream.receive() is message
        assert [item async for item in stream] == [other]
    await answers.aclose()
    async with answered:
        told = [item.message async for item in answered]
    assert [one.error.code for one in told if isinstance(one, types.JSONRPCError)] == [-32700, -32602]


async def test_a_client_that_is_gone_is_not_told() -> None:
    send, inner = anyio.create_memory_object_stream[SessionMessage | Exception](10)
    answers, answered = anyio.create_memory_object_stream[SessionMessage](10)
    await answered.aclose()
    await send.send(refused("no json"))
    await send.aclose()
    async with answers, AnsweringStream(inner, answers) as stream:
        assert [item async for item in stream] == []


async def test_the_end_waits_for_what_is_still_to_be_answered() -> None:
    send, inner = anyio.create_memory_object_stream[SessionMessage | Exception](10)
    answers, answered = anyio.create_memory_object_stream[SessionMessage](10)
    waited: list[bool] = []

    async def before_end() -> None:
        waited.append(True)

    await send.send(ValueError("x"))
    await send.aclose()
    async with answers, answered, AnsweringStream(inner, answers, before_end) as stream:
        assert isinstance(await anext(stream), ValueError)
        assert waited == []
        assert [item async for item in stream] == []
    assert waited == [True]
