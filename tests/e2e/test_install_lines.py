"""README's lines that install Cellblock, on the system's own Python in an empty home, until a client gets an answer."""

import json
import os
import shutil
import subprocess
from pathlib import Path
from subprocess import PIPE
from typing import Any

import pytest

from cellblock_worker.confinement.bubblewrap import find_binary
from support.documents import ROOT, examples, statements

pytestmark = [pytest.mark.thorough, pytest.mark.timeout(900)]

SCRIPT = (
    'import { list_issues } from "@codemode/servers/tracker"; '
    'globalThis.__codemode_result__ = (await list_issues({ status: "open" })).total;'
)
KEPT = ("PIP_", "SSL_", "REQUESTS_", "NODE_", "HTTP", "http", "NO_PROXY", "no_proxy")
"""Begin the names of what a machine needs to reach the package indexes."""


def lines_of(page: str, word: str) -> list[str]:
    """Those of the page's first block that has the word."""
    block = next(
        one for one in examples() if one.page == ROOT / page and one.language == "bash" and word in one.text
    )
    return [line.partition("  #")[0].strip() for line in statements(block.text)]


@pytest.fixture
def root(tmp_path: Path) -> list[str]:
    """What begins a command in a root of the system's programs, an empty home and the checkout's files alone."""
    bubblewrap = find_binary()
    if bubblewrap is None or not list(Path("/usr/lib").glob("python3*/EXTERNALLY-MANAGED")):
        pytest.skip("needs namespaces, and a Python that is managed by the system")
    listed = subprocess.run(
        ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            (tmp_path / "cellblock" / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tmp_path / "cellblock" / name)
    (tmp_path / "home").mkdir()
    links = [
        argument for name in ("bin", "lib", "lib64") for argument in ("--symlink", f"usr/{name}", f"/{name}")
    ]
    mounted = ["--ro-bind", "/usr", "/usr", "--ro-bind", "/etc", "/etc", "--proc", "/proc", "--dev", "/dev"]
    own = ["--tmpfs", "/tmp", "--bind", str(tmp_path / "home"), "/home/me"]
    checkout = ["--bind", str(tmp_path / "cellblock"), "/home/me/cellblock", "--chdir", "/home/me/cellblock"]
    files = [
        argument
        for name, value in os.environ.items()
        if name.startswith(KEPT)
        for path in value.split()
        if Path(path).is_absolute() and not path.startswith(("/usr", "/etc"))
        for argument in ("--ro-bind-try", path, path)
    ]
    return [str(bubblewrap), *mounted, *links, *own, *files, *checkout, "--unshare-pid", "--die-with-parent"]


def test_the_lines_install_it_and_a_client_gets_an_answer(root: list[str]) -> None:
    kept = {name: value for name, value in os.environ.items() if name.startswith(KEPT)}
    path = "/home/me/.local/bin:/usr/bin:/bin"

    env = {"HOME": "/home/me", "PATH": path, "LANG": "C.UTF-8", **kept}

    def run(command: str) -> str:
        line = [*root, "bash", "-c", command]
        done = subprocess.run(line, env=env, capture_output=True, text=True, timeout=600)
        assert done.returncode == 0, f"{command}\n{done.stdout}\n{done.stderr}"
        return done.stdout

    refused = subprocess.run([*root, "pip", "install", "six"], env={"PATH": path}, capture_output=True)
    assert b"externally-managed-environment" in refused.stderr or b"No such file" in refused.stderr
    install, client = lines_of("README.md", "scripts/install")
    run(install)
    (server,) = [line for line in lines_of("docs/start.md", "cellblock add") if " add " in line]
    run(server)
    run(f"{client} --yes")
    entry: dict[str, Any] = json.loads(run("cat ~/.claude.json"))["mcpServers"]["cellblock"]
    messages = [
        {
            "id": 1,
            "method": "initialize",
            "params": {
                "protocolVersion": "2025-06-18",
                "capabilities": {},
                "clientInfo": {"name": "claude-code", "version": "1"},
            },
        },
        {"method": "notifications/initialized"},
        {"id": 2, "method": "tools/call", "params": {"name": "codemode.run", "arguments": {"code": SCRIPT}}},
    ]
    asked = "".join(json.dumps({"jsonrpc": "2.0", **one}) + "\n" for one in messages)
    command = [*root, entry["command"], *entry["args"]]
    with subprocess.Popen(command, env=env, stdin=PIPE, stdout=PIPE, text=True) as client_end:
        client_end.stdin.write(asked)
        client_end.stdin.flush()
        answers = (json.loads(line) for line in client_end.stdout)
        result = next(answer["result"] for answer in answers if answer.get("id") == 2)
        client_end.stdin.close()
    assert not result.get("isError"), result
    assert result["structuredContent"]["result"] == 30
    run("bash scripts/install --remove && ! command -v cellblock")
