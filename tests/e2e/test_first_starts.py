"""Servers that do not start at once, or not at all: no command breaks an installation by its end, as `npx` makes one;
and what a daemon's environment lacks is told by every command that speaks with the daemon, and shown on its pages.
"""

import asyncio
import json
import signal
import sys
from asyncio.subprocess import DEVNULL
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from support.cellblock_zygote import with_constants
from support.commands import cellblock, piped
from support.entries import CELLBLOCK, Entry, plain_server, write_config
from support.http_daemon import INITIALIZE, Daemon, daemon
from support.processes import gone
from support.waits import until, within

pytestmark = pytest.mark.thorough

INSTALL_SECONDS = 4.0

SHORT = {"connect_timeout_ms": 2000}

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


def place(folder: Path, servers: dict[str, Entry], **section: Any) -> tuple[object, ...]:
    return ("--config", write_config(folder, servers, **section), "--state-dir", folder / "state")


async def test_three_doctors_that_are_interrupted_leave_an_installation_whole(
    tmp_path: Path, cache: Path
) -> None:
    entry = installed_first(tmp_path, cache)
    doctor = ("doctor", *place(tmp_path, {"first": entry, "second": entry}))
    for end in (signal.SIGINT, signal.SIGTERM, signal.SIGINT):
        async with piped(*doctor, stdout=DEVNULL) as running:
            await until((cache / "pid").exists, "an installation")
            await asyncio.sleep(0.2)  # no bound: wherever it is ended
            running.process.send_signal(end)
            await within(running.process.wait(), 30)
    installer = psutil.Process(int((cache / "pid").read_text()))
    assert not (cache / "whole").exists()
    await until((cache / "whole").exists, "the end of the installation")
    # Its input has ended: nothing stays.
    await gone([installer], 30)
    done = await cellblock(*doctor)
    assert done.code == 0 and "is being installed" not in done.err, done
    assert "first: connected" in done.out and "second: connected" in done.out


async def test_a_command_waits_for_an_installation_beyond_its_bounds_and_says_so(
    tmp_path: Path, cache: Path
) -> None:
    entry = installed_first(tmp_path, cache)
    words = ("types", *place(tmp_path, dict.fromkeys(("first", "second"), entry), upstream=SHORT))
    often = {f"cellblock.tools.upstream.registry.{name}_SECONDS": 0.1 for name in ("QUIET", "TELL", "POLL")}
    done = await cellblock(*words, env=with_constants(often))
    assert done.code == 0 and "not connected" not in done.err, done
    # The pauses double: one that takes minutes fills no screen.
    assert 1 <= done.err.count("server first is being installed by its program") <= 10
    assert "server second is being installed by its program" in done.err


async def test_a_script_waits_for_the_servers_that_it_names(tmp_path: Path, cache: Path) -> None:
    slow = installed_first(tmp_path, cache)
    slow["env"]["FAKE_CACHE"] = str(tmp_path / "nowhere")
    script = tmp_path / "script.js"
    script.write_text('import * as first from "@codemode/servers/first"; first;', encoding="utf-8")
    servers = {"first": installed_first(tmp_path, cache), "other": slow}
    done = await cellblock("run", script, *place(tmp_path, servers))
    assert done.code == 0, done
    assert "server first is being installed" in done.err and "server other" not in done.err


LACKING = {**plain_server(), "env": {"TOKEN": "${env:NOT_SET_FOR_THE_DAEMON}"}}
TOLD = "the daemon does not start the server lacking: the environment variable NOT_SET_FOR_THE_DAEMON is not set."


@pytest.fixture(scope="module")
async def served(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Daemon]:
    servers = {"plain": plain_server(), "lacking": LACKING}
    light = {"pool": {"warm": 0}, "typecheck": "off"}
    async with daemon(tmp_path_factory.mktemp("lacking"), servers=servers, **light) as running:
        yield running


@pytest.mark.parametrize(
    ("words", "code", "times"),
    [
        (["dashboard", "--no-open"], 0, 1),
        (["logs", "plain"], 0, 0),
        (["restart", "plain"], 0, 0),
        (["restart", "lacking"], 2, 1),
        # Behind its first answer.
        (["connect", "--no-start"], 0, 1),
    ],
)
async def test_who_asks_a_daemon_is_told_it_unless_of_another_server(
    served: Daemon, words: list[str], code: int, times: int
) -> None:
    options = ("--state-dir", served.folder / "s", "--url", served.url)
    given = json.dumps(INITIALIZE).encode() + b"\n"
    done = await cellblock(*words, *options, given=given, program=CELLBLOCK)
    assert (done.code, done.err.count(TOLD), "serverInfo" in done.out) == (code, times, "connect" in words)


async def test_it_is_shown_with_the_others(served: Daemon) -> None:
    options = ("--config", served.folder / "cellblock.json", "--state-dir", served.folder / "s")
    code, out, err = await cellblock("status", "lacking", *options, program=CELLBLOCK)
    assert code == 1 and "NOT_SET_FOR_THE_DAEMON" in out and "again:" not in out, err
    async with httpx2.AsyncClient(headers=served.auth, trust_env=False, verify=False) as http:
        state = (await http.get(served.url.replace("/mcp", "/dashboard/state"))).json()
        metrics = (await http.get(served.url.replace("/mcp", "/metrics"))).text
    row = next(one for one in state["upstreams"] if one["name"] == "lacking")
    assert (row["state"], row["reason"]) == ("not started", TOLD.split(": ", 1)[1].removesuffix("."))
    assert 'cellblock_upstream_up{server="lacking"} 0' in metrics
