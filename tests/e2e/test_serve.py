"""`cellblock serve`: killed, it takes its servers with it, those too that ignore the end of their input; started by
hand, it tells a person what it waits for. Daemons follow their configuration file, by looking and at SIGHUP; they
start a server again, which hangs and does not want to end, by `cellblock restart`, and show its log.
"""

import asyncio
import contextlib
import fcntl
import json
import os
import signal
import sys
import tempfile
from asyncio.subprocess import DEVNULL, PIPE
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest
from mcp import Client

from cellblock.base.daemon_socket import FOLDER
from cellblock.tools.upstream.server_log import CAP_BYTES
from support.commands import cellblock, piped
from support.entries import CELLBLOCK, SERVERS, entry, ledger, plain_server, write_config
from support.http_daemon import TOOL, Daemon, daemon
from support.params import mostly
from support.processes import alive, descendants, gone
from support.pseudo_terminal import in_terminal
from support.waits import until, until_found, within

STUBBORN = """
import json, signal, sys, time
signal.signal(signal.SIGTERM, signal.SIG_IGN)
for line in sys.stdin:
    open(sys.argv[1], "w").close()
    asked = json.loads(line)
    if "id" not in asked:
        continue
    if asked["method"] == "initialize":
        result = {"protocolVersion": asked["params"]["protocolVersion"], "capabilities": {"tools": {}},
                  "serverInfo": {"name": "stubborn", "version": "1"}}
    else:
        result = {"tools": []}
    print(json.dumps({"jsonrpc": "2.0", "id": asked["id"], "result": result}), flush=True)
while True:
    time.sleep(1)
"""


def is_locked(file: Path) -> bool:
    with file.open() as opened:
        try:
            fcntl.flock(opened, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


@pytest.mark.parametrize("how", mostly(["in a shell"], ["alone", "in a shell", "installed first"]))
async def test_nothing_is_left_of_a_daemon_that_is_killed(tmp_path: Path, how: str) -> None:
    """Its server ignores SIGTERM and the end of its input."""
    program, begun = tmp_path / "stubborn.py", tmp_path / "begun"
    program.write_text(STUBBORN, encoding="utf-8")
    server = [sys.executable, "-I", str(program), str(begun)]
    if how == "in a shell":
        server = ["sh", "-c", '"$@"; echo over', "sh", *server]
    elif how == "installed first":
        npx = tmp_path / "npx"
        npx.write_text('#!/bin/sh\nshift\nexec "$@"\n')
        npx.chmod(0o755)
        server = [str(npx), "-y", *server]
    file = write_config(tmp_path, {"stubborn": entry(server)})
    # Too long for the path of a socket: its folder is in the temporary directory.
    state = tmp_path / ("x" * 100)
    words = ["serve", "--http", "127.0.0.1:0", "--config", str(file), "--state-dir", str(state)]
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="c") as temporary:
        process = await asyncio.create_subprocess_exec(
            CELLBLOCK, *words, stdin=DEVNULL, stderr=DEVNULL, env={**os.environ, "TMPDIR": temporary}
        )

        def left() -> list[Path]:
            return [*Path(temporary).glob("*/broker-*"), *(state / FOLDER).glob("*.sock")]

        try:
            await until(begun.exists, "the server is asked")
            await until(lambda: len(left()) == 2, "the daemon serves")
            locks = [*state.rglob("install-*.lock")]
            assert bool(locks) is (how == "installed first")
            await until(lambda: not any(map(is_locked, locks)), "it is installed")
            family = descendants(process.pid)
        finally:
            process.kill()
            await within(process.wait())
        await gone(family)
        await until(lambda: not left(), "nothing is left")


END_OF_INPUT = b"\x04"


async def test_serve_on_a_terminal_says_what_it_waits_for(tmp_path: Path) -> None:
    config = write_config(tmp_path, {})
    command = (str(CELLBLOCK), "serve", "--config", str(config), "--state-dir", str(tmp_path / "s"))
    async with in_terminal(*command, streams=(0, 2), stdout=PIPE) as terminal:
        await until(lambda: "Ctrl-D ends this" in terminal.text, "what it waits for")
        said = " ".join(terminal.text.split())
        assert "waiting for an MCP client on standard input, which is a terminal" in said
        assert f"configuration: {config}" in said
        assert f"`cellblock install CLIENT --config {config}` puts it into one" in said
        terminal.press(END_OF_INPUT)
        # What a client reads is MCP alone.
        assert await within(terminal.process.stdout.read(), 60) == b""
        assert await within(terminal.process.wait(), 60) == 0


PID = 'import { pid } from "@codemode/servers/plain"; globalThis.__codemode_result__ = Number(await pid({}));'

SLOW = """
    import { pid, wait } from "@codemode/servers/plain";
    const first = Number(await pid({}));
    await wait({ ms: 3000 });
    globalThis.__codemode_result__ = [first, Number(await pid({}))];
"""


async def result(client: Client, code: str) -> Any:
    done = await within(client.call_tool(TOOL, {"code": code}), 60)
    return (done.structured_content or {}).get("result")


def rewrite(file: Path, servers: dict[str, Any], **cellblock: Any) -> None:
    """As editors do: another file in its place."""
    made = file.with_name("new")
    made.write_text(json.dumps({"mcpServers": servers, "cellblock": cellblock}))
    made.replace(file)


async def heard(running: Daemon, wanted: str) -> str:
    """The next line of a daemon that has this."""
    while wanted not in (line := (await within(running.process.stderr.readline(), 30)).decode()):
        assert line, f"it ended without: {wanted}"
    return line


async def test_a_daemon_takes_changes_over_without_dropping_runs(tmp_path: Path) -> None:
    async with daemon(tmp_path, pool={"warm": 1}) as running:
        file = tmp_path / "cellblock.json"
        entry = plain_server("--ledger", running.ledger)
        async with running.client() as client:
            old = await result(client, PID)
            process = psutil.Process(old)
            slow = asyncio.create_task(result(client, SLOW))
            await until(lambda: any(one.get("tool") == "wait" for one in ledger(running.ledger)), "the call")
            changed = {**entry, "env": {"A": "b"}}
            rewrite(file, {"plain": changed, "second": plain_server()}, pool={"warm": 2})
            await heard(running, "server second is added")
            await heard(running, "server plain has changed")
            await heard(running, "cellblock.pool.warm has changed, which needs a restart")
            new = await result(client, PID)
            assert new != old
            assert await slow == [old, old]
            await gone([process])

            # A broken file changes nothing, and the log says where it is broken; so does one that is gone.
            file.write_text('{"mcpServers": {\n  "plain": {"comand": "x"}}}')
            why = f"{file}:2:13: mcpServers.plain.comand: unknown key. Did you mean command?"
            assert why in await heard(running, "not taken over")
            file.unlink()
            assert "Cannot read" in await heard(running, "not taken over")
            assert await result(client, PID) == new

            # At SIGHUP the file is read at once; a secret's file is followed, too.
            secret = tmp_path / "secret"
            secret.write_text("first-secret\n")
            changed = {**entry, "env": {"A": "${file:secret}"}}
            rewrite(file, {"plain": changed}, pool={"warm": 1})
            running.process.send_signal(signal.SIGHUP)
            await heard(running, "server second is removed")
            third = await result(client, PID)
            secret.write_text("another-secret\n")
            assert "secret" not in await heard(running, "server plain has changed")
            assert await result(client, PID) not in (new, third)
            running.process.send_signal(signal.SIGHUP)
            await heard(running, "nothing has changed")
            assert alive(psutil.Process(running.process.pid))


async def test_who_asks_right_after_a_change_is_answered_by_what_the_file_says_now(tmp_path: Path) -> None:
    never = {"cellblock.app.cli.serve.CHECK_SECONDS": 600}
    async with daemon(tmp_path, constants=never, pool={"warm": 0}, typecheck="off"):
        place = ["--config", tmp_path / "cellblock.json"]
        state = ["--state-dir", tmp_path / "s"]

        async def connected() -> bool:
            return "plain: ready" in (await cellblock("status", *place, *state)).out

        await until_found(connected, "the server is connected")
        for change, asks in (("disable", ("status",)), ("enable", ("restart", "plain"))):
            await cellblock(change, "plain", *place, code=0)
            done = await cellblock(*asks, *place, *state)
            assert (done.code, done.err) == (0, "") and (change == "enable" or "plain" not in done.out), done
        await cellblock("remove", "plain", *place, code=0)
        assert "not taken over" not in (await cellblock("logs", "plain", *place, *state)).err


HANGS = """
import os, pathlib, signal, sys, time
folder = pathlib.Path(sys.argv[1])
began = folder / "began"
if began.exists():
    print("here I am again", file=sys.stderr, flush=True)
    os.execv(sys.executable, [sys.executable, "-I", sys.argv[2]])
signal.signal(signal.SIGTERM, signal.SIG_IGN)
print("I hang \\x1b[31m", file=sys.stderr, flush=True)
(folder / "new").write_text(str(os.getpid()))
os.replace(folder / "new", began)
while True:
    time.sleep(1000)
"""


async def test_what_pins_hold_back_is_told_until_it_is_approved(tmp_path: Path) -> None:
    definitions = tmp_path / "definitions.json"
    texts = {"description": "Is harmless", "inputSchema": {"type": "object"}}
    definitions.write_text(json.dumps({"pages": [[{"name": name, **texts} for name in ("one", "two")]]}))
    entry = plain_server("--definitions", definitions)
    place = ["--config", write_config(tmp_path, {"x": entry}), "--state-dir", tmp_path / "s"]
    approve = ("pins", "approve", "x", "--all", *place)
    assert (await cellblock(*approve)).code == 0
    other = {**entry, "args": [*entry["args"], "--ledger", str(tmp_path / "x")]}
    light = {"pool": {"warm": 0}, "typecheck": "off", "pins": {"*": "quarantine"}}
    async with daemon(tmp_path, servers={"x": other}, **light) as running:
        await cellblock("restart", "x", "--url", running.url, *place[2:])
        shown = await cellblock("status", "x", *place)
        why = "2 of its tools and its introduction were pinned for another command or URL and are left out: one, two"
        assert "x: ready, 0 tools, 2 left out\n" in shown.out, shown
        assert f"  {why}. Review them: `cellblock pins approve x`\n" in shown.out
        assert (await cellblock(*approve)).code == 0
        assert (await cellblock("status", "x", *place, code=0)).out.endswith("x: ready, 2 tools\n")


async def test_a_server_that_hangs_is_started_again_and_its_log_is_shown(tmp_path: Path) -> None:
    program = tmp_path / "hangs.py"
    program.write_text(HANGS)
    server = {
        "command": sys.executable,
        "args": [str(program), str(tmp_path), str(SERVERS / "plain_server.py")],
    }
    began = tmp_path / "began"
    light = {"pool": {"warm": 0}, "typecheck": "off"}
    off = {"servers": {"hangs": server}, "dashboard": {"enabled": False}}
    async with daemon(tmp_path, **off, **light) as running, contextlib.AsyncExitStack() as stack:
        await until(began.exists, "the server hangs")
        hanging = psutil.Process(int(began.read_text()))
        options = ["--state-dir", str(tmp_path / "s"), "--url", running.url]

        follower = (await stack.enter_async_context(piped("logs", "hangs", "-f", *options))).process
        # What a terminal would obey is not passed on.
        assert b"I hang" in (line := await within(follower.stdout.readline())) and b"\x1b" not in line

        _, shown, said = await cellblock("restart", "hangs", *options, code=0)
        assert shown.startswith("hangs runs again, with ") and not said
        await gone([hanging])
        assert b"here I am again" in await within(follower.stdout.readline())
        log = tmp_path / "s" / "logs" / "upstream-hangs.log"
        log.write_bytes(b"a new file\n")
        assert b"a new file" in await within(follower.stdout.readline())
        log.write_bytes(b"x\n" * (CAP_BYTES // 4) + b"the end\n")
        _, shown, said = await cellblock("logs", "hangs", "--lines", "2", *options)
        assert shown == "x\nthe end\n" and not said

        assert "has no server hung" in (await cellblock("restart", "hung", *options, code=2)).err

        # Who has no token, or a browser's cookie, or another page, starts nothing.
        url = f"http://127.0.0.1:{running.port}/servers/hangs"
        async with httpx2.AsyncClient(trust_env=False, verify=False, timeout=60) as http:
            page = {**running.auth, "Origin": "https://evil.example"}
            for method, headers, status in (
                ("POST", {}, 401),
                ("POST", page, 403),
                ("PUT", running.auth, 405),
            ):
                assert (await http.request(method, url, headers=headers)).status_code == status
            assert (await http.get(url, headers=running.auth)).json()["state"] == "ready"

        (plain,) = [one for one in running.family() if str(tmp_path / "ledger.jsonl") in one.cmdline()]
        assert (await cellblock("restart", "plain", *options))[0] == 0
        assert not alive(plain)
    assert "No daemon answers" in (await cellblock("restart", "hangs", *options, code=3)).err
    code, shown, said = await cellblock("logs", "hangs", "--lines", "1", *options)
    assert (code, shown) == (0, "the end\n") and "No daemon answers" in said
