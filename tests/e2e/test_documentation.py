"""The examples of README.md and docs/: run where they can be, read by the part of Cellblock that reads them otherwise.

- js: run by a real broker with the servers that they import; they end without an error, with the `Result:` below them.
- python: run, a whole program as it is pasted; `app.py` of docs/howto-fastapi.md is served, and sent a script.
- json: taken by the parser of settings or of requests.
- bash: run, line by line, unless the line stands in `LEFT_OUT` with the reason. A command must end with 0. They run in
  a home of their own that has what the pages speak of (cellblock.json, script.js, a certificate …), with the ports that
  the pages name: in a network of their own, by `cellblock_zygote`. A line that serves goes on beside the lines below;
  what speaks MCP over its standard input is asked for its name.
- What nobody runs (declarations, pictures, what programs print) is of a language in `NOT_RUN`, with the reason.

A comment right before a block says more of it: `<!-- fails: CODE -->` for a script that ends with this diagnostic,
`<!-- in: cellblock.auth.servers -->` for a piece of a configuration.
"""

import ast
import asyncio
import base64
import contextlib
import inspect
import json
import os
import pty
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator, Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import httpx2
import pytest

from cellblock import Broker
from cellblock.app.cli.demo.show import capacity, finish_date
from cellblock.app.cli.parser import make_parser
from cellblock.app.config.load import parse_settings
from cellblock.base.settings.settings import CellblockSettings
from cellblock.run.request import read_request
from cellblock_worker.confinement.bubblewrap import find_binary
from support.cellblock_zygote import forked_python, install, zygote
from support.certificates import certificate
from support.commands import piped
from support.documents import PAGES, ROOT, Example, examples, statements
from support.entries import plain_server, settings, tracker, write_config
from support.http_daemon import INITIALIZE
from support.params import mostly
from support.processes import descendants, gone
from support.ray_cluster import NO_RAY
from support.responses import succeeded
from support.waits import within

FASTMCP = ROOT / ".servers" / "peers" / "fastmcp" / "venv" / "bin" / "python"
DENO = Path(sys.executable).parent / "deno"
RUN = {"js", "python", "json", "bash"}
NOT_RUN = {
    "ts": "what Cellblock prints: it is read by Deno's parser",
    "text": "what Cellblock prints",
    "mermaid": "a picture",
    "ini": "what a systemd unit reads; test_remote_hosts.py runs the unit's commands",
    "yaml": "Prometheus' and Kubernetes' configuration; test_dashboard.py asks for the metrics with the token",
}
"""By language: why its blocks are not run."""

REFERENCES = {
    "CELLBLOCK_STATE_URL": "postgresql://cellblock@localhost/cellblock",
    "CELLBLOCK_STATE_KEY": base64.b64encode(bytes(32)).decode(),
    "POD_IP": "192.0.2.7",
}
"""Is the environment of configurations that take restrictions and secrets of the `cellblock` section from there."""

PLACEHOLDER = re.compile(r"<[a-z ]+>")


ALL = examples()


PROGRAMS = [one for one in ALL if one.language == "python"]


def of(language: str) -> Any:
    """Parametrizes a test with the examples of a language."""
    chosen = [one for one in ALL if one.language == language]
    assert chosen
    return pytest.mark.parametrize("example", chosen, ids=str)


def test_every_block_is_run_or_of_a_language_that_is_not() -> None:
    languages = {one.language for one in ALL}
    assert languages - RUN == set(NOT_RUN), "a language without a reason, or a reason without a block"
    marks = [one.mark.partition(": ") for one in ALL if one.mark]
    assert {kind for kind, _, _ in marks} <= {"fails", "in"}, "no block can except itself"
    fences = sum(len(re.findall(r"^ *```", page.read_text("utf-8"), re.MULTILINE)) for page in PAGES)
    assert fences == 2 * len(ALL), "a block is not seen"


def test_links_between_pages_lead_somewhere() -> None:
    for page in PAGES:
        links = re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text(encoding="utf-8"))
        inner = [link for link in links if "://" not in link]
        assert [link for link in inner if not (page.parent / link).exists()] == [], page.name


def test_what_is_said_to_show_a_guarantee_is_there() -> None:
    tests = {file.name for file in (ROOT / "tests").rglob("test_*.py")}
    for page in ("guarantees.md", "threat-model.md"):
        text = (ROOT / "docs" / page).read_text(encoding="utf-8")
        named = set(re.findall(r"\btest_\w+\.py", text))
        assert named and named <= tests, f"{page}: {sorted(named - tests)}"
        assert all((ROOT / script).exists() for script in re.findall(r"\bscripts/\w+", text))


def test_the_readme_is_short_and_opens_with_what_does_all_the_set_up() -> None:
    assert len(PAGES[0].read_text(encoding="utf-8").splitlines()) < 150
    first, second = [one.text for one in ALL if one.page == PAGES[0]][:2]
    assert [line.partition("  #")[0].strip() for line in first.splitlines()] == [
        "bash scripts/demo",
        "bash scripts/test",
    ]
    assert second.splitlines() == ["uvx cellblock demo", "pipx run cellblock demo"]


WRITTEN: list[str] = []


def write_file(path: str, content: str) -> None:
    "Writes a file."
    WRITTEN.append(path)


@pytest.fixture(scope="module")
async def broker(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Broker]:
    """With the servers that the pages speak of."""
    made = settings(tmp_path_factory.mktemp("pages"), {"tracker": tracker()})
    async with Broker(made, tools=[write_file, capacity, finish_date]) as running:
        yield running


@of("js")
async def test_a_script_runs(example: Example, broker: Broker) -> None:
    WRITTEN.clear()
    code = example.text.replace("@codemode/servers/files", "@codemode/servers/local")
    response = await within(broker.run(code), 60)
    kind, _, expected = example.mark.partition(": ")
    if kind == "fails":
        assert [found.code for found in response.diagnostics] == [expected], response.as_json()
        return
    assert succeeded(response), "it gives a result"
    _, _, below = example.page.read_text(encoding="utf-8").partition(f"{example.text}\n```\n\n")
    if told := re.match(r"Result: `(.+)`\n", below):
        assert response.result == json.loads(told[1])
    assert bool(WRITTEN) == ("write_file" in code)


@pytest.mark.parametrize(
    "example",
    mostly([one for one in PROGRAMS if one.page == PAGES[0] or "app.py" in one.text], PROGRAMS),
    ids=str,
)
async def test_python_runs(example: Example, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    # `cellblock` for the client that starts it; what it keeps stays here.
    monkeypatch.setenv("PATH", str(DENO.parent), prepend=os.pathsep)
    monkeypatch.setenv("HOME", str(tmp_path))
    write_config(tmp_path, {}, state_dir=str(tmp_path / "state"))
    if named := re.match(r"# (app|api)\.py", example.text):
        (tmp_path / f"{named[1]}.py").write_text(example.text, encoding="utf-8")
        await (serve_and_ask(example) if named[1] == "app" else describe_and_call(tmp_path))
        return
    on_ray = "import ray" in example.text
    if on_ray and find_spec("ray") is None:
        pytest.skip(NO_RAY)
    if on_ray or "asyncio.run(" in example.text:
        (tmp_path / "example.py").write_text(example.text, encoding="utf-8")
        # The first page's as a reader would; of the others it is the same.
        python = [sys.executable] if example.page == PAGES[0] else [str(forked_python()), "-I"]
        done = await asyncio.to_thread(
            subprocess.run, [*python, "example.py"], capture_output=True, text=True, timeout=100
        )
        assert done.returncode == 0, done.stderr
        for line in re.findall(r"print\(.*\)  # (.*)$", example.text, re.MULTILINE):
            assert line in done.stdout
        return
    code = compile(example.text, str(example), "exec", flags=ast.PyCF_ALLOW_TOP_LEVEL_AWAIT)
    names: dict[str, Any] = {"__name__": "example"}
    done = eval(code, names)
    if inspect.iscoroutine(done):
        await within(done, 60)


async def serve_and_ask(example: Example) -> None:
    """Serves `app.py` as the page says, and sends it the script of the page."""
    (request,) = re.findall(r"^(\{\"user\".*\})$", example.page.read_text(encoding="utf-8"), re.MULTILINE)
    async with (
        served("app:app") as origin,
        httpx2.AsyncClient(base_url=origin, timeout=60, trust_env=False, verify=False) as http,
    ):
        answer = await http.post("/scripts", json=json.loads(request))
        assert (answer.status_code, answer.json().get("result")) == (200, 165), answer.text
        refused = await http.post("/scripts", json={"user": "ann", "code": "x" * (1024 * 1024 + 1)})
        assert refused.status_code == 422 and "code" in refused.json()["detail"]


API = """
from fastapi import FastAPI, Request

app = FastAPI()

@app.get("/orders/{number}", operation_id="order")
def order(number: int, request: Request) -> dict[str, str | int]:
    return {"number": number, "shown": request.headers["authorization"]}
"""


async def describe_and_call(folder: Path) -> None:
    """Serves an API, and calls it by the page's server."""
    if not FASTMCP.exists():
        pytest.skip("FastMCP is not installed: `bash scripts/evals --help` installs it")
    (folder / "orders.py").write_text(API, encoding="utf-8")
    page = folder / "api.py"
    async with served("orders:app") as origin:
        page.write_text(page.read_text("utf-8").replace("https://api.example.com", origin), encoding="utf-8")
        entry = {"command": str(FASTMCP), "args": [str(page)], "env": {"API_KEY": "k"}}
        code = 'import { order } from "@codemode/servers/api"; export default await order({ number: 7 });'
        async with Broker(settings(folder / "s", {"api": entry})) as broker:
            await within(broker.settled(), 60)
            assert succeeded(await within(broker.run(code), 60)) == {"number": 7, "shown": "Bearer k"}


@contextlib.asynccontextmanager
async def served(app: str) -> AsyncGenerator[str]:
    """An application in this folder, served by Uvicorn; gives its origin."""
    words = ("-c", "import uvicorn; uvicorn.main()", app, "--port", "0")
    async with piped(*words, program=forked_python()) as running:
        process, port = running.process, None
        while port is None:
            line = (await within(process.stderr.readline(), 60)).decode()
            assert line, "it did not start"
            port = re.search(r"running on http://127\.0\.0\.1:(\d+)", line)
        try:
            yield f"http://127.0.0.1:{port[1]}"
        finally:
            family = descendants(process.pid)
            process.terminate()
            with contextlib.suppress(TimeoutError):
                await within(process.communicate(), 30)
    await gone(family)


@of("json")
def test_json_is_accepted(example: Example, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in REFERENCES.items():
        monkeypatch.setenv(name, value)
    text = PLACEHOLDER.sub("ab" * 32, example.text.strip())
    data: dict[str, Any] = json.loads(text if text.startswith("{") else f"{{{text}}}")
    kind, _, place = example.mark.partition(": ")
    if kind == "in":
        for key in reversed(place.split(".")):
            data = {key: data}
    if "code" in data:
        read_request(data, CellblockSettings())
        return
    # A piece that names a server is about one that the page has configured before.
    data.setdefault("mcpServers", {"wiki": {"url": "https://wiki.example/mcp"}})
    read = parse_settings(data)
    assert read.servers or data.get("cellblock"), "it configures something"
    for server in read.servers.values():
        if server.command == "cellblock":
            make_parser().parse_args(server.args)


@of("ts")
def test_declarations_are_typescript(example: Example, tmp_path: Path) -> None:
    file = tmp_path / "excerpt.ts"
    wrapped = re.sub(r"\s*…\s*", " ", example.text.strip())
    file.write_text(f"type _ = {wrapped}\n" if wrapped.startswith("Promise<") else wrapped, encoding="utf-8")
    done = subprocess.run(
        [str(DENO), "fmt", "--check", "--ext", "ts", "-"],
        input=file.read_bytes(),
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert b"Error parsing" not in done.stderr and b"error:" not in done.stderr, done.stderr.decode()


LINE_SECONDS = 120.0

MEASURES = r"scripts/(loadtest|bench |evals)"

LEFT_OUT: dict[str, str] = {
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
    return next((reason for pattern, reason in LEFT_OUT.items() if re.search(pattern, line)), None)


@pytest.mark.thorough
def test_what_is_not_run_is_listed_and_the_list_is_current() -> None:
    unused = [pattern for pattern in LEFT_OUT if not any(re.search(pattern, line) for _, line in LINES)]
    assert not unused, "these patterns fit no line any more"
    of_users = [line for _, line in LINES if not re.search(MEASURES, line)]
    run = [line for line in of_users if reason_not_to_run(line) is None]
    assert len(run) > 0.55 * len(of_users), "exceptions stay few"


@pytest.mark.thorough
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
            out, errors = done.communicate(timeout=LINE_SECONDS)
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
        said = self.serving.stderr.readline().decode()
        assert "serving http" in said, f"{command}: {said}"

    def end(self) -> None:
        """Ends the daemon, as its user would."""
        if self.serving is None:
            return
        serving, self.serving = self.serving, None
        serving.terminate()
        _, errors = serving.communicate(timeout=LINE_SECONDS)
        assert serving.returncode == 0, errors

    def asks_its_name(self, command: str) -> None:
        """What serves MCP over stdio says its name, and ends with its standard input."""
        process = self.started(command)
        process.stdin.write(json.dumps(INITIALIZE).encode() + b"\n")
        process.stdin.flush()
        said = process.stdout.readline()
        _, errors = process.communicate(timeout=LINE_SECONDS)
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
            assert process.wait(LINE_SECONDS) == 0, os.read(master, 65536)
        finally:
            os.close(master)


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


@pytest.mark.thorough
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
