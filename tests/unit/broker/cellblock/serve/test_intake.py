"""What of a client's message is decoded, and what is not even looked at."""

import json
from typing import Any

import mcp_types as types
import pytest

from cellblock.base.raw_json import LIGHT_BYTES
from cellblock.serve.intake import MAX_VALUES, take
from cellblock.serve.misread import AS_IT_IS_BYTES, NotTaken
from support.loop_steps import longest_step
from support.params import mostly

CALL: dict[str, Any] = {
    "jsonrpc": "2.0",
    "id": 9,
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
FILL = "x" * AS_IT_IS_BYTES
"""Makes a message one that is looked at."""


def call(**arguments: Any) -> dict[str, Any]:
    return {**CALL, "params": {**CALL["params"], "arguments": {"code": "1", **arguments}}}


async def taken(message: Any) -> Any:
    return json.loads((await take(json.dumps(message).encode())).body)


async def test_a_small_message_is_taken_as_it_is() -> None:
    for body in (json.dumps({**CALL, "junk": 1}).encode(), b"nonsense"):
        assert (await take(body)).body is body


@pytest.mark.parametrize("size", [20_000, LIGHT_BYTES, 4_000_000])
async def test_what_nobody_needs_goes(size: int) -> None:
    more = json.loads(json.dumps(CALL))
    more["params"]["_meta"]["junk"] = "x" * size
    more["params"]["junk"] = [{}] * 1000
    more["junk"] = [[]] * 1000
    found = await take(json.dumps(more).encode())
    assert json.loads(found.body) == CALL
    assert found.weight < 10_000


@pytest.mark.parametrize(
    "message",
    [
        call(fill=FILL),
        {"jsonrpc": "2.0", "id": "a", "result": {"content": {"data": FILL}, "_meta": {"k": 1}}},
        {"jsonrpc": "2.0", "id": 3, "error": {"code": 1, "message": FILL, "data": [1]}},
        {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1, "other": FILL}},
        {"jsonrpc": "2.0", "id": 4, "method": "tools/call", "params": [FILL]},
        {"jsonrpc": "2.0", "id": 4, "method": "tools/call", "params": {"_meta": FILL}},
        {"jsonrpc": "2.0", "id": 4, "method": "m", "params": {"a": "\ud800", "b": FILL}},
        [1, FILL],
        pytest.param(FILL, id="text"),
        call(code="[{ü}]," * 200_000),
        call(code="ä" * 1024 * 1024),
        call(code='"' * 1024 * 1024),
        call(code=["y" * 20_000] * 50),
    ],
)
async def test_all_else_stays_as_it_is(message: Any) -> None:
    assert await taken(message) == message


@pytest.mark.parametrize(
    ("message", "much", "request_id"),
    [
        (call(limits=[0] * MAX_VALUES), "over 50000 values", 9),
        (call(limits=["a"] * 1_000_000), "over 50000 values", 9),
        (call(code='"' * 2_200_000), "over 2097152 escaped characters", 9),
        (call(code=["y" * 155] * 2_000), "over 262144 bytes beside its long texts", 9),
        # What is no id is not told.
        *(
            ({**call(limits=[0] * MAX_VALUES), "id": given}, "over 50000 values", None)
            for given in (True, 1.5, None, "x" * 20_000, [1])
        ),
    ],
)
async def test_a_message_of_too_much_is_refused_with_the_id_of_its_request(
    message: Any, much: str, request_id: int | None
) -> None:
    with pytest.raises(NotTaken, match=much) as refused:
        await taken(message)
    assert (refused.value.found.request_id, refused.value.found.code) == (request_id, types.INVALID_REQUEST)


@pytest.mark.parametrize(
    "body", [b"[" * 1_000_000, b'{"a":' * 100_000, b'{"a": "' + b"x" * LIGHT_BYTES], ids=range(3)
)
async def test_what_is_no_json_is_said_to_be_none(body: bytes) -> None:
    with pytest.raises(NotTaken, match="no JSON that can be read") as refused:
        await take(body)
    assert refused.value.found.code == types.PARSE_ERROR


FILLS = [(fill, b'"arguments"') for fill in (b"[],", b"1,", b'"a":1,', b'"\\n",')]


@pytest.mark.parametrize(("fill", "where"), mostly(FILLS, [*FILLS, (b"1,", b'"_meta"'), (b"1,", b'"junk"')]))
async def test_no_message_holds_the_loop_for_a_long_step(fill: bytes, where: bytes) -> None:
    """In CPU time of this thread, which no other process adds to; the bound is 60 ms on a machine that is quiet."""
    many = fill * (15 * 1024 * 1024 // len(fill))
    junk = b"{%s0:0}" % many if fill.endswith(b":1,") else b"[%s0]" % many
    junk = junk.replace(b"0:0}", b'"b":0}')
    body = b'{"id":9,"method":"tools/call","params":{"name":"x",%s:{"junk":%s}}}' % (where, junk)
    with longest_step() as longest:
        try:
            await take(body)
        except NotTaken as refused:
            assert refused.found.request_id == 9
    assert longest[0] < 0.2
