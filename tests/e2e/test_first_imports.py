"""What is imported before a client's `initialize` is answered: the client waits for each package of it."""

import asyncio
import importlib.util
import json
import sys
from asyncio.subprocess import DEVNULL, PIPE, STDOUT
from pathlib import Path

from cellblock.app.assembly import REACH, RUNS, SESSIONS, WORKERS
from support.entries import plain_server, write_config
from support.http_daemon import INITIALIZE, Daemon
from support.waits import within

REQUEST = json.dumps(INITIALIZE).encode() + b"\n"
LATER = (
    WORKERS,
    SESSIONS,
    *REACH,
    *RUNS,
    "cellblock.types.search",
    "cellblock.serve.http",
    "cellblock.serve.mcp.surface",
    "cellblock.types.learning",
    "cellblock.tools.python",
    "cellblock.schemas",
    "cellblock.script",
    "cellblock.types.check",
    "cellblock.pool",
    "cellblock_worker.confinement",
    "cellblock_worker.host.host",
    "cellblock_worker.worker",
)
"""Names what runs scripts and reaches servers: modules, and rooms that are not entered."""


async def imported(*arguments: str) -> tuple[list[str], dict[str, object] | None]:
    """What Python imports for `python ARGUMENTS`, until it writes a line of JSON if it does; and that line."""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-X", "importtime", *arguments, stdin=PIPE, stdout=PIPE, stderr=STDOUT, limit=2**20
    )
    process.stdin.write(REQUEST)
    names: list[str] = []
    try:
        while line := await within(process.stdout.readline()):
            if line.startswith(b"{"):
                return names, json.loads(line)
            assert line.startswith(b"import time:"), line
            names.append(line.rpartition(b"|")[2].strip().decode())
        return names, None
    finally:
        process.stdin.close()
        if process.returncode is None:
            process.kill()
        await process.wait()


async def packages(names: list[str], *, beside: tuple[str, ...]) -> set[str]:
    """The packages of others among them that `python ARGUMENTS` does not import by itself."""
    there, _ = await imported(*beside)
    tops = {name.partition(".")[0] for name in names} - {name.partition(".")[0] for name in there}
    # Python names those, too, that it did not find.
    found = {top for top in tops - sys.stdlib_module_names if importlib.util.find_spec(top) is not None}
    return {top for top in found if not top.startswith("_sysconfigdata")}


async def test_serve_imports_the_sdk_and_the_configuration(tmp_path: Path) -> None:
    config = write_config(tmp_path, {"plain": plain_server()}, policy={"default": {"tools": ["plain.*"]}})
    words = ("-m", "cellblock.cli", "serve", "--stdio", "--config", str(config))
    names, answer = await imported(*words, "--state-dir", str(tmp_path / "state"))
    assert answer is not None and "result" in answer
    ours = {"cellblock", "cellblock_typescript", "cellblock_worker", "msgspec", "platformdirs"}
    assert await packages(names, beside=("-c", "import mcp.server.lowlevel")) == ours
    assert [name for name in names if name.startswith(LATER)] == []


async def test_connect_imports_next_to_nothing(served: Daemon) -> None:
    words = ("-m", "cellblock.cli", "connect", "--url", served.url, "--no-start")
    names, answer = await imported(*words, "--state-dir", str(served.folder / "s"))
    assert answer is not None and "result" in answer
    ours = {"cellblock", "cellblock_typescript", "cellblock_worker", "platformdirs"}
    assert await packages(names, beside=("-c", "pass")) == ours


async def test_a_run_without_servers_does_without_the_sdk(tmp_path: Path) -> None:
    script = tmp_path / "one.js"
    script.write_text("globalThis.__codemode_result__ = 1;", encoding="utf-8")
    words = ("-m", "cellblock.cli", "run", str(script), "--config", str(write_config(tmp_path, {})))
    run = await asyncio.create_subprocess_exec(
        *(sys.executable, "-X", "importtime", *words, "--state-dir", str(tmp_path / "state")),
        stdout=DEVNULL, stderr=PIPE,
    )  # fmt: skip
    _, told = await within(run.communicate())
    names = [line.rpartition("|")[2].strip() for line in told.decode().splitlines()]
    assert run.returncode == 0 and "cellblock.run.calls" in names
    assert [name for name in names if name.partition(".")[0] == "mcp"] == []
