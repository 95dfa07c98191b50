"""The examples of README.md and docs/: run where they can be, read by the part of Cellblock that reads them otherwise.

- js: run by a real broker with the servers that they import; they end without an error, with the `Result:` below them.
- python: run, a whole program as it is pasted; `app.py` of docs/howto-fastapi.md is served, and sent a script.
- json: taken by the parser of settings or of requests.
- bash: run, line by line, by `test_documented_commands.py`.
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
import re
import subprocess
import sys
from collections.abc import AsyncGenerator, AsyncIterator
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
from support.cellblock_zygote import forked_python
from support.commands import piped
from support.documents import PAGES, ROOT, Example, examples
from support.entries import settings, tracker, write_config
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
