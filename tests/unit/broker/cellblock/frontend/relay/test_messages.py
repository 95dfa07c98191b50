"""The relay takes for messages what the SDK does, and sends the headers that the SDK would."""

from __future__ import annotations

import json
from typing import Any

import mcp_types as types
import pytest
from mcp.shared.inbound import encode_header_value

from cellblock.frontend.misread import Misread
from cellblock.frontend.relay.messages import Kind, Message, message_of, message_of_line
from cellblock.frontend.stdio.client_streams import message_of as sdk_message_of

KINDS: dict[type[Any], Kind] = {
    types.JSONRPCRequest: Kind.REQUEST,
    types.JSONRPCNotification: Kind.NOTIFICATION,
    types.JSONRPCResponse: Kind.ANSWER,
    types.JSONRPCError: Kind.ANSWER,
}

IDS = ("", '"id":1,', '"id":"a",', '"id":null,', '"id":1.5,', '"id":true,', '"id":{},', '"id":-7,')
BODIES = (
    '"method":"ping"',
    '"method":"ping","params":null',
    '"method":"ping","params":{"a":1}',
    '"method":"ping","params":[]',
    '"method":5',
    '"result":{}',
    '"result":5',
    '"error":{"code":1,"message":"x"}',
    '"error":{"code":1}',
    '"error":"x"',
    '"x":1',
)
LINES = [
    *(f'{{"jsonrpc":"2.0",{given}{body}}}' for given in IDS for body in BODIES),
    *(f"{{{given}{body}}}" for given in IDS for body in BODIES),
    "no json", "{", "", " \r\n", "7", "[]", "{}", "null", "[" * 5_000,
    '{"jsonrpc":"1.0","id":3,"method":"ping"}',
    '{"jsonrpc":"2.0","id":1,"id":2,"method":"x"}',
]  # fmt: skip


@pytest.mark.parametrize("line", LINES)
def test_a_line_is_what_it_is_for_the_sdk(line: str) -> None:
    found = message_of_line(line.encode())
    wanted = sdk_message_of(line.encode())
    if wanted is None:
        assert found is None
    elif isinstance(wanted, Misread):
        assert isinstance(found, Misread)
        assert (found.code, found.request_id) == (wanted.code, wanted.request_id)
    else:
        assert isinstance(found, Message)
        assert found.kind is KINDS[type(wanted)]
        assert found.id == getattr(wanted, "id", None)


def test_what_is_no_utf8_is_told_with_the_id() -> None:
    found = message_of_line(b'{"jsonrpc":"2.0","id":5,"method":"tools/call","params":{"name":"\xff"}}\n')
    assert found == Misread(-32700, 5, "The line cannot be read: it is no UTF-8.")
    assert message_of(b'{"jsonrpc":"2.0","id":5,"result":{"a":"\xff"}}') is None


@pytest.mark.parametrize(
    "name", ["plain", "a b", " edge", "edge ", "ü", "a\r\nb: c", "", "=?base64?eA==?=", "\x7f", "~!"]
)
def test_headers_are_those_of_the_sdk(name: str) -> None:
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}
    body = {"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": name, "_meta": meta}}
    found = message_of_line(json.dumps(body).encode())
    assert isinstance(found, Message)
    assert found.headers() == {
        "mcp-protocol-version": "2026-07-28",
        "mcp-method": "tools/call",
        "mcp-name": encode_header_value(name),
    }


@pytest.mark.parametrize("method", ["tasks/get", "tasks/update", "tasks/cancel"])
def test_tasks_are_named_by_their_ids(method: str) -> None:
    meta = {"io.modelcontextprotocol/protocolVersion": "2026-07-28"}
    body = {"jsonrpc": "2.0", "id": 1, "method": method, "params": {"taskId": "run.tag", "_meta": meta}}
    found = message_of_line(json.dumps(body).encode())
    assert isinstance(found, Message) and found.headers()["mcp-name"] == "run.tag"


def test_half_an_emoji_in_a_name_is_no_failure() -> None:
    params = '{"uri":"\\ud83d","_meta":{"io.modelcontextprotocol/protocolVersion":"2026-07-28"}}'
    found = message_of_line(
        b'{"jsonrpc":"2.0","id":1,"method":"resources/read","params":%s}' % params.encode()
    )
    assert isinstance(found, Message)
    assert found.headers()["mcp-name"].isascii()


def test_a_message_becomes_one_line_with_the_id_that_was_asked_for() -> None:
    raw = b'{"jsonrpc": "2.0",\n "id": 1, "result": {"a": "\xc3\xbc"}}'
    found = message_of(raw)
    assert found is not None
    assert b"\n" not in found.as_line() and json.loads(found.as_line()) == json.loads(raw)
    assert json.loads(found.answering("x")) == {"jsonrpc": "2.0", "id": "x", "result": {"a": "ü"}}
    short = message_of(b'{"jsonrpc":"2.0","id":1,"result":{}}')
    assert short is not None and short.answering(1) is short.raw
