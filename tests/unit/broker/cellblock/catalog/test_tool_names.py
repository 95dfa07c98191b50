"""Names of Python tools that nothing could call are refused where they are registered."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellblock import Broker
from cellblock.base.errors import ConfigError
from cellblock.catalog.tool_names import check_tool_name
from cellblock.python_tools.tool_mark import tool
from cellblock_worker.wire.protocol import MAX_NAME_CHARS
from support import settings

BAD = {"empty": "", "blank": "  ", "long": "x" * (MAX_NAME_CHARS + 1), "surrogate": "a\ud800"}


@pytest.mark.parametrize("name", ["add", "größe", "a b", "\U0001f4a5", "x" * MAX_NAME_CHARS])
def test_good_names(name: str) -> None:
    check_tool_name(name)


@pytest.mark.parametrize("name", BAD.values(), ids=BAD)
def test_bad_names_are_refused_in_text_that_can_be_shown(name: str) -> None:
    with pytest.raises(ConfigError) as caught:
        check_tool_name(name)
    assert "name" in str(caught.value) and caught.value.hint
    assert len(str(caught.value).encode()) < 300


@pytest.mark.parametrize("kind", ["long", "surrogate"])
async def test_a_broker_with_such_a_tool_does_not_start(kind: str, tmp_path: Path) -> None:
    @tool(name=BAD[kind])
    def work() -> int:
        return 1

    with pytest.raises(ConfigError, match="name"):
        async with Broker(settings(tmp_path), tools=[work]):
            pass
