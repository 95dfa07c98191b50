"""What of a client's message is not even looked at."""

from __future__ import annotations

import json
from typing import Any

import pytest

from cellblock.serve.mcp.cut import MAX_VALUES, cut, cut_apart, measured

CALL: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 1,
    "method": "tools/call",
    "params": {
        "name": "codemode.run",
        "arguments": {"code": "é 😀 \"x\" \n", "limits": {"timeoutMs": 5}, "unknown": [1]},
        "_meta": {
            "progressToken": 7,
            "traceparent": "00-…",
            "tracestate": "a=b",
            "io.modelcontextprotocol/protocolVersion": "2026-07-28",
        },
        "requestState": "word",
        "inputResponses": {"k": {"action": "accept"}},
        "task": {"ttl": 1},
    },
}  # fmt: skip


def test_what_is_needed_stays_as_it_is() -> None:
    short, message = cut(json.dumps(CALL).encode())
    assert message == CALL
    assert json.loads(short) == CALL


def test_what_nobody_needs_goes() -> None:
    more = json.loads(json.dumps(CALL))
    more["params"]["_meta"]["junk"] = [[]] * 1000
    more["params"]["junk"] = {"a": 1}
    more["junk"] = "x" * 1000
    assert json.loads(cut(json.dumps(more).encode())[0]) == CALL


@pytest.mark.parametrize(
    "message",
    [
        {"jsonrpc": "2.0", "id": "a", "result": {"content": {"data": "x" * 100}, "_meta": {"k": 1}}},
        {"jsonrpc": "2.0", "id": 3, "error": {"code": 1, "message": "no", "data": [1]}},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1, "other": 2}},
        {"jsonrpc": "2.0", "id": 4, "method": "tools/call", "params": [1]},
        {"jsonrpc": "2.0", "id": 4, "method": "tools/call", "params": {"_meta": 5}},
        [1, 2],
        "text",
        None,
    ],
)
def test_other_messages_are_left_alone(message: Any) -> None:
    assert json.loads(cut(json.dumps(message).encode())[0]) == message


def test_half_an_emoji_stays_one() -> None:
    body = rb'{"method":"m","params":{"a":"\ud800"}}'
    assert json.loads(cut(body)[0]) == json.loads(body)


def test_a_message_of_many_values_is_not_given_back() -> None:
    many = {**CALL, "params": {**CALL["params"], "arguments": {"code": "", "limits": [0] * MAX_VALUES}}}
    facts, parts = cut_apart({}, json.dumps(many).encode())
    assert (facts["id"], list(parts)) == (1, [])
    assert facts["much"] == "over 50000 values"
    facts, parts = cut_apart({}, json.dumps(CALL).encode())
    assert facts == {"id": 1, "values": 23}
    assert json.loads(parts[0]) == CALL


@pytest.mark.parametrize(
    ("code", "much"),
    [
        ("ä" * 1024 * 1024, None),
        ('"' * 1024 * 1024, None),
        ("let a = 1;\n" * 95_000, None),
        ("\x01" * 1_100_000, "bytes beside"),
        ('"' * 1_100_000, "escaped"),
        (["y" * 155] * 2_000, "bytes beside"),
        (["y" * 20_000] * 50, None),
    ],
)
def test_a_long_text_is_given_back_and_many_short_ones_are_not(code: Any, much: str | None) -> None:
    message = {**CALL, "params": {**CALL["params"], "arguments": {"code": code}}}
    facts, parts = cut_apart({}, json.dumps(message).encode())
    assert much in facts["much"] if much else json.loads(parts[0]) == message, facts


def test_values_are_counted_to_the_bound_and_not_on() -> None:
    data: Any = []
    for _ in range(10):
        data = [data, data]
    assert measured(data, 100_000) == (2**11 - 1, 0)
    assert 100 < measured(data, 100)[0] <= 103


@pytest.mark.parametrize("body", [b"", b"{", b"nonsense", b"[" * 100_000, b"\xff\xfe", b"9" * 10_000])
def test_what_cannot_be_read_is_named(body: bytes) -> None:
    facts, parts = cut_apart({}, body)
    assert facts["wrong"] and not parts


@pytest.mark.parametrize("given", [True, 1.5, None, "x" * 2000, [1], 2**70])
def test_an_id_that_is_none_is_not_told(given: Any) -> None:
    assert cut_apart({}, json.dumps({**CALL, "id": given}).encode())[0]["id"] is None
