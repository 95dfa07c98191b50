"""Lines of stdio servers: read, mended, or the failure of what they answer; never a wait for what has come."""

from __future__ import annotations

import json

import mcp_types as types
import pytest
from mcp.shared.message import SessionMessage

from cellblock.tools.upstream.incoming import NO_ANSWER, read_message


def failed(line: bytes) -> object:
    """The id of the request that a line fails."""
    item = read_message(line)
    assert isinstance(item, SessionMessage) and isinstance(item.message, types.JSONRPCError), item
    assert item.message.error.message == NO_ANSWER
    return item.message.id


def test_a_message_is_read() -> None:
    item = read_message(b'{"jsonrpc":"2.0","id":7,"result":{"a":[1,"\\u00e9"]}}')
    assert isinstance(item, SessionMessage) and isinstance(item.message, types.JSONRPCResponse)
    assert (item.message.id, item.message.result) == (7, {"a": [1, "é"]})


def test_lone_surrogates_become_replacement_characters() -> None:
    line = json.dumps({"jsonrpc": "2.0", "id": 7, "result": {"a\ud83d": ["\ude00x", "\U0001f600"]}}).encode()
    item = read_message(line)
    assert isinstance(item, SessionMessage) and isinstance(item.message, types.JSONRPCResponse)
    assert item.message.result == {"a\ufffd": ["\ufffdx", "\U0001f600"]}


@pytest.mark.parametrize(
    ("line", "answers"),
    [
        (b'{"jsonrpc":"2.0","id":7,"result":null}', 7),
        (b'{"jsonrpc":"2.0","id":7,"result":"x"}', 7),
        (b'{"result":3,"id":"seven","jsonrpc":"2.0"}', "seven"),
        (b'{"jsonrpc":"2.0","id":7,"error":"broken"}', 7),
        (b'{"jsonrpc":"2.0","id":7,"result":{"a":', 7),
        (b'{"jsonrpc":"2.0","id":7,"result":' + b"[" * 100_000 + b"]" * 100_000 + b"}", 7),
        (b'{"result":' + b"[" * 100_000 + b"]" * 100_000 + b',"id":8}', 8),
    ],
    ids=["null", "text", "string id", "error", "cut", "deep", "deep, id at its end"],
)
def test_what_cannot_be_read_fails_what_it_answers(line: bytes, answers: int | str) -> None:
    assert failed(line) == answers


@pytest.mark.parametrize(
    "line",
    [
        b"Server is ready",
        b"",
        b"[]",
        b"{}",
        b'"\xff"',
        b'{"jsonrpc":"2.0","id":true,"result":1}',
        b'{"jsonrpc":"2.0","id":null,"result":1}',
        b'{"jsonrpc":"2.0","id":7,"method":3}',
        b'{"jsonrpc":"2.0","method":"x","params":7}',
    ],
)
def test_what_answers_nothing_is_no_message(line: bytes) -> None:
    assert isinstance(read_message(line), Exception)
