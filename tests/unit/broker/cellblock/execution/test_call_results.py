"""What is said of a result that no script can get."""

from __future__ import annotations

from typing import Any

import pytest

from cellblock.base.errors import ToolCallError
from cellblock.catalog.model import ToolEntry
from cellblock.execution.call_results import result_of


@pytest.mark.parametrize("result", [{"a": "x" * 100}, {"a": object()}])
async def test_the_name_of_its_tool_is_cut(result: Any) -> None:
    name = "very_long_" * 1_000
    with pytest.raises(ToolCallError) as raised:
        await result_of(result, "server", ToolEntry(name, name), 50)
    assert raised.value.message.startswith("very_long_") and len(raised.value.message) < 300
