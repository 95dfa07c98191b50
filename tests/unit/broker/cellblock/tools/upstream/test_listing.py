"""Reading tool lists: pages, duplicates, lists without end, and servers that stop answering in the middle."""

from __future__ import annotations

import asyncio
from typing import Any

import mcp_types as types
import pytest

from cellblock.tools.upstream import definitions, listing
from cellblock.tools.upstream.listing import MAX_LEFT_OUT, Listing, list_tools


def tool(name: str, **fields: Any) -> types.Tool:
    return types.Tool(name=name, input_schema={"type": "object"}, **fields)


async def listed(pages: list[list[types.Tool]], endless: bool = False) -> Listing:
    """What is read of a server with these pages; past the last one an endless one begins again."""

    async def fetch(cursor: str | None) -> types.ListToolsResult:
        number = int(cursor or 0)
        more = endless or number + 1 < len(pages)
        return types.ListToolsResult(
            tools=pages[number % len(pages)], next_cursor=str(number + 1) if more else None
        )

    return await list_tools(fetch)


async def test_all_pages_are_read() -> None:
    read = await listed([[tool("a")], [], [tool("b"), tool("c")]])
    assert [one.name for one in read.tools] == ["a", "b", "c"]
    assert not read.left_out and not read.notes


@pytest.mark.parametrize("page", [[], [tool("same")]], ids=["empty pages", "the same page again"])
async def test_cursors_without_end_stop_at_the_cap_on_pages(
    page: list[types.Tool], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(listing, "MAX_PAGES", 7)
    read = await listed([page], endless=True)
    assert len(read.tools) == len(page)
    assert "after 7 pages" in read.notes[0]
    assert len(read.notes) < 3


async def test_thousands_of_tools_stop_at_the_cap() -> None:
    read = await listed([[tool(f"t{number}") for number in range(5_000)]])
    assert len(read.tools) == 2_000
    assert "more than 2,000 tools" in read.notes[0]


async def test_tools_that_are_left_out_count_and_are_named_up_to_a_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(definitions, "MAX_TEXT_CHARS", 50)
    big = [tool(f"t{number}", description="d" * 100) for number in range(500)]
    read = await listed([[*big, tool("good")]])
    assert [one.name for one in read.tools] == ["good"]
    assert len(read.left_out) == MAX_LEFT_OUT
    assert read.notes == [f"{500 - MAX_LEFT_OUT} more of its tools are left out."]


async def test_one_tool_over_a_cap_costs_no_other() -> None:
    read = await listed([[tool("a"), tool("b", description="d" * 100_000), tool("c")]])
    assert [one.name for one in read.tools] == ["a", "c"]
    [refused] = read.left_out
    assert refused.name == "b" and "over 32768" in refused.why


async def test_of_two_tools_with_one_name_the_first_is_kept_and_the_other_said() -> None:
    read = await listed([[tool("a", description="good")], [tool("a", description="bad")]])
    [kept] = read.tools
    assert kept.definition["description"] == "good"
    assert not read.left_out
    assert "more than once" in read.notes[0] and read.notes[0].endswith(" a.")


async def test_all_definitions_together_have_a_cap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "MAX_LISTED_BYTES", 10_000)
    tools = [tool(f"t{number}", description="d" * 1_000) for number in range(20)]
    read = await listed([tools])
    assert 5 < len(read.tools) < 10
    assert "together have over 10000 bytes" in read.left_out[0].why
    assert len(read.tools) + len(read.left_out) == 20


async def test_what_was_read_when_a_server_falls_silent_is_used(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "LIST_SECONDS", 0.05)

    async def fetch(cursor: str | None) -> types.ListToolsResult:
        if cursor is not None:
            await asyncio.Event().wait()
        return types.ListToolsResult(tools=[tool("a")], next_cursor="1")

    read = await list_tools(fetch)
    assert [one.name for one in read.tools] == ["a"]
    assert "within 0.05 s" in read.notes[0]


async def test_silence_from_the_start_is_a_timeout(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(listing, "LIST_SECONDS", 0.05)

    async def fetch(cursor: str | None) -> types.ListToolsResult:
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(TimeoutError, match=r"^no tool list within 0\.05 s$"):
        await list_tools(fetch)
