"""Runs real MCP clients on what `cellblock install` writes, each in a home of its own that was empty before.

    bash scripts/clients --installed                    every client
    bash scripts/clients --installed codex opencode     only these
    ... --cellblock PATH                                with an installed Cellblock instead of the checkout's

Each has a file of its own with a server in it, a comment and a setting. `cellblock install --take-over` writes it anew;
then the client itself lists its servers, and runs headless with a recorder in place of its model's API
(scripts/clients_model.py), which has it call Cellblock's tool with a script that uses the server. `cellblock connect`,
which the client starts, starts the daemon. On Linux all this has a network that is only a loopback, so that the usual
port is free. Prints Markdown; the seconds are those of `install`, the list and the session.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from clients_model import Model, results_of
from clients_start import CLIENTS, CODE_SERVER, NODE, PLACE, PROMPT, ROOT, SUCCEEDS, WAIT_S, version

Json = dict[str, Any]
HERE: Final = Path(__file__)


@dataclass(frozen=True)
class Installed:
    """How one client is asked for its servers, and run; what it needs of a stand-in comes as options and variables."""

    program: Sequence[str]
    lists: Sequence[str]
    """Its arguments that list servers."""
    runs: Callable[[str], Sequence[str]]
    """Its arguments for one headless session, from the recorder's URL."""
    variables: Callable[[str], Mapping[str, str]]
    """From the recorder's URL."""
    before: tuple[str, str]
    """The user's file, and what it says before, with two words for the server's program and arguments."""
    package: Path | None = None
    """Its npm package, where scripts/clients does not start it otherwise."""
    tells: bool = False
    """Whether its list ends with a line of what a session without a model has got."""


def codex_options(url: str) -> list[str]:
    settings: dict[str, object] = {
        "model": "gpt-5",
        "model_provider": "recorder",
        "approval_policy": "never",
        "features.apps": False,
        "features.plugins": False,
        "model_providers.recorder": None,
        "model_providers.recorder.name": "recorder",
        "model_providers.recorder.base_url": f"{url}/v1",
        "model_providers.recorder.wire_api": "responses",
        "model_providers.recorder.env_key": "RECORDER_KEY",
        "mcp_servers.cellblock.default_tools_approval_mode": "approve",
        "mcp_servers.cellblock.required": True,
    }
    given = [f"{name}={json.dumps(value)}" for name, value in settings.items() if value is not None]
    return [word for one in given for word in ("-c", one)]


def opencode_settings(url: str) -> str:
    provider = {
        "npm": "@ai-sdk/openai-compatible",
        "name": "recorder",
        "options": {"baseURL": f"{url}/v1", "apiKey": "none"},
        "models": {"stand-in": {"name": "stand-in", "tool_call": True}},
    }
    model = "recorder/stand-in"
    return json.dumps(
        {
            "autoupdate": False,
            "share": "disabled",
            "model": model,
            "small_model": model,
            "enabled_providers": ["recorder"],
            "provider": {"recorder": provider},
        }
    )


GEMINI: Final = PLACE / "node" / "node_modules" / "@google" / "gemini-cli"

INSTALLED: Final[dict[str, Installed]] = {
    "claude-code": Installed(
        [str(CLIENTS["claude-code"].place)],
        ["mcp", "list"],
        lambda _: [
            "-p",
            PROMPT,
            "--no-session-persistence",
            "--allowedTools",
            "mcp__cellblock__codemode_run",
        ],
        lambda url: {
            "ANTHROPIC_BASE_URL": url,
            "ANTHROPIC_API_KEY": "none",
            "CLAUDE_CODE_DISABLE_NONESSENTIAL_TRAFFIC": "1",
            "DISABLE_AUTOUPDATER": "1",
        },
        (
            ".claude.json",
            '{\n  "numStartups": 3,\n  "mine": [1],\n'
            '  "mcpServers": { "tracker": { "type": "stdio", "command": COMMAND, "args": ARGS } }\n}\n',
        ),
    ),
    "codex": Installed(
        [str(CLIENTS["codex"].place)],
        ["mcp", "list"],
        lambda url: [
            *("exec", "--skip-git-repo-check", "--ephemeral", "--sandbox", "read-only"),
            *(*codex_options(url), PROMPT),
        ],
        lambda _: {"RECORDER_KEY": "none"},
        (
            ".codex/config.toml",
            "# mine\nhide_agent_reasoning = true # mine, too\n\n"
            "[mcp_servers]\ntracker = { command = COMMAND, args = ARGS }\n",
        ),
    ),
    "opencode": Installed(
        [str(CLIENTS["opencode"].place)],
        ["mcp", "list"],
        lambda _: ["run", PROMPT],
        lambda url: {
            "OPENCODE_CONFIG_CONTENT": opencode_settings(url),
            "OPENCODE_DISABLE_AUTOUPDATE": "1",
            "OPENCODE_DISABLE_MODELS_FETCH": "1",
            "OPENCODE_DISABLE_LSP_DOWNLOAD": "1",
            "OPENCODE_DISABLE_DEFAULT_PLUGINS": "1",
        },
        (
            ".config/opencode/opencode.json",
            '{\n  // mine\n  "snapshot": false,\n'
            '  "mcp": { "tracker": { "type": "local", "command": [COMMAND, ...ARGS] } },\n}\n',
        ),
    ),
    "gemini": Installed(
        [str(NODE), str(GEMINI / "bundle" / "gemini.js")],
        ["mcp", "list"],
        lambda _: ["--yolo", "--skip-trust", "--model", "gemini-2.5-pro", "-p", PROMPT],
        lambda url: {
            "GEMINI_API_KEY": "none",
            "GOOGLE_GEMINI_BASE_URL": url,
            "GEMINI_CLI_TRUST_WORKSPACE": "true",
        },
        (
            ".gemini/settings.json",
            '{\n  // mine\n  "security": { "auth": { "selectedType": "gemini-api-key" } },\n'
            '  "mcpServers": { "tracker": { "command": COMMAND, "args": ARGS } }\n}\n',
        ),
        package=GEMINI,
    ),
    "vscode": Installed(
        [sys.executable, str(HERE.with_name("clients_vscode.py"))],
        [],
        lambda _: [],
        lambda _: {"PYTHONPATH": str(ROOT / "tests")},
        (
            ".config/Code/User/mcp.json",
            '{\n  // mine\n  "inputs": [],\n'
            '  "servers": { "tracker": { "type": "stdio", "command": COMMAND, "args": ARGS } }\n}\n',
        ),
        package=CODE_SERVER,
        tells=True,
    ),
}
"""The clients that can be installed from a registry and run without a window that anybody sees."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Prints the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("clients", nargs="*", metavar="CLIENT", help=f"of {', '.join(INSTALLED)}")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write what was seen, too")
    parser.add_argument("--cellblock", type=Path, default=Path(sys.executable).with_name("cellblock"))
    parser.add_argument("--alone", action="store_true", help=argparse.SUPPRESS)
    parsed = parser.parse_args(arguments)
    if unknown := set(parsed.clients) - set(INSTALLED):
        parser.error(f"unknown: {', '.join(sorted(unknown))}")
    if parsed.alone:
        print(json.dumps(seen(parsed.clients[0], parsed.cellblock)))
        return 0
    found: list[Json] = []
    for name in parsed.clients or INSTALLED:
        print(f"{name} …", file=sys.stderr, flush=True)
        found.append(apart(name, parsed.cellblock))
    if parsed.json:
        parsed.json.write_text(json.dumps(found, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
    report(found)
    whole = [each for each in found if "version" in each]
    fine = all(succeeded(each) and lists_it(each) and each["kept"] for each in whole)
    return 0 if fine and not any("failed" in each for each in found) else 1


def apart(name: str, cellblock: Path) -> Json:
    """What one client did, in a network and a process namespace of its own: nothing of it stays, no daemon either."""
    program = INSTALLED[name].package or Path(INSTALLED[name].program[-1])
    if not program.exists():
        return {"client": name, "skipped": f"it is not installed: there is no {program}"}
    command = [sys.executable, str(HERE), "--alone", "--cellblock", str(cellblock), name]
    if sys.platform == "linux":
        from cellblock_worker.confinement.bubblewrap import find_binary

        options = "--dev-bind / / --proc /proc --unshare-net --unshare-pid --die-with-parent"
        command = [str(find_binary()), *options.split(), *command]
    done = subprocess.run(command, capture_output=True, text=True, timeout=10 * WAIT_S, check=False)
    if done.returncode != 0:
        return {"client": name, "failed": done.stderr.strip()[-2000:]}
    return json.loads(done.stdout.splitlines()[-1])


def seen(name: str, cellblock: Path) -> Json:
    """What one client did with what was written for it."""
    client = INSTALLED[name]
    with tempfile.TemporaryDirectory(prefix="cellblock-installed-") as made, Model([SUCCEEDS]) as model:
        home = Path(made)
        path = f"{cellblock.parent}{os.pathsep}{os.environ['PATH']}"
        environment = {"PATH": path, "LANG": "C.UTF-8", "HOME": made, "DO_NOT_TRACK": "1"}
        environment |= client.variables(model.url)
        environment |= {"HTTPS_PROXY": model.url, "NO_PROXY": "127.0.0.1,localhost"}

        def run(*words: str) -> str:
            done = subprocess.run(
                words,
                cwd=home,
                env=environment,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                text=True,
                timeout=4 * WAIT_S,
                check=False,
            )
            return done.stdout

        mine, before = home / client.before[0], client.before[1]
        mine.parent.mkdir(parents=True, exist_ok=True)
        program, arguments = json.dumps(sys.executable), '"-m", "cellblock.app.cli.demo.tracker"'
        filled = before.replace("COMMAND", program).replace("...ARGS", arguments)
        mine.write_text(filled.replace("ARGS", f"[{arguments}]"), encoding="utf-8")
        started = time.monotonic()
        command = ["cellblock", "install", name, "--take-over", "--secrets", "environment"]
        run(*command, "--yes")
        after = mine.read_text(encoding="utf-8")
        kept = all(line.strip(" ,") in after for line in before.splitlines() if "COMMAND" not in line)
        listed = run(*client.program, *client.lists)
        said = listed if client.tells else run(*client.program, *client.runs(model.url))
        took = time.monotonic() - started
        ran = next((each["text"] for shown in model.shown() for each in results_of(shown)), "")
        if client.tells:
            last = said.strip().rpartition("\n")[2]
            ran = json.loads(last)["text"] if last.startswith("{") else ""
        logs = [file.read_text() for file in home.glob(".local/state/cellblock/logs/daemon.log")]
        return {
            "client": name,
            "version": package_version(client.package) if client.package else version(CLIENTS[name]),
            "command": " ".join(command),
            "file": client.before[0],
            "kept": kept and "cellblock" in after and "tracker" not in after,
            "listed": listed,
            "said": said,
            "ran": ran,
            "daemon": logs,
            "seconds": round(took, 1),
        }


def package_version(package: Path) -> str:
    """The version of an npm package."""
    return json.loads((package / "package.json").read_text(encoding="utf-8"))["version"]


def succeeded(each: Json) -> bool:
    """Whether the script's result reached the client's model."""
    return '"total":30' in each["ran"].replace(" ", "")


def lists_it(each: Json) -> bool:
    """Whether the client's own list has Cellblock, connected or enabled."""
    lines = re.findall(r"^\W*cellblock\b.*", re.sub(r"\x1b\[[0-9;]*m", "", each["listed"]), re.M)
    return any(re.search(r"connected|enabled|running", line, re.I) for line in lines)


def report(found: list[Json]) -> None:
    """Prints what was seen as Markdown."""
    print("| client | file | all else in it | the client lists it | a script through it | seconds |")
    print("|---|---|---|---|---|---|")
    for each in found:
        if "version" not in each:
            print(f"| {each['client']} | {each.get('skipped') or each['failed']!r} | | | | |")
            continue
        cells = [
            f"{each['client']} {each['version']}",
            f"`~/{each['file']}`",
            "kept" if each["kept"] else "changed",
            "yes" if lists_it(each) else "no",
            "ran" if succeeded(each) else "did not run",
            str(each["seconds"]),
        ]
        print(f"| {' | '.join(cells)} |")


if __name__ == "__main__":
    sys.exit(main())
