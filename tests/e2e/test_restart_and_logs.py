"""`cellblock restart` and `cellblock logs` against a real daemon, with a server that hangs and does not want to end."""

import contextlib
import json
import sys
from pathlib import Path

import httpx2
import psutil

from cellblock.tools.upstream.server_log import CAP_BYTES
from support.commands import cellblock, piped
from support.entries import SERVERS, plain_server, write_config
from support.http_daemon import daemon
from support.processes import alive, gone
from support.waits import until, within

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
        shown = await cellblock("status", "x", *place)
        assert shown.code == 0 and shown.out.endswith("x: ready, 2 tools\n"), shown


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

        code, shown, said = await cellblock("restart", "hangs", *options)
        assert code == 0 and shown.startswith("hangs runs again, with ") and not said
        await gone([hanging])
        assert b"here I am again" in await within(follower.stdout.readline())
        log = tmp_path / "s" / "logs" / "upstream-hangs.log"
        log.write_bytes(b"a new file\n")
        assert b"a new file" in await within(follower.stdout.readline())
        log.write_bytes(b"x\n" * (CAP_BYTES // 4) + b"the end\n")
        _, shown, said = await cellblock("logs", "hangs", "--lines", "2", *options)
        assert shown == "x\nthe end\n" and not said

        code, _, said = await cellblock("restart", "hung", *options)
        assert code == 2 and "has no server hung" in said

        # Who has no token, or a browser's cookie, or another page, starts nothing.
        url = f"http://127.0.0.1:{running.port}/servers/hangs"
        async with httpx2.AsyncClient(trust_env=False, verify=False, timeout=60) as http:
            assert (await http.post(url)).status_code == 401
            page = {**running.auth, "Origin": "https://evil.example"}
            assert (await http.post(url, headers=page)).status_code == 403
            assert (await http.put(url, headers=running.auth)).status_code == 405
            assert (await http.get(url, headers=running.auth)).json()["state"] == "ready"

        (plain,) = [one for one in running.family() if str(tmp_path / "ledger.jsonl") in one.cmdline()]
        assert (await cellblock("restart", "plain", *options))[0] == 0
        assert not alive(plain)
    code, _, said = await cellblock("restart", "hangs", *options)
    assert code == 3 and "No daemon answers" in said
    code, shown, said = await cellblock("logs", "hangs", "--lines", "1", *options)
    assert (code, shown) == (0, "the end\n") and "No daemon answers" in said
