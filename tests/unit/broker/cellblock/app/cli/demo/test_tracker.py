"""The demo's issue tracker, spoken to as any MCP client would: in process, and once as a real process."""

from collections.abc import AsyncIterator
from typing import Any

import pytest
from mcp.client.client import Client
from mcp_types import CallToolResult, TextContent

import cellblock.app.cli.demo.tracker as tracker


@pytest.fixture
async def client() -> AsyncIterator[Client]:
    async with Client(tracker.create_server()) as connected:
        yield connected


def structured(result: CallToolResult) -> dict[str, Any]:
    assert not result.is_error, result.content
    assert result.structured_content is not None
    return result.structured_content


def text(result: CallToolResult) -> str:
    (block,) = result.content
    assert isinstance(block, TextContent)
    return block.text


async def test_tools_declare_schemas_and_annotations(client: Client) -> None:
    tools = {tool.name: tool for tool in (await client.list_tools()).tools}
    assert sorted(tools) == ["add_comment", "close_issue", "get_issue", "list_issues"]
    assert sorted(name for name in tools if tools[name].output_schema) == [
        "close_issue",
        "get_issue",
        "list_issues",
    ]
    hints = {name: tool.annotations for name, tool in tools.items()}
    assert {name: hint and hint.read_only_hint for name, hint in hints.items()} == {
        "add_comment": False,
        "close_issue": False,
        "get_issue": True,
        "list_issues": True,
    }
    assert hints["close_issue"] and hints["close_issue"].destructive_hint is True
    assert hints["add_comment"] and hints["add_comment"].destructive_hint is False


async def test_list_issues_gives_all_by_ascending_id(client: Client) -> None:
    listed = structured(await client.call_tool("list_issues", {}))
    assert [issue["id"] for issue in listed["issues"]] == list(range(1, 43))
    assert listed["total"] == 42
    assert listed["issues"][4] == {
        "id": 5,
        "title": "Search takes 4 s with 10,000 invoices",
        "labels": ["performance"],
        "assignee": "jonas",
        "opened": "2025-02-03",
        "estimate_hours": 16,
        "status": "in_progress",
    }


@pytest.mark.parametrize(
    ("filters", "ids"),
    [
        ({"status": "in_progress"}, [5, 14, 20, 34]),
        ({"label": "docs", "assignee": "lin"}, [12, 23, 36]),
        ({"label": "docs", "assignee": ""}, [4, 30]),
        ({"status": "closed", "label": "security"}, [6]),
        ({"assignee": "nobody-by-that-name"}, []),
    ],
)
async def test_filters_must_all_match(client: Client, filters: dict[str, str], ids: list[int]) -> None:
    listed = structured(await client.call_tool("list_issues", filters))
    assert [issue["id"] for issue in listed["issues"]] == ids
    assert listed["total"] == len(ids)


async def test_limit_cuts_the_page_but_not_the_total(client: Client) -> None:
    listed = structured(await client.call_tool("list_issues", {"status": "closed", "limit": 3}))
    assert [issue["id"] for issue in listed["issues"]] == [1, 2, 6]
    assert listed["total"] == 8


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
