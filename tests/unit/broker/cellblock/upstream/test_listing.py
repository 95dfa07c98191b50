"""Reading tool lists: pages, duplicates, lists without end, and servers that stop answering in the middle."""

from __future__ import annotations

import asyncio
from typing import Any

import mcp_types as types
import pytest

from cellblock.config.settings import UpstreamSettings
from cellblock.upstream.listing import MAX_LEFT_OUT, Listing, list_tools


def tool(name: str, **fields: Any) -> types.Tool:
    return types.Tool(name=name, input_schema={"type": "object"}, **fields)


async def listed(pages: list[list[types.Tool]], endless: bool = False, **settings: int) -> Listing:
    """What is read of a server with these pages; past the last one an endless one begins again."""

    async def fetch(cursor: str | None) -> types.ListToolsResult:
        number = int(cursor or 0)
        more = endless or number + 1 < len(pages)
        return types.ListToolsResult(
            tools=pages[number % len(pages)], next_cursor=str(number + 1) if more else None
        )

    return await list_tools(fetch, UpstreamSettings(**settings))


async def test_all_pages_are_read() -> None:
    listing = await listed([[tool("a")], [], [tool("b"), tool("c")]])
    assert [one.name for one in listing.tools] == ["a", "b", "c"]
    assert not listing.left_out and not listing.notes


@pytest.mark.parametrize("page", [[], [tool("same")]], ids=["empty pages", "the same page again"])
async def test_cursors_without_end_stop_at_the_cap_on_pages(page: list[types.Tool]) -> None:
    listing = await listed([page], endless=True, max_pages=7)
    assert len(listing.tools) == len(page)
    assert "max_pages = 7" in listing.notes[0]
    assert len(listing.notes) < 3


async def test_thousands_of_tools_stop_at_the_cap() -> None:
    listing = await listed([[tool(f"t{number}") for number in range(5_000)]], max_tools=2_000)
    assert len(listing.tools) == 2_000
    assert "max_tools = 2000" in listing.notes[0]


async def test_tools_that_are_left_out_count_and_are_named_up_to_a_number() -> None:
    big = [tool(f"t{number}", description="d" * 100) for number in range(500)]
    listing = await listed([[*big, tool("good")]], max_description_chars=50)
    assert [one.name for one in listing.tools] == ["good"]
    assert len(listing.left_out) == MAX_LEFT_OUT
    assert listing.notes == [f"{500 - MAX_LEFT_OUT} more of its tools are left out."]


async def test_one_tool_over_a_cap_costs_no_other() -> None:
    listing = await listed([[tool("a"), tool("b", description="d" * 100_000), tool("c")]])
    assert [one.name for one in listing.tools] == ["a", "c"]
    [refused] = listing.left_out
    assert refused.name == "b" and "max_description_chars" in refused.why


async def test_of_two_tools_with_one_name_the_first_is_kept_and_the_other_said() -> None:
    listing = await listed([[tool("a", description="good")], [tool("a", description="bad")]])
    [kept] = listing.tools
    assert kept.definition["description"] == "good"
    assert not listing.left_out
    assert "more than once" in listing.notes[0] and listing.notes[0].endswith(" a.")


async def test_all_definitions_together_have_a_cap() -> None:
    tools = [tool(f"t{number}", description="d" * 1_000) for number in range(20)]
    listing = await listed([tools], max_definition_bytes=10_000)
    assert 5 < len(listing.tools) < 10
    assert "max_definition_bytes" in listing.left_out[0].why
    assert len(listing.tools) + len(listing.left_out) == 20


async def test_what_was_read_when_a_server_falls_silent_is_used() -> None:
    async def fetch(cursor: str | None) -> types.ListToolsResult:
        if cursor is not None:
            await asyncio.Event().wait()
        return types.ListToolsResult(tools=[tool("a")], next_cursor="1")

    listing = await list_tools(fetch, UpstreamSettings(list_timeout_ms=50))
    assert [one.name for one in listing.tools] == ["a"]
    assert "list_timeout_ms = 50" in listing.notes[0]


async def test_silence_from_the_start_is_a_timeout() -> None:
    async def fetch(cursor: str | None) -> types.ListToolsResult:
        await asyncio.Event().wait()
        raise AssertionError

    with pytest.raises(TimeoutError, match=r"^no tool list within upstream\.list_timeout_ms = 50$"):
        await list_tools(fetch, UpstreamSettings(list_timeout_ms=50))
