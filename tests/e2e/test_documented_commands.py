"""Every command of README.md and docs/ is run, line by line, or stands in `NOT_RUN` with the reason.

A command must end with 0. They run in a home of their own that has what the pages speak of (cellblock.json, script.js,
a certificate …), with the ports that the pages name: in a network of their own, by `cellblock_zygote`. A line that
serves goes on beside the lines below it; what speaks MCP over its standard input is asked for its name.
"""

import contextlib
import json
import os
import pty
import re
import select
import shlex
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

import pytest

from cellblock.app.cli.parser import make_parser
from cellblock_worker.confinement.bubblewrap import find_binary
from support.cellblock_zygote import install, zygote
from support.certificates import certificate
from support.documents import ROOT, examples, statements
from support.entries import plain_server
from support.http_daemon import INITIALIZE

pytestmark = pytest.mark.thorough

BOUND_SECONDS = 120.0

MEASURES = r"scripts/(loadtest|bench |evals)"

NOT_RUN: dict[str, str] = {
    r"bash scripts/demo\b": "it has made the environment that runs this test",
    r"^cellblock demo\b": "test_cli.py runs it and reads what it says",
    r"^(uvx|pipx run|uv tool install) cellblock": "installs a release from the package index",
    r"bash scripts/test\b": "it runs this test",
    MEASURES: "measures for minutes, and means something on a quiet machine only",
    r"bash scripts/install|-m cellblock.app.cli.demo": "test_install.py runs it, in an empty root",
    r"scripts/(docs|release_)": "installs from the network; the release workflow runs scripts/release_check",
    r"^docker |^jq (.|\n)*default\.json": "needs a container engine; the release workflow has one",
    r"pip install 'cellblock\[otel\]'": "installs from the network; the tests have it",
    r"systemctl|loginctl": "needs systemd as the user's manager; the unit is read by test_service_files.py",
    r"^(kubectl|helm) ": "needs a cluster; scripts/kubernetes renders what they apply",
    r"/opt/cellblock/|/etc/systemd/system": "writes into the system; test_remote_hosts.py runs the unit's commands",
    r"^(pip install 'cellblock\[ray\]'|ray start)": "installs 215 MB, and needs a cluster; scripts/ray_check has both",
    r"launchctl": "needs macOS; the plist is read by test_service_files.py",
    r"cellblock auth login": "needs a browser; test_auth_login.py logs in to a real authorization server",
    r"cellblock secret (set|remove)": "needs a keyring; test_auth_login.py keeps secrets in a real one",
    r"cellblock (runs (show|delete)|replay 5f1c)": "needs a run that was kept; test_record_replay.py keeps some",
    r"cellblock runs (approve|deny|cancel|resume)": "needs a run that waits; test_parked_runs.py parks some",
    r"cellblock (save|scripts approve|scripts remove|test) ": "needs a kept run; test_kept_scripts.py saves one",
    r"cellblock status": "needs a daemon that runs; test_asking.py asks one",
    r"python -m cellblock_worker --connect": "needs two machines; test_remote_hosts.py connects one over TCP",
    r"connect --url http://127.0.0.1:7434": "it leaves a daemon behind; test_connect.py starts some",
    r"cellblock logs( files -f)?  #": "it goes on, or is of such a daemon; test_serve.py reads one",
    r"uvicorn|^curl .*/scripts": "test_documentation.py serves app.py and sends the same request",
}
"""By a pattern of the line: why it is not run. A pattern that fits no line fails the test."""

STANDS_FOR = {
    "192.0.2.7": "127.0.0.1",
    "https://cellblock.example.com/mcp --token-file token": "http://127.0.0.1:7433/mcp",
}
"""What an example calls another machine is this one."""

TOOLS = {
    "files": ["read_file", "write_file"],
    "tracker": ["list_issues", "get_issue"],
    "time": ["now"],
}

FOLDERS = (
    ".definitions",
    ".cursor",
    ".config/cellblock",
    ".config/systemd/user",
    ".config/fish/completions",
    ".local/share/bash-completion/completions",
    ".zfunc",
    "Library/LaunchAgents",
)
"""That a user has, or has made before."""

QUICK = {"pool": {"warm": 0}, "typecheck": "off"}
"""Most of these commands run no script: none boots a worker or a compiler ahead."""

LINES = [
    (example, line)
    for example in examples()
    if example.language == "bash"
    for line in statements(example.text)
]


def reason_not_to_run(line: str) -> str | None:
    return next((reason for pattern, reason in NOT_RUN.items() if re.search(pattern, line)), None)


def test_what_is_not_run_is_listed_and_the_list_is_current() -> None:
    unused = [pattern for pattern in NOT_RUN if not any(re.search(pattern, line) for _, line in LINES)]
    assert not unused, "these patterns fit no line any more"
    of_users = [line for _, line in LINES if not re.search(MEASURES, line)]
    run = [line for line in of_users if reason_not_to_run(line) is None]
    assert len(run) > 0.55 * len(of_users), "exceptions stay few"


@pytest.mark.parametrize("line", sorted({line for _, line in LINES if reason_not_to_run(line)}))
def test_what_is_not_run_is_there(line: str) -> None:
    """What can be seen without running it: it is bash, its options exist, and so do the scripts that it names."""
    subprocess.run(["bash", "-n"], input=line, text=True, check=True, timeout=20)
    for script in re.findall(r"scripts/\w+(?:\.py)?", line):
        assert (ROOT / script).exists()
    if options := re.match(r"cellblock ([^|;&#<>]*)", line):
        make_parser().parse_args(shlex.split(options[1]))


class World:
    """A home with what the pages speak of, and `cellblock` on its PATH. Lines that serve run until `end`."""

    def __init__(self, home: Path, socket: Path) -> None:
        self.home = home
        install(home / "bin", socket)
        self.environment = {
            "PATH": f"{home / 'bin'}{os.pathsep}{os.environ['PATH']}",
            "HOME": str(home),
            "BROWSER": "true",  # `dashboard` opens one
        }
        self.serving: subprocess.Popen[bytes] | None = None
        self.furnish()

    def furnish(self) -> None:
        for folder in FOLDERS:
            (self.home / folder).mkdir(parents=True)
        servers = {}
        texts = {"description": "Reads, and finds open issues", "inputSchema": {"type": "object"}}
        for name, tools in TOOLS.items():
            listed = [{"name": tool, **texts} for tool in tools]
            definitions = self.home / ".definitions" / f"{name}.json"
            definitions.write_text(json.dumps({"pages": [listed]}), encoding="utf-8")
            servers[name] = plain_server("--definitions", definitions)
        of_wiki = {"wiki": {"url": "http://127.0.0.1:9/mcp", "disabled": True}}
        configuration = json.dumps({"mcpServers": {**servers, **of_wiki}, "cellblock": QUICK})
        files: dict[str, str] = {
            "cellblock.json": configuration,
            ".config/cellblock/cellblock.json": configuration,
            ".cursor/mcp.json": json.dumps({"mcpServers": {"time": servers["time"]}}),
            "script.js": 'import { read_file } from "@codemode/servers/files"; await read_file({});',
            "fixed.js": 'import { read_file } from "@codemode/servers/files"; await read_file({}); // mended',
            "script.ts": "const n: number = 1; globalThis.__codemode_result__ = n;",
            # test_documentation.py runs those of the pages with the tracker.
            "remind.js": 'import { get_issue } from "@codemode/servers/tracker"; await get_issue({});',
            "late.js": 'import { list_issues } from "@codemode/servers/tracker"; await list_issues({});',
        }
        for name, text in files.items():
            (self.home / name).write_text(text, encoding="utf-8")
        certificate(self.home)

    def run(self, line: str) -> None:
        """One line, as a person would."""
        for there, here in STANDS_FOR.items():
            line = line.replace(there, here)
        if "| jq" in line and shutil.which("jq") is None:
            line = line.partition("| jq")[0]
        if re.search(r"\S -- cellblock ", line):
            line = line.partition(" -- ")[2]
        command = line.partition("  #")[0].strip()
        words = re.match(r"cellblock (\w+)", command)
        name = words[1] if words else ""
        if name in ("connect", "top", "dashboard", "restart", "logs", "status", "stop") and not self.serving:
            # `status` and `stop` ask the daemon of the user's own file.
            own = "" if name in ("status", "stop") else " --config cellblock.json"
            self.serve(f"cellblock serve --http{own}")
        if re.match(r"cellblock serve --http", command):
            self.serve(command)
        elif name in ("connect", "serve"):
            self.asks_its_name(command)
        elif name in ("import", "install") and not re.search("--(dry-run|print|yes)", command):
            self.answers(command)
        else:
            done = self.started(command, stdin=subprocess.DEVNULL)
            out, errors = done.communicate(timeout=BOUND_SECONDS)
            assert done.returncode == 0, f"{command}: exit code {done.returncode}\n{out}\n{errors}"

    def started(self, command: str, **streams: int) -> subprocess.Popen[bytes]:
        pipe = subprocess.PIPE
        # `exec`: signals are for the command, not for the shell.
        alone = re.fullmatch(r"[^|;&<>()\n]+", command)
        return subprocess.Popen(
            ["bash", "-c", f"set -euo pipefail; {'exec ' if alone else ''}{command}"],
            cwd=self.home,
            env=self.environment,
            stdin=streams.get("stdin", pipe),
            stdout=streams.get("stdout", pipe),
            stderr=streams.get("stderr", pipe),
        )

    def serve(self, command: str) -> None:
        """Starts a daemon instead of the one that serves, and waits until it says that it serves."""
        self.end()
        self.serving = self.started(command, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        said = line_of(self.serving.stderr)
        assert "serving http" in said, f"{command}: {said}"

    def end(self) -> None:
        """Ends the daemon, as its user would."""
        if self.serving is None:
            return
        serving, self.serving = self.serving, None
        serving.terminate()
        _, errors = serving.communicate(timeout=BOUND_SECONDS)
        assert serving.returncode == 0, errors

    def asks_its_name(self, command: str) -> None:
        """What serves MCP over stdio says its name, and ends with its standard input."""
        process = self.started(command)
        process.stdin.write(json.dumps(INITIALIZE).encode() + b"\n")
        process.stdin.flush()
        said = line_of(process.stdout)
        _, errors = process.communicate(timeout=BOUND_SECONDS)
        assert said, f"{command}: {errors}"
        assert json.loads(said)["result"]["serverInfo"]["name"] == "cellblock"
        assert process.returncode == 0, f"{command}: exit code {process.returncode}\n{errors}"

    def answers(self, command: str) -> None:
        """On a terminal, with yes to what it asks."""
        master, slave = pty.openpty()
        try:
            os.write(master, b"y\ny\n")
            process = self.started(command, stdin=slave, stdout=slave, stderr=slave)
            os.close(slave)
            assert process.wait(BOUND_SECONDS) == 0, os.read(master, 65536)
        finally:
            os.close(master)


def line_of(stream: IO[bytes] | None) -> str:
    """The next line of a program, within the bound."""
    deadline = time.monotonic() + BOUND_SECONDS
    said = b""
    while not said.endswith(b"\n"):
        ready, _, _ = select.select([stream], [], [], max(0.0, deadline - time.monotonic()))
        read = os.read(stream.fileno(), 1) if ready else b""
        if not read:
            break
        said += read
    return said.decode()


@pytest.fixture(scope="module")
def commands(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket of a zygote in a network of its own."""
    bubblewrap = find_binary()
    alone = [str(bubblewrap), "--dev-bind", "/", "/", "--unshare-net", "--die-with-parent"]
    if bubblewrap is None or subprocess.run([*alone, "true"], capture_output=True, timeout=20).returncode:
        pytest.skip("no network of its own can be made on this machine")
    socket = tmp_path_factory.mktemp("z") / "s"
    with zygote(socket, *alone):
        yield socket


@pytest.mark.timeout(900)
@pytest.mark.parametrize("page", sorted({str(example.page.relative_to(ROOT)) for example, _ in LINES}))
def test_the_commands_of_a_page_work(page: str, commands: Path, tmp_path: Path) -> None:
    world = World(tmp_path, commands)
    failed: list[str] = []
    block = None
    try:
        for example, line in LINES:
            if str(example.page.relative_to(ROOT)) != page or reason_not_to_run(line):
                continue
            if example != block:
                world.end()
            block = example
            try:
                world.run(line)
            except (AssertionError, subprocess.TimeoutExpired) as error:
                failed.append(f"{example}: {line}\n{error}")
    finally:
        with contextlib.suppress(AssertionError):
            world.end()
    assert not failed, "\n\n".join(failed)
