"""The set-ups in which a model is given the same servers: what each shows, and its calls."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any, Final

from mcp import Client, StdioServerParameters
from mcp_types import TextContent

from benchmarks.harness import ROOT
from cellblock.run.results import result_text

ARMS: Final = ("direct", "cellblock", "fastmcp", "proxy")
CODE_MODE: Final = Path(__file__).with_name("code_mode.py")
FASTMCP: Final = ROOT / ".servers/peers/fastmcp/venv/bin/python"
SCRIPTED: Final = {"cellblock": ("codemode_run", "script"), "fastmcp": ("execute", "python")}
"""Names the tools that run a task's own script, and where that is in the task."""


class Arm:
    """What clients of some servers show a model, and do for it."""

    def __init__(self) -> None:
        self._places: dict[str, tuple[Client, str]] = {}
        self.tools: list[dict[str, Any]] = []

    async def add(self, prefix: str, client: Client) -> None:
        """Adds a server's tools, with this before their names."""
        for tool in (await client.list_tools()).tools:
            shown = {"description": tool.description or "", "input_schema": tool.input_schema}
            self.tools.append({"name": f"{prefix}{tool.name}", **shown})
            self._places[f"{prefix}{tool.name}"] = client, tool.name

    async def call(self, name: str, arguments: dict[str, Any]) -> tuple[str, str, bool]:
        """The text of a call's answer, what of it is the result, and whether it has failed."""
        if name not in self._places:
            return f"There is no tool {name}.", "", True
        client, own = self._places[name]
        result = await client.call_tool(own, arguments)
        text = "\n".join(
            one.text if isinstance(one, TextContent) else f"[{one.type}]" for one in result.content
        )
        # Beside its result, a script's answer has what a reader should see.
        of_script = result.structured_content if name == SCRIPTED["cellblock"][0] else None
        return text, result_text(of_script["result"]) if of_script else text, result.is_error


@contextlib.asynccontextmanager
async def opened(name: str, servers: dict[str, Any], folder: Path) -> AsyncGenerator[Arm]:
    """Gives an arm over these servers; its own files are in a folder, among them what a broker keeps for longer."""
    file, arm = folder / f"{name}.json", Arm()
    configured: dict[str, Any] = {"mcpServers": servers}
    if name != "fastmcp":
        # A client that asks early is told of later tools, which these do not wait for.
        configured["cellblock"] = {
            "frontend": {"tool_name": "codemode_run", "is_error": "diagnostics"},
            "upstream": {"list_wait_ms": 30_000},
        }
    file.write_text(json.dumps(configured), "utf-8")
    serve = ["-m", "cellblock", "serve", "--stdio", "--config", str(file), "--state-dir", str(folder / name)]
    entries: dict[str, dict[str, Any]] = {"": {"command": sys.executable, "args": serve}}
    if name == "direct":
        entries = {f"{server}__": entry for server, entry in servers.items()}
    elif name == "fastmcp":
        entries[""] = {"command": str(FASTMCP), "args": [str(CODE_MODE), str(file)]}
    elif name == "proxy":
        serve += ["--profile", "proxy"]
    async with contextlib.AsyncExitStack() as stack:
        for prefix, entry in entries.items():
            await arm.add(
                prefix, await stack.enter_async_context(Client(StdioServerParameters.model_validate(entry)))
            )
        yield arm
