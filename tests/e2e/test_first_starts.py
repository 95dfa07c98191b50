"""Servers that do not start at once, or not at all: no command breaks an installation by its end, as `npx` makes one;
and what a daemon's environment lacks is told by every command that speaks with the daemon, and shown on its pages.
"""

import asyncio
import json
import signal
import subprocess
import sys
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import httpx2
import psutil
import pytest

from support.cellblock_zygote import forked_cellblock, with_constants
from support.commands import Said, cellblock
from support.entries import CELLBLOCK, Entry, plain_server, write_config
from support.http_daemon import INITIALIZE, Daemon, daemon
from support.processes import gone
from support.waits import until

pytestmark = pytest.mark.thorough

INSTALL_SECONDS = 4.0

FAKE_NPX = f"""#!{sys.executable} -IS
import os, pathlib, sys, time
cache, server = pathlib.Path(os.environ["FAKE_CACHE"]), sys.argv[3:]
if not (cache / "whole").exists():
    try:
        (cache / "half").touch(exist_ok=False)
    except FileExistsError:
        sys.exit("npm error ENOTEMPTY: the cache is broken")
    (cache / "pid").write_text(str(os.getpid()))
    for _ in range(20):
        time.sleep({INSTALL_SECONDS} / 20)
        print("npm warn deprecated", file=sys.stderr, flush=True)
    (cache / "half").rename(cache / "whole")
os.execv(server[0], server)
"""
"""Writes a folder in two steps, and says what breaks when it is ended between them; then it is the server."""


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    folder = tmp_path / "cache"
    folder.mkdir()
    return folder


def installed_first(tmp_path: Path, cache: Path) -> Entry:
    npx = tmp_path / "npx"
    npx.write_text(FAKE_NPX, encoding="utf-8")
    npx.chmod(0o755)
    plain = plain_server()
    arguments = ["-y", "some-server", plain["command"], *plain["args"]]
    return {"command": str(npx), "args": arguments, "env": {"FAKE_CACHE": str(cache)}}


def wait(holds: Callable[[], object], what: str) -> None:
    asyncio.run(until(holds, what))


def test_three_doctors_that_are_interrupted_leave_an_installation_whole(tmp_path: Path, cache: Path) -> None:
    entry = installed_first(tmp_path, cache)
    config = write_config(tmp_path, {"first": entry, "second": entry})
    doctor = [forked_cellblock(), "doctor", "--config", str(config), "--state-dir", str(tmp_path / "state")]
    for end in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
        with subprocess.Popen(doctor, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE) as process:
            wait((cache / "pid").exists, "an installation")
            time.sleep(0.2)  # no bound: wherever it is ended
            process.send_signal(end)
            process.wait(30)
    installer = psutil.Process(int((cache / "pid").read_text()))
    assert not (cache / "whole").exists()
    wait((cache / "whole").exists, "the end of the installation")
    # Its input has ended: nothing stays.
    asyncio.run(gone([installer], 30))
    done = subprocess.run(doctor, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stdout
    assert "first: connected" in done.stdout and "second: connected" in done.stdout
    assert "is being installed" not in done.stderr


def test_a_command_waits_for_an_installation_beyond_its_bounds_and_says_so(
    tmp_path: Path, cache: Path
) -> None:
    entry = installed_first(tmp_path, cache)
    bounds = {"upstream": {"connect_timeout_ms": 2000}}
    config = write_config(tmp_path, {"first": entry, "second": entry}, **bounds)
    line = [forked_cellblock(), "types", "--config", str(config), "--state-dir", str(tmp_path / "state")]
    often = with_constants(
        {f"cellblock.tools.upstream.registry.{name}_SECONDS": 0.1 for name in ("QUIET", "TELL", "POLL")}
    )
    done = subprocess.run(line, capture_output=True, text=True, timeout=120, env=often)
    assert done.returncode == 0, done.stderr
    assert "not connected" not in done.stderr
    # The pauses double: one that takes minutes fills no screen.
    assert 1 <= done.stderr.count("server first is being installed by its program") <= 10
    assert "server second is being installed by its program" in done.stderr


def test_a_script_waits_for_the_servers_that_it_names(tmp_path: Path, cache: Path) -> None:
    slow = installed_first(tmp_path, cache)
    slow["env"]["FAKE_CACHE"] = str(tmp_path / "nowhere")
    config = write_config(tmp_path, {"first": installed_first(tmp_path, cache), "other": slow})
    script = tmp_path / "script.js"
    script.write_text('import * as first from "@codemode/servers/first"; first;', encoding="utf-8")
    line = [forked_cellblock(), "run", str(script), "--config", str(config)]
    done = subprocess.run(
        [*line, "--state-dir", str(tmp_path / "state")], capture_output=True, text=True, timeout=120
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "server first is being installed" in done.stderr
    assert "server other" not in done.stderr


LACKING = {**plain_server(), "env": {"TOKEN": "${env:NOT_SET_FOR_THE_DAEMON}"}}
TOLD = "the daemon does not start the server lacking: the environment variable NOT_SET_FOR_THE_DAEMON is not set."


@pytest.fixture(scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Daemon]:
    servers = {"plain": plain_server(), "lacking": LACKING}
    light = {"pool": {"warm": 0}, "typecheck": "off"}
    async with daemon(tmp_path_factory.mktemp("lacking"), servers=servers, **light) as running:
        yield running


async def said(served: Daemon, *words: str, given: bytes | None = None) -> Said:
    options = ("--state-dir", served.folder / "s", "--url", served.url)
    return await cellblock(*words, *options, given=given, program=CELLBLOCK)


@pytest.mark.parametrize(
    ("words", "times"),
    [
        (["dashboard", "--no-open"], 1),
        (["logs", "plain"], 0),
        (["restart", "plain"], 0),
    ],
)
async def test_who_asks_a_daemon_is_told_it_unless_of_another_server(
    served: Daemon, words: list[str], times: int
) -> None:
    code, _, err = await said(served, *words)
    assert code == 0, err
    assert err.count(TOLD) == times


async def test_a_relay_tells_it_behind_its_first_answer(served: Daemon) -> None:
    code, out, err = await said(
        served, "connect", "--no-start", given=json.dumps(INITIALIZE).encode() + b"\n"
    )
    assert code == 0 and "serverInfo" in out, err
    assert err.count(TOLD) == 1


async def test_it_cannot_be_restarted_and_is_shown_with_the_others(served: Daemon) -> None:
    code, _, err = await said(served, "restart", "lacking")
    assert code == 2 and TOLD in err
    options = ("--config", served.folder / "cellblock.json", "--state-dir", served.folder / "s")
    code, out, err = await cellblock("status", "lacking", *options, program=CELLBLOCK)
    assert code == 1 and "NOT_SET_FOR_THE_DAEMON" in out and "again:" not in out, err
    async with httpx2.AsyncClient(headers=served.auth, trust_env=False, verify=False) as http:
        state = (await http.get(served.url.replace("/mcp", "/dashboard/state"))).json()
        metrics = (await http.get(served.url.replace("/mcp", "/metrics"))).text
    row = next(one for one in state["upstreams"] if one["name"] == "lacking")
    assert (row["state"], row["reason"]) == ("not started", TOLD.split(": ", 1)[1].removesuffix("."))
    assert 'cellblock_upstream_up{server="lacking"} 0' in metrics
