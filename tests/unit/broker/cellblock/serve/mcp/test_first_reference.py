"""Which declarations come with a response, with the SDK's client in memory; what is remembered of whom."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest
from mcp import Client
from mcp_types import Implementation

from cellblock.app.assembly import front_config
from cellblock.base.callbacks import Listeners
from cellblock.run.caller import Caller
from cellblock.run.policy.policy import Policy
from cellblock.run.response import RunResponse
from cellblock.serve.mcp import first_reference
from cellblock.serve.mcp.first_reference import FirstReferences
from cellblock.serve.mcp.mcp_server import FrontServer
from cellblock.serve.mcp.use import FILE_NAME
from cellblock.tools.catalog.model import Catalog, ServerEntry, ToolEntry
from cellblock.tools.catalog.outputs import ToolOutput
from cellblock.types.typescript import declare_server
from support.entries import settings
from support.waits import until


class Naming:
    """A broker that runs nothing: the script is the ids of the servers that it imports, apart by commas."""

    def __init__(self, folder: Path, *servers: ServerEntry, **cellblock: Any) -> None:
        made = settings(folder, **cellblock)
        self.front_config = front_config(made)
        self.front_config.state_dir.mkdir(parents=True, exist_ok=True)
        self.policy = Policy(made.cellblock.policy)
        self.watch_catalog = Listeners().add
        self.seen: ToolOutput | None = None
        self.show(*servers)

    def show(self, *servers: ServerEntry) -> None:
        self.catalog = self.known_catalog = Catalog(1, {entry.server_id: entry for entry in servers})

    async def about_to_answer(self) -> None:
        """Nothing connects here."""

    def output_of(self, _server: ServerEntry, _tool: ToolEntry) -> ToolOutput | None:
        return self.seen

    async def run_request(self, request: dict[str, Any], _: Caller, **__: Any) -> RunResponse:
        names = request["code"].split("//")[0].split(",")
        return RunResponse(logs=[], diagnostics=[], servers=tuple(name.strip() for name in names))


def server(server_id: str, *names: str) -> ServerEntry:
    tools = tuple(ToolEntry(name, name, f"Does {name}.", None, {"type": "object"}) for name in names)
    return ServerEntry(server_id, server_id, server_id, tools=tools)


async def brought(client: Client, code: str) -> dict[str, str]:
    result = await client.call_tool("codemode.run", {"code": code})
    assert result.structured_content is not None
    return result.structured_content.get("declarations", {})


async def test_once_for_each_state_of_a_servers_tools(tmp_path: Path) -> None:
    service = Naming(tmp_path, server("a", "one"), server("b", "two"), frontend={"declaration_chars": 0})
    async with Client(FrontServer(service, version="1").open()) as client:  # type: ignore[arg-type]
        assert list(await brought(client, "a")) == ["a"]
        assert await brought(client, "a") == {}
        # Connected anew with the same tools, then with others.
        service.show(server("a", "one"), server("b", "two"))
        assert list(await brought(client, "a,b,gone")) == ["b"]
        service.show(server("a", "one", "more"), server("b", "two"))
        assert "function more(" in (await brought(client, "a,b"))["a"]


@pytest.mark.parametrize(("name", "sees"), [("claude-code", False), ("some-other", True)])
async def test_a_description_shows_declarations_to_those_who_pass_it_on(
    tmp_path: Path, name: str, sees: bool
) -> None:
    service = Naming(tmp_path, server("a", "one"))
    about = Implementation(name=name, version="1")
    async with Client(FrontServer(service, version="1").open(), mode="legacy", client_info=about) as client:  # type: ignore[arg-type]
        [tool] = (await client.list_tools()).tools
        assert 'declare module "@codemode/servers/a"' in (tool.description or "")
        assert list(await brought(client, "a")) == ([] if sees else ["a"])


async def test_what_a_client_has_used_is_declared_first_at_its_next_start(tmp_path: Path) -> None:
    servers = [server(name, *(f"tool_{number}" for number in range(20))) for name in "ab"]
    budget = len(declare_server(servers[1], shared=True)) + 100
    service = Naming(tmp_path, *servers, frontend={"declaration_chars": budget})

    async def told(name: str) -> str:
        about = Implementation(name=name, version="1")
        async with Client(
            FrontServer(service, version="1").open(), mode="legacy", client_info=about
        ) as client:  # type: ignore[arg-type]
            before = await client.list_tools()
            await brought(client, "b" if name == "editor" else "")
            assert (await client.list_tools()).tools == before.tools
            return before.tools[0].description or ""

    assert "function tool_19(" not in await told("editor")
    await until((service.front_config.state_dir / FILE_NAME).exists, "the use is kept")
    assert "function tool_19(" in (await told("editor")).partition("servers/b")[2]
    assert "function tool_19(" not in await told("another")


async def test_what_was_observed_is_in_it(tmp_path: Path) -> None:
    service = Naming(tmp_path, server("a", "one"))
    service.seen = ToolOutput("observed", "Observed from 3 results.", text=True)
    async with Client(FrontServer(service, version="1").open()) as client:  # type: ignore[arg-type]
        text = (await brought(client, "a"))["a"]
    assert "Output: Observed from 3 results." in text and "Promise<string>" in text


async def test_the_budget_is_shared_and_what_the_script_names_comes_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    large = server("large", *(f"tool_{number}" for number in range(60)))
    small = server("small", "one")
    room = len(declare_server(small)) + 1_500
    monkeypatch.setattr(first_reference, "MAX_CHARS", room)
    service = Naming(tmp_path, large, small, frontend={"declaration_chars": 0})
    async with Client(FrontServer(service, version="1").open()) as client:  # type: ignore[arg-type]
        texts = await brought(client, "large,small//tool_57()")
    assert texts["small"] == declare_server(small)
    assert "function tool_57(" in texts["large"] and "function tool_0(" in texts["large"]
    assert "function tool_40(" not in texts["large"] and "codemode://servers/large.d.ts" in texts["large"]
    assert len(texts["large"].partition("// Not declared here")[0]) <= 1_500


async def test_the_memory_of_clients_is_bounded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(first_reference, "MAX_KEPT", 3)
    service = Naming(tmp_path, server("a", "one"))
    references = FirstReferences(service)  # type: ignore[arg-type]

    async def shown(client: str) -> bool:
        return bool(await references.declarations_for(client, service.catalog, ["a"], ""))

    assert [await shown(client) for client in "1234"] == [True] * 4
    assert [await shown(client) for client in "2341"] == [False, False, False, True]
    # Of two runs at once one brings them.
    service.show(server("a", "two"))
    both = await asyncio.gather(shown("4"), shown("4"))
    assert sorted(both) == [False, True]
