"""What real clients show their models of Cellblock: those that `bash scripts/clients` has installed. And Codex with a
code mode of its own: what each way to use Cellblock there sends to its model, for docs/clients.md.

python -m pytest -s tests/clients/test_real_clients.py -k code_mode        prints the rows of the table
"""

import json
import shlex
import subprocess
import sys
import tomllib
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

import clients_model
from benchmarks.evals.world import TASKS, servers_in
from benchmarks.tokens import Tokens
from clients_model import Model, run_tool, tools_of
from clients_start import CLIENTS, Session, native
from support.browser import browser_path

ROOT = Path(__file__).parents[2]
needs_clients = pytest.mark.skipif(
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


@needs_clients
@pytest.mark.timeout(300)
@pytest.mark.parametrize("client", AGENTS)
def test_what_the_model_of_a_real_client_sees(client: str, tmp_path: Path) -> None:
    seen = seen_by(client, "clients.py", tmp_path, 280)
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


@needs_clients
@pytest.mark.timeout(600)
@pytest.mark.parametrize("client", ["claude-code", "codex", "opencode", "gemini", VSCODE])
def test_a_client_runs_a_script_on_what_install_has_written(client: str, tmp_path: Path) -> None:
    # It lists Cellblock, what was in its file is there, and the script's result has reached its model.
    seen = seen_by(client, "clients_installed.py", tmp_path, 580)
    # By `connect`, which has started the daemon with the user's own configuration.
    (log,) = seen["daemon"]
    assert "serving http://127.0.0.1:7433/mcp" in log


def seen_by(client: str, script: str, folder: Path, bound: int) -> dict[str, Any]:
    """What a script of `scripts` writes down of one client's session."""
    file = folder / "seen.json"
    command = [sys.executable, str(ROOT / "scripts" / script), client, "--json", str(file)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=bound, check=False)
    assert done.returncode == 0, (file.exists() and file.read_text("utf-8"), done.stdout, done.stderr)
    (seen,) = json.loads(file.read_text(encoding="utf-8"))
    return seen


Json = dict[str, Any]
SCRIPT = next(
    task["script"]
    for task in tomllib.loads(TASKS.read_text("utf-8"))["task"]
    if task["name"] == "swedish-regulars"
)
INSIDE = (
    f"text((await tools.mcp__cellblock__codemode_run({{ code: {json.dumps(SCRIPT)} }})).content[0].text);"
)
ITSELF = """
const every = async (list) => {
  const all = [];
  for (let cursor; ;) {
    const page = (await list(cursor ? { cursor } : {})).structuredContent;
    all.push(...page.data);
    if (!(cursor = page.next_cursor)) return all;
  }
};
const count = {};
const orders = await every(tools.mcp__cellblock__mcp__shop__list_orders);
for (const one of orders) count[one.customer] = (count[one.customer] ?? 0) + 1;
const customers = await every(tools.mcp__cellblock__mcp__shop__list_customers);
text(customers.filter((one) => one.country === "SE" && count[one.id] === 3).length);
"""
LISTS = """
import json, sys
for line in sys.stdin:
    asked = json.loads(line)
    info = {"serverInfo": {"name": "recorded", "version": "1"}, "capabilities": {"tools": {}}}
    result = {"tools": json.load(open(sys.argv[1]))["tools"]}
    if asked["method"] == "initialize":
        result = {**info, "protocolVersion": asked["params"]["protocolVersion"]}
    if "id" in asked:
        print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
"""


@dataclass(frozen=True)
class World(Session):
    """A session over the servers of the evals, and `more` tools of recorded lists."""

    profile: str = ""
    more: bool = False

    def server(self) -> tuple[str, list[str]]:
        world = self.folder / "world"
        world.mkdir()
        servers = servers_in(world)
        for file in sorted((ROOT / "tests/fixtures/catalogs").glob("*.json")) if self.more else ():
            servers[file.stem] = {"command": sys.executable, "args": ["-I", "-c", LISTS, str(file)]}
        config = self.folder / "cellblock.json"
        waits = {"upstream": {"list_wait_ms": 60_000}}
        config.write_text(json.dumps({"mcpServers": servers, "cellblock": waits}), "utf-8")
        serve = [sys.executable, "-m", "cellblock.cli", "serve", "--stdio", "--config", str(config)]
        serve += [
            "--state-dir",
            str(self.folder / "state"),
            *(["--profile", "proxy"] if self.profile else []),
        ]
        return "/bin/sh", ["-c", f"exec {shlex.join(serve)}"]


class Once(Model):
    """Calls the first tool once, or Cellblock's."""

    def turn(self, body: Json) -> Json:
        if len(self.requests) > 1:
            return {}
        tool = run_tool(body) or next(tools_of(body))
        arguments: Json = {"code": SCRIPT}
        return {"id": "call_0", "name": tool["name"], "namespace": tool["namespace"], "arguments": arguments}


def sent_by_codex(
    folder: Path,
    patch: pytest.MonkeyPatch,
    says: str,
    settings: Json,
    *,
    profile: str = "",
    more: bool = False,
) -> tuple[int, int, str]:
    """The requests and the tokens that Codex sends for one task, and what came back: its model calls Cellblock's tool
    directly, or says `says` to the client's own `exec`."""
    folder.mkdir()
    plain: Callable[[Json], tuple[Json, list[Json]]] = clients_model._responses  # pyright: ignore[reportPrivateUsage]

    def responses(call: Json) -> tuple[Json, list[Json]]:
        said = json.dumps(plain(call))
        if says and call:
            call_item = json.dumps(plain(call)[0]["output"][0])
            custom = {"type": "custom_tool_call", "call_id": call["id"], "name": "exec", "input": says}
            said = said.replace(call_item, json.dumps({**custom, "id": "ctc_1", "status": "completed"}))
        whole, events = json.loads(said)
        return whole, events

    patch.setattr(clients_model, "_responses", responses)
    with Once([SCRIPT]) as model:
        session = World(folder, model.url, (), profile, more)
        home = folder / "codex"
        home.mkdir()
        command, arguments = session.server()
        provider = "model_providers.recorder."
        every: Json = {
            "model": "gpt-5",
            "model_provider": "recorder",
            "approval_policy": "never",
            "features.apps": False,
            "features.plugins": False,
            f"{provider}name": "recorder",
            f"{provider}base_url": f"{model.url}/v1",
            f"{provider}wire_api": "responses",
            f"{provider}env_key": "RECORDER_KEY",
            "mcp_servers.cellblock.command": command,
            "mcp_servers.cellblock.args": arguments,
            "mcp_servers.cellblock.default_tools_approval_mode": "approve",
            "mcp_servers.cellblock.startup_timeout_sec": 90,
            "mcp_servers.cellblock.required": True,
            **settings,
        }
        lines = [f"{name} = {json.dumps(value)}\n" for name, value in every.items()]
        (home / "config.toml").write_text("".join(lines), "utf-8")
        program = [str(native("@openai/codex-*/vendor/*/bin/codex")), "exec", "--skip-git-repo-check"]
        program += ["--ephemeral", "--sandbox", "read-only", "How many?"]
        session.run(program, CODEX_HOME=str(home), RECORDER_KEY="none")
    bodies = [each["body"] for each in model.requests if each["path"].endswith("/responses")]
    count = Tokens("o200k_base")
    sent = sum(count(json.dumps([body["tools"], body["input"], body.get("instructions")])) for body in bodies)
    return len(bodies), sent, json.dumps(bodies[-1]["input"][-1])


ONLY: Json = {"features.code_mode_only": True}
OUTSIDE: Json = {**ONLY, "features.code_mode.direct_only_tool_namespaces": ["mcp__cellblock"]}


@pytest.mark.timeout(300)
@pytest.mark.skipif(
    not CLIENTS["codex"].place.exists(), reason="Codex is not installed: run `bash scripts/clients`"
)
def test_what_codex_sends_with_its_code_mode(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    sent: dict[tuple[str, bool], int] = {}
    for more in (False, True):
        for way, says, settings, profile in (
            ("no code mode", "", {}, ""),
            ("inside", INSIDE, ONLY, ""),
            ("outside", "", OUTSIDE, ""),
            ("proxy", ITSELF, ONLY, "proxy"),
        ):
            folder = tmp_path / f"{way}-{more}"
            requests, sent[way, more], answer = sent_by_codex(
                folder, monkeypatch, says, settings, profile=profile, more=more
            )
            monkeypatch.undo()
            assert requests == 2 and "10" in answer, answer
            print(f"{way}, {'245' if more else '31'} tools: {sent[way, more]:,} tokens")
    for more in (False, True):
        assert sent["inside", more] == pytest.approx(sent["outside", more], rel=0.02)
    # Few tools cost the same one by one; many cost what the description of Cellblock's tool is short of.
    assert sent["proxy", False] == pytest.approx(sent["outside", False], rel=0.1)
    assert sent["proxy", True] > 2 * sent["outside", True]
