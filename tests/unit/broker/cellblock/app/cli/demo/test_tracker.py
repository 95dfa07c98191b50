"""The demo's issue tracker, spoken to as any MCP client would: in process, and once as a real process."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from mcp.client.client import Client

import cellblock.app.cli.demo.tracker as tracker


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with Client(tracker.create_server()) as connected:
        yield connected


def structured(result: Any) -> dict[str, Any]:
    assert not result.is_error, result.content
    return result.structured_content


def text(result: Any) -> str:
    (block,) = result.content
    return block.text


async def test_tools_declare_schemas_and_annotations(client: Client) -> None:
    tools = (await client.list_tools()).tools
    assert {tool.name: tool.output_schema is not None for tool in tools} == {
        "add_comment": False,
        "close_issue": True,
        "get_issue": True,
        "list_issues": True,
    }
    hints = [(tool.name, tool.annotations) for tool in tools]
    assert {name: hint and (hint.read_only_hint, hint.destructive_hint) for name, hint in hints} == {
        "add_comment": (False, False),
        "close_issue": (False, True),
        "get_issue": (True, None),
        "list_issues": (True, None),
    }


async def test_an_issue_as_it_is_listed(client: Client) -> None:
    assert structured(await client.call_tool("list_issues", {}))["issues"][4] == {
        "id": 5,
        "title": "Search takes 4 s with 10,000 invoices",
        "labels": ["performance"],
        "assignee": "jonas",
        "opened": "2025-02-03",
        "estimate_hours": 16,
        "status": "in_progress",
    }


@pytest.mark.parametrize(
    ("filters", "ids", "total"),
    [
        ({}, list(range(1, 43)), 42),
        ({"status": "in_progress"}, [5, 14, 20, 34], 4),
        ({"label": "docs", "assignee": "lin"}, [12, 23, 36], 3),
        ({"label": "docs", "assignee": ""}, [4, 30], 2),
        ({"status": "closed", "label": "security"}, [6], 1),
        ({"assignee": "nobody-by-that-name"}, [], 0),
        # The limit cuts the page but not the total.
        ({"status": "closed", "limit": 3}, [1, 2, 6], 8),
    ],
)
async def test_filters_must_all_match(
    client: Client, filters: dict[str, Any], ids: list[int], total: int
) -> None:
    listed = structured(await client.call_tool("list_issues", filters))
    assert ([issue["id"] for issue in listed["issues"]], listed["total"]) == (ids, total)


async def test_add_comment_answers_plain_text_and_is_seen(client: Client) -> None:
    result = await client.call_tool("add_comment", {"id": 4, "text": "Taking this one."})
    assert result.structured_content is None
    assert text(result) == "Added comment 1 to issue 4."
    issue = structured(await client.call_tool("get_issue", {"id": 4}))
    assert issue["comments"] == [{"author": "agent", "text": "Taking this one."}]


async def test_close_issue_closes_once(client: Client) -> None:
    closed = structured(await client.call_tool("close_issue", {"id": 19, "reason": "done in 2.4"}))
    assert (closed["status"], closed["close_reason"]) == ("closed", "done in 2.4")
    again = await client.call_tool("close_issue", {"id": 19, "reason": "again"})
    assert again.is_error
    assert text(again).endswith("Issue 19 is closed already (done in 2.4).")


@pytest.mark.parametrize("name", ["get_issue", "add_comment", "close_issue"])
async def test_unknown_issue_is_an_error_result_with_the_valid_range(client: Client, name: str) -> None:
    arguments = {"get_issue": {}, "add_comment": {"text": "x"}, "close_issue": {"reason": "x"}}[name]
    result = await client.call_tool(name, {"id": 999, **arguments})
    assert result.is_error
    assert text(result).endswith("There is no issue 999; ids run from 1 to 42.")


async def test_servers_do_not_share_state(client: Client) -> None:
    await client.call_tool("add_comment", {"id": 1, "text": "here"})
    async with Client(tracker.create_server()) as other:
        assert structured(await other.call_tool("get_issue", {"id": 1}))["comments"] == []
