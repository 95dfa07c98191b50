"""What the conformance tests share: the servers that scripts meet, and short ways to run a script."""

import json
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import mcp_types as types
from mcp import Client

from cellblock import Broker, RunResponse, tool
from support.asking_client import stdio
from support.brokers import ready
from support.entries import SERVERS, WARM, Entry, entry, forked_server, settings, write_config
from support.responses import succeeded
from support.reused import Tally, reusing
from support.waits import within

USED: Final = 0.2
"""Of all runs with `--reuse`, at least so many have a used process. Some scripts cannot, some end theirs, and on a busy
machine the next context is often not made in time: then a run has a fresh process."""

CONTRACT_TOOLS: Final[dict[str, dict[str, Any]]] = {
    row["tool"]["name"]: row
    for row in json.loads((SERVERS / "contract_tools.json").read_text(encoding="utf-8"))
}
"""The rows of the contract server by tool name: `tool` (raw definition), `answer` (raw result)."""

CONTRACT: Final = 'import * as contract from "@codemode/servers/contract";\n'
"""Line 1 of most scripts."""

CAUGHT: Final = """
const caught = async (work) => {
  try { return { returned: await work() }; } catch (error) {
    const { name, message, hint, toolName, exportName, path, expected, received, example, serverId } = error;
    return { name, message, hint, toolName, exportName, path, expected, received, example, serverId };
  }
};
"""
"""JavaScript: `await caught(() => …)` gives the fields of what was thrown."""


def words(text: str) -> list[str]:
    """The words of a long list."""
    return text.split()


def contract_server(*args: object) -> Entry:
    """The `mcpServers` entry of `servers/contract_server.py`."""
    return entry(forked_server("contract_server.py", *args))


@tool()
def add(a: int, b: int = 1) -> int:
    """Adds two numbers."""
    return a + b


@tool()
def shout(text: str) -> dict[str, str]:
    """Gives the text in capitals."""
    return {"text": text.upper()}


@tool()
def explode(text: str) -> str:
    """Raises an exception with the text."""
    raise ValueError(text)


LOCAL_TOOLS: Final = (add, shout, explode)


@asynccontextmanager
async def broker_with(
    folder: Path, servers: Mapping[str, Any], *, tools: Sequence[Any] = (), **cellblock: Any
) -> AsyncIterator[Broker]:
    """A broker whose servers have all been tried once."""
    async with ready(settings(folder, servers, **cellblock), tools=tools) as broker:
        with reusing(USED, broker):
            yield broker


@dataclass(frozen=True, slots=True)
class Agent:
    """An MCP client of `cellblock serve --stdio`, which is all that an agent has."""

    client: Client
    tally: Tally

    async def call(self, arguments: dict[str, Any]) -> types.CallToolResult:
        """The result of `codemode.run` as the client has it."""
        result = await within(self.client.call_tool("codemode.run", arguments))
        self.tally.take(result.structured_content or {})
        return result

    async def run(self, code: str, **more: Any) -> dict[str, Any]:
        """The response to a request that is well-formed."""
        result = await self.call({"code": code, **more})
        assert not result.is_error, result
        assert isinstance(result.structured_content, dict)
        return result.structured_content


@asynccontextmanager
async def agent_with(folder: Path, servers: Mapping[str, Any], **cellblock: Any) -> AsyncIterator[Agent]:
    """An agent whose Cellblock has these servers."""
    config = write_config(folder, servers, pool={"warm": WARM}, **cellblock)
    async with Client(stdio(config, folder / "state")) as client:
        with reusing(USED) as tally:
            yield Agent(client, tally)


async def run(broker: Broker, code: str, **limits: int) -> RunResponse:
    """Runs a script; the wait is bounded."""
    return await within(broker.run(code, limits=limits or None))


async def value(broker: Broker, code: str, **limits: int) -> Any:
    """The result of a script that must not fail."""
    return succeeded(await run(broker, code, **limits))


async def evaluated(broker: Broker, expression: str, before: str = "") -> Any:
    """The JSON value of an expression, after some statements."""
    return await value(broker, f"{before}\nglobalThis.__codemode_result__ = {expression};")
