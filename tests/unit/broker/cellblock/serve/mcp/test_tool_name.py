"""What the tool is called for whom, and what a failed run looks like, with the SDK's client in memory."""

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import mcp_types as types
import pytest
from mcp import Client, MCPError

from cellblock.app.cli.importing.known import CLIENTS
from cellblock.base.settings.settings import FrontendSettings
from cellblock.run.policy.asking import Caller
from cellblock.run.response import Diagnostic, RunResponse
from cellblock.serve.mcp.mcp_server import FrontServer
from cellblock.serve.mcp.tool_name import PLAIN_NAME, TOOL_NAME, WITH_DOTS, WITHOUT_DOTS, tool_name_for
from support.documents import ROOT
from support.entries import settings
from support.standing_service import StandingService
from support.waits import within


class Answering(StandingService):
    """Fails at every script but `fine`."""

    async def run_request(self, raw: Mapping[str, Any], _: Caller, **__: Any) -> RunResponse:
        warning = Diagnostic(severity="warning", code="CALLS_NOT_AWAITED", message="w")
        failed = Diagnostic(severity="error", code="UNCAUGHT_EXCEPTION", message="no")
        found = [warning] if raw["code"] == "fine" else [warning, failed]
        return RunResponse(logs=[], diagnostics=found)


def client(service: Any, name: str = "someone", mode: Any = "legacy") -> Client:
    return Client(
        FrontServer(service, version="1").open(),
        mode=mode,
        client_info=types.Implementation(name=name, version="1"),
    )


@pytest.mark.parametrize("mode", ["legacy", "auto"])
@pytest.mark.parametrize(
    ("frontend", "name", "shown"),
    [
        ({}, "someone", TOOL_NAME),
        ({}, "mcp", TOOL_NAME),
        ({}, "claude-ai", PLAIN_NAME),
        ({}, "Visual Studio Code", PLAIN_NAME),
        ({}, "JetBrains-IU/copilot-intellij", PLAIN_NAME),
        ({"tool_name": "codemode.run"}, "claude-ai", TOOL_NAME),
        ({"tool_name": "codemode_run"}, "someone", PLAIN_NAME),
        ({"profile": "strict", "tool_name": "codemode_run"}, "claude-ai", TOOL_NAME),
    ],
)
async def test_the_name_is_the_clients_and_both_are_taken(
    tmp_path: Path, frontend: dict[str, Any], name: str, shown: str, mode: str
) -> None:
    async with client(Answering(settings(tmp_path, frontend=frontend)), name, mode) as one:
        (tool,) = (await within(one.list_tools())).tools
        assert tool.name == shown
        assert (await within(one.call_tool(TOOL_NAME, {"code": "fine"}))).structured_content is not None
        if frontend.get("profile") == "strict":
            with pytest.raises(MCPError, match=r"only tool is codemode\.run"):
                await within(one.session.call_tool(PLAIN_NAME, {"code": "fine"}))
        else:
            assert (await within(one.call_tool(PLAIN_NAME, {"code": "fine"}))).structured_content is not None
        with pytest.raises(MCPError):
            await within(one.session.call_tool("run", {"code": "fine"}))


INSTALLED = {
    "claude-code": ["claude-code"],
    "claude-desktop": ["claude-ai"],
    "cursor": ["cursor-vscode", "Cursor"],
    "vscode": [
        *("Visual Studio Code", "Visual Studio Code - Insiders", "Visual-Studio-Code"),
        *("VSCodium", "VSCodium - Insiders", "Code - OSS", "code-server"),
    ],
    "codex": ["codex-mcp-client"],
    "gemini": ["gemini-cli-mcp-client"],
    "windsurf": ["windsurf-client", "Windsurf"],
    "zed": ["Zed"],
    "opencode": ["opencode"],
    "goose": ["goose", "goose-cli", "goose-desktop"],
}
"""Maps the clients that `install` knows to what they call themselves."""


def test_a_name_is_decided_for_each_client_that_can_be_installed() -> None:
    assert INSTALLED.keys() == CLIENTS.keys()
    for client_names in INSTALLED.values():
        for name in client_names:
            assert (name.lower() in WITHOUT_DOTS) != (name.lower() in WITH_DOTS), name
            assert tool_name_for(name, FrontendSettings()) == (
                TOOL_NAME if name.lower() in WITH_DOTS else PLAIN_NAME
            )


def test_the_table_is_documented_with_sources() -> None:
    page = (ROOT / "docs" / "clients.md").read_text("utf-8")
    section = page.partition("### What the tool is called")[2].partition("\n#")[0]
    rows = [line for line in section.splitlines() if line.startswith("| `")]
    documented = {name.lower(): row for row in rows for name in re.findall(r"`([^`]+)`", row.split(" | ")[0])}
    assert set(documented) == {*WITHOUT_DOTS, *WITH_DOTS, "…/copilot-intellij"}
    assert all("](https://" in row for row in documented.values())
    assert tool_name_for("", FrontendSettings()) == TOOL_NAME


@pytest.mark.parametrize(("setting", "marked"), [("never", False), ("diagnostics", True)])
async def test_a_failed_run_begins_with_its_error(tmp_path: Path, setting: str, marked: bool) -> None:
    async with client(Answering(settings(tmp_path, frontend={"is_error": setting}))) as one:
        failed = await within(one.call_tool(TOOL_NAME, {"code": "fails"}))
        (text,) = failed.content
        assert isinstance(text, types.TextContent)
        assert text.text.startswith("error UNCAUGHT_EXCEPTION")
        assert next(iter(failed.structured_content or {})) == "diagnostics"
        assert failed.is_error is marked
        fine = await within(one.call_tool(TOOL_NAME, {"code": "fine"}))
        assert next(iter(fine.structured_content or {})) == "logs" and not fine.is_error
