"""What is said of a result that no script can get."""

from __future__ import annotations

import time
from typing import Any

import pytest

from cellblock.base.errors import ToolCallError
from cellblock.base.offload.pool import Bill, paying
from cellblock.run import payload
from cellblock.run.call_results import result_of
from cellblock.tools.catalog.model import ToolEntry


@pytest.mark.parametrize("result", [{"a": "x" * 100}, {"a": object()}])
async def test_the_name_of_its_tool_is_cut(result: Any) -> None:
    name = "very_long_" * 1_000
    with pytest.raises(ToolCallError) as raised:
        await result_of(result, "server", ToolEntry(name, name), 50)
    assert raised.value.message.startswith("very_long_") and len(raised.value.message) < 300


async def test_what_writing_a_large_result_takes_is_on_the_runs_bill(monkeypatch: pytest.MonkeyPatch) -> None:
    def slow(value: Any, most: int) -> bytes:
        ends = time.thread_time() + 0.1
        while time.thread_time() < ends:
            pass
        return encode_in_steps(value, most)

    encode_in_steps = payload.encode_in_steps
    monkeypatch.setattr(payload, "encode_in_steps", slow)
    bill = Bill()
    paying.set(bill)  # of this test's own context
    found = await result_of({"rows": list(range(100_000))}, "server", ToolEntry("t", "t"), 10**6)
    assert found.body.startswith(b'{"rows":[0,1,')
    assert 100 <= bill.cpu_ms < 5_000
