"""Messages of clients before they are decoded; large ones in a real process."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from typing import Any

import mcp_types as types
import pytest

from cellblock.base.offload.light import LIGHT_BYTES
from cellblock.base.offload.pool import Apart
from cellblock.serve.intake import NotTaken, take


@pytest.fixture(scope="module")
async def apart() -> AsyncIterator[Apart]:
    made = Apart()
    yield made
    await made.close()


def call(**params: Any) -> bytes:
    message = {
        "jsonrpc": "2.0",
        "id": 9,
        "method": "tools/call",
        "params": {"name": "codemode.run", **params},
    }
    return json.dumps(message).encode()


async def test_a_small_message_is_taken_as_it_is(apart: Apart) -> None:
    body = call(arguments={"code": "1"}, _meta={"junk": 1})
    assert (await take(body, apart, "a")).body is body
    assert (await take(b"nonsense", apart, "a")).body == b"nonsense"


@pytest.mark.parametrize("size", [20_000, LIGHT_BYTES, 4_000_000])
async def test_what_a_run_does_not_need_is_gone(apart: Apart, size: int) -> None:
    taken = await take(call(arguments={"code": "1"}, _meta={"junk": "x" * size}), apart, "a")
    assert json.loads(taken.body) == json.loads(call(arguments={"code": "1"}, _meta={}))
    assert taken.weight < 10_000


async def test_a_large_script_passes(apart: Apart) -> None:
    """Also one full of brackets."""
    code = "[{ü}]," * 200_000
    taken = await take(call(arguments={"code": code}), apart, "a")
    assert json.loads(taken.body)["params"]["arguments"]["code"] == code
    assert taken.weight < 5 * len(code)


async def test_many_values_are_refused_with_the_id_of_their_request(apart: Apart) -> None:
    with pytest.raises(NotTaken) as refused:
        await take(call(arguments={"code": "1", "limits": [0] * 1_000_000}), apart, "a")
    assert (refused.value.request_id, refused.value.code) == (9, types.INVALID_REQUEST)
    assert "over 50000 values" in str(refused.value) and not refused.value.later


async def test_what_is_no_json_is_said_to_be_none(apart: Apart) -> None:
    for body in (b"[" * 1_000_000, b'{"a": "' + b"x" * LIGHT_BYTES):
        with pytest.raises(NotTaken) as refused:
            await take(body, apart, "a")
        assert refused.value.code == types.PARSE_ERROR


async def test_where_nothing_is_read_any_more_it_is_to_be_sent_again(apart: Apart) -> None:
    closed = Apart()
    await closed.close()
    with pytest.raises(NotTaken) as refused:
        await take(call(arguments={"code": "x" * LIGHT_BYTES}), closed, "a")
    assert refused.value.later
