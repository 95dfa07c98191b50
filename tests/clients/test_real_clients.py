"""What real clients show their models of Cellblock: those that `bash scripts/clients` has installed."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from support.browser import browser_path

ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.skipif(
    not (ROOT / ".clients" / "stamp").exists(),
    reason="the clients are not installed: run `bash scripts/clients`",
)

# The client, what it calls itself, and what its model sees: the tool's name, and the part of a result.
AGENTS = {
    "claude-code": ("claude-code", "mcp__cellblock__codemode_run", "structured content"),
    "codex": ("codex-mcp-client", "codemode_run", "structured content"),
    "opencode": ("opencode", "cellblock_codemode_run", "text"),
    "openai-agents": ("mcp", "codemode.run", "text"),
    "python-sdk-v1": ("mcp", "codemode.run", "both"),
    "fastmcp": ("mcp", "codemode.run", "both"),
    "typescript-sdk": ("my-agent", "codemode.run", "both"),
}


@pytest.mark.timeout(300)
@pytest.mark.parametrize("client", AGENTS)
def test_what_the_model_of_a_real_client_sees(client: str, tmp_path: Path) -> None:
    seen = session_of(client, tmp_path / "seen.json")
    name, tool, part = AGENTS[client]
    assert (seen["name"], seen["tool"]) == (name, tool)
    # Every server with every function is named in what the first request shows, and the opening is whole.
    assert {server: len(functions) for server, functions in seen["servers"].items()} == {
        "tracker": 4,
        "local": 2,
    }
    arrived, sent = seen["description"]
    assert arrived == sent or (client == "claude-code" and arrived >= 2000)
    assert seen["schema"]["required"] == ["code"]
    # The Agents SDK passes no server's instructions on.
    assert seen["instructions"][0] == (0 if client == "openai-agents" else seen["instructions"][1])
    succeeded, failed = seen["results"]
    assert (succeeded["form"], failed["form"]) == (part, part)
    assert '"total":30' in succeeded["text"].replace(" ", "")
    # A failed run is no error of the tool, so it must be read, and is the first that is read.
    assert not failed["error"]
    assert failed["text"].index("There is no issue 9999") < 250


VSCODE = pytest.param(
    "vscode",
    marks=pytest.mark.skipif(
        browser_path() is None or not (ROOT / ".clients" / "code-server" / "stamp").exists(),
        reason="it needs a Chromium, and `bash scripts/clients --installed vscode` has to build it",
    ),
)


@pytest.mark.timeout(600)
@pytest.mark.parametrize("client", ["claude-code", "codex", "opencode", "gemini", VSCODE])
def test_a_client_runs_a_script_on_what_install_has_written(client: str, tmp_path: Path) -> None:
    file = tmp_path / "seen.json"
    command = [sys.executable, str(ROOT / "scripts" / "clients_installed.py"), client, "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=580, check=False)
    (seen,) = json.loads(file.read_text(encoding="utf-8"))
    # It lists Cellblock, what was in its file is there, and the script's result has reached its model.
    assert done.returncode == 0, (seen, done.stderr)
    # By `connect`, which has started the daemon with the user's own configuration.
    (log,) = seen["daemon"]
    assert "serving http://127.0.0.1:7433/mcp" in log


def session_of(client: str, file: Path) -> dict[str, Any]:
    command = [sys.executable, str(ROOT / "scripts" / "clients.py"), client, "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=280, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return json.loads(file.read_text(encoding="utf-8"))[0]
