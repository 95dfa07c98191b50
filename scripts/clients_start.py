"""How scripts/clients starts each client: headless, in a home of its own, with updates and telemetry switched off."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).resolve().parent.parent
PLACE: Final = ROOT / ".clients"
CODE_SERVER: Final = PLACE / "code-server" / "node_modules" / "code-server"
PROMPT: Final = "Which issues are open?"
WAIT_S: Final = 90.0
SUCCEEDS: Final = """import { list_issues } from "@codemode/servers/tracker";
const { total } = await list_issues({ status: "open" });
globalThis.__codemode_result__ = { total };"""


@dataclass(frozen=True)
class Session:
    """One session of one client: its folder and the address of the stand-in for the model."""

    folder: Path
    model_url: str
    scripts: tuple[str, ...]
    """What a client without a model runs itself."""

    @property
    def sent(self) -> Path:
        """What the client wrote to Cellblock, a message a line."""
        return self.folder / "sent.jsonl"

    @property
    def received(self) -> Path:
        """What Cellblock wrote to the client, a message a line."""
        return self.folder / "received.jsonl"

    def server(self) -> tuple[str, list[str]]:
        """The command of Cellblock with its demo's servers, both directions kept."""
        config = self.folder / "cellblock.json"
        servers = {"tracker": {"command": sys.executable, "args": ["-m", "cellblock.app.cli.demo.tracker"]}}
        extra = {"tools": ["cellblock.app.cli.demo.show"]}
        config.write_text(json.dumps({"mcpServers": servers, "cellblock": extra}), encoding="utf-8")
        serve = [sys.executable, "-m", "cellblock.cli", "serve", "--stdio", "--config", str(config)]
        serve += ["--state-dir", str(self.folder / "state")]
        sent, received = shlex.quote(str(self.sent)), shlex.quote(str(self.received))
        return "/bin/sh", ["-c", f"tee {sent} | {shlex.join(serve)} | tee {received}"]

    def run(self, command: list[str], **more: str) -> str:
        """Runs the client to its end and returns what it printed."""
        home = self.folder / "home"
        home.mkdir()
        environment = {name: os.environ[name] for name in ("PATH", "LANG", "TMPDIR") if name in os.environ}
        environment |= {"HOME": str(home), "DO_NOT_TRACK": "1", **more}
        # Whatever else a client wants of the network it asks the recorder for, which refuses it and keeps its name.
        environment |= {"HTTPS_PROXY": self.model_url, "NO_PROXY": "127.0.0.1,localhost"}
        done = subprocess.run(
            command,
            cwd=home,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            timeout=WAIT_S,
            check=False,
        )
        return done.stdout


def claude_code(session: Session) -> str:
    command, arguments = session.server()
    config = session.folder / "mcp.json"
    config.write_text(json.dumps({"mcpServers": {"cellblock": {"command": command, "args": arguments}}}))
    options = ["--strict-mcp-config", "--mcp-config", str(config), "--no-session-persistence"]
    options += ["--allowedTools", "mcp__cellblock__codemode_run", "mcp__cellblock__codemode.run"]
    return session.run(
        [str(native("@anthropic-ai/claude-code-*/claude")), "-p", PROMPT, *options],
        ANTHROPIC_BASE_URL=session.model_url,
        ANTHROPIC_API_KEY="none",
        CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC="1",
        DISABLE_AUTOUPDATER="1",
        DISABLE_TELEMETRY="1",
        DISABLE_ERROR_REPORTING="1",
    )


def codex(session: Session) -> str:
    command, arguments = session.server()
    home = session.folder / "codex"
    home.mkdir()
    settings: dict[str, object] = {
        "model": "gpt-5",
        "model_provider": "recorder",
        "approval_policy": "never",
        "check_for_update_on_startup": False,
        "analytics.enabled": False,
        "feedback.enabled": False,
        "features.apps": False,
        "features.plugins": False,
        "model_providers.recorder.name": "recorder",
        "model_providers.recorder.base_url": f"{session.model_url}/v1",
        "model_providers.recorder.wire_api": "responses",
        "model_providers.recorder.env_key": "RECORDER_KEY",
        "mcp_servers.cellblock.command": command,
        "mcp_servers.cellblock.args": arguments,
        "mcp_servers.cellblock.default_tools_approval_mode": "approve",
        "mcp_servers.cellblock.startup_timeout_sec": WAIT_S,
        "mcp_servers.cellblock.required": True,  # or the first request does not wait for it
    }
    # A JSON text, list, number or boolean is the same in TOML.
    lines = [f"{name} = {json.dumps(value)}\n" for name, value in settings.items()]
    (home / "config.toml").write_text("".join(lines), encoding="utf-8")
    program = native("@openai/codex-*/vendor/*/bin/codex")
    options = ["--skip-git-repo-check", "--ephemeral", "--sandbox", "read-only"]
    return session.run([str(program), "exec", *options, PROMPT], CODEX_HOME=str(home), RECORDER_KEY="none")


def opencode(session: Session) -> str:
    command, arguments = session.server()
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "recorder",
        "options": {"baseURL": f"{session.model_url}/v1", "apiKey": "none"},
        "models": {"stand-in": {"name": "stand-in", "tool_call": True}},
    }
    settings = {
        "$schema": "https://opencode.ai/config.json",
        "autoupdate": False,
        "share": "disabled",
        "model": "recorder/stand-in",
        "small_model": "recorder/stand-in",
        "enabled_providers": ["recorder"],
        "provider": {"recorder": provider},
        "mcp": {
            "cellblock": {"type": "local", "command": [command, *arguments], "timeout": int(WAIT_S * 1000)}
        },
    }
    config = session.folder / "opencode.json"
    config.write_text(json.dumps(settings), encoding="utf-8")
    return session.run(
        [str(native("opencode-*/bin/opencode")), "run", PROMPT],
        OPENCODE_CONFIG=str(config),
        OPENCODE_DISABLE_AUTOUPDATE="1",
        OPENCODE_DISABLE_MODELS_FETCH="1",
        OPENCODE_DISABLE_LSP_DOWNLOAD="1",
        OPENCODE_DISABLE_DEFAULT_PLUGINS="1",
    )


def program(name: str, interpreter: Path) -> Callable[[Session], str]:
    """A client that is a library: a short program in tests/clients/programs uses it."""

    def start(session: Session) -> str:
        command, arguments = session.server()
        asked = json.dumps(
            {"command": command, "args": arguments, "scripts": session.scripts, "prompt": PROMPT}
        )
        return session.run(
            [str(interpreter), str(ROOT / "tests" / "clients" / "programs" / name), asked],
            CLIENTS_NODE=str(PLACE / "node"),
            OPENAI_BASE_URL=f"{session.model_url}/v1",
            OPENAI_API_KEY="none",
            OPENAI_AGENTS_DISABLE_TRACING="1",
        )

    return start


def native(pattern: str) -> Path:
    """A file of an npm package; the pattern leaves the platform open."""
    modules = PLACE / "node" / "node_modules"
    return next(iter(sorted(modules.glob(pattern))), modules / pattern)


@dataclass(frozen=True)
class Client:
    """One client: where its version is, and how it is started."""

    package: str
    """The name in its registry."""
    place: Path
    """The program that runs it; it is there when the client is installed."""
    start: Callable[[Session], str]


def library(package: str, venv: str, name: str) -> Client:
    """A client from PyPI, in a venv of its own: each wants its own version of the SDK."""
    python = PLACE / venv / "bin" / "python"
    return Client(package, python, program(name, python))


NODE: Final = PLACE / "node" / "bin" / "node"

CLIENTS: Final = {
    "claude-code": Client(
        "@anthropic-ai/claude-code", native("@anthropic-ai/claude-code-*/claude"), claude_code
    ),
    "codex": Client("@openai/codex", native("@openai/codex-*/vendor/*/bin/codex"), codex),
    "opencode": Client("opencode-ai", native("opencode-*/bin/opencode"), opencode),
    "openai-agents": library("openai-agents", "agents", "openai_agents.py"),
    "python-sdk-v1": library("mcp", "sdk1", "python_sdk_v1.py"),
    "fastmcp": library("fastmcp", "fastmcp", "fastmcp_client.py"),
    "typescript-sdk": Client(
        "@modelcontextprotocol/sdk",
        native("@modelcontextprotocol/sdk/package.json"),
        program("typescript_sdk.mjs", NODE),
    ),
}


def version(client: Client) -> str:
    """The installed version of a client."""
    manifest = PLACE / "node" / "node_modules" / client.package / "package.json"
    if manifest.exists() and PLACE / "node" in client.place.parents:
        return json.loads(manifest.read_text(encoding="utf-8"))["version"]
    ask = f"from importlib.metadata import version; print(version({client.package!r}))"
    return subprocess.check_output([str(client.place), "-c", ask], text=True).strip()
