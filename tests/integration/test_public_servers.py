"""The installed public MCP servers answer over stdio, with results of the kinds that other tests count on.

Spoken to with the MCP SDK alone: when one of these fails, the server or its installation is at fault.
"""

import json
import os
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from mcp.client.client import Client
from mcp.client.stdio import StdioServerParameters, stdio_client
from mcp_types import CallToolResult, ImageContent, TextContent

from support.public_servers import ServerEntry

pytestmark = pytest.mark.servers


@asynccontextmanager
async def connect(entry: ServerEntry) -> AsyncIterator[Client]:
    """Start the server of an entry as an MCP client would, and end it afterwards."""
    env = {"PATH": os.environ["PATH"], **entry["env"]}
    parameters = StdioServerParameters(command=entry["command"], args=entry["args"], env=env)
    async with Client(stdio_client(parameters), read_timeout_seconds=30) as client:
        yield client


def text(result: CallToolResult) -> str:
    assert not result.is_error, result.content
    return "\n".join(block.text for block in result.content if isinstance(block, TextContent))


async def test_everything_has_results_of_several_kinds(server_everything: ServerEntry) -> None:
    async with connect(server_everything) as client:
        names = {tool.name for tool in (await client.list_tools()).tools}
        assert {"echo", "get-sum", "get-tiny-image", "get-structured-content"} <= names
        assert "hello" in text(await client.call_tool("echo", {"message": "hello"}))
        image = await client.call_tool("get-tiny-image", {})
        assert any(isinstance(block, ImageContent) for block in image.content)
        weather = await client.call_tool("get-structured-content", {"location": "New York"})
        assert weather.structured_content is not None
        assert "temperature" in weather.structured_content


@pytest.mark.thorough
async def test_filesystem_reads_its_folder_and_nothing_else(server_filesystem: ServerEntry) -> None:
    folder = Path(server_filesystem["args"][-1])
    async with connect(server_filesystem) as client:
        read = await client.call_tool("read_text_file", {"path": str(folder / "hello.txt")})
        assert "Hello from a file." in text(read)
        outside = await client.call_tool("read_text_file", {"path": str(folder.parent / "elsewhere.txt")})
        assert outside.is_error


@pytest.mark.thorough
async def test_memory_keeps_what_it_is_told(server_memory: ServerEntry, tmp_path: Path) -> None:
    entity = {"name": "Topaz", "entityType": "apple", "observations": ["keeps until March"]}
    async with connect(server_memory) as client:
        await client.call_tool("create_entities", {"entities": [entity]})
        graph = (await client.call_tool("read_graph", {})).structured_content
    assert graph["entities"] == [entity]
    stored = (tmp_path / "memory.jsonl").read_bytes()
    assert json.loads(stored.splitlines()[0])["name"] == "Topaz"


@pytest.mark.thorough
async def test_time_converts_between_zones(server_time: ServerEntry) -> None:
    arguments = {"source_timezone": "Asia/Tokyo", "time": "09:00", "target_timezone": "UTC"}
    async with connect(server_time) as client:
        converted = json.loads(text(await client.call_tool("convert_time", arguments)))
    assert converted["target"]["datetime"].endswith("T00:00:00+00:00")


@pytest.mark.thorough
async def test_git_shows_the_commits_of_the_fixture(server_git: ServerEntry, git_repository: Path) -> None:
    async with connect(server_git) as client:
        log = text(await client.call_tool("git_log", {"repo_path": str(git_repository), "max_count": 10}))
    positions = [log.index(message) for message in ("Add Topaz", "List two apples", "Add a README")]
    assert positions == sorted(positions)
    assert "Test Author" in log
