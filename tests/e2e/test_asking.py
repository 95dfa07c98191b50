"""One-shot commands ask a daemon of the same configuration, and start servers of their own where none runs: no more
than they use. What is imported before a client's `initialize` is answered: the client waits for each package of it.
Servers that do not start at once, or not at all: no command breaks an installation by its end, as `npx` makes one;
and what a daemon's environment lacks is told by every command that speaks with the daemon, and shown on its pages.
"""

import asyncio
import importlib.util
import json
import re
import shutil
import signal
import sys
from asyncio.subprocess import DEVNULL, STDOUT
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx2
import psutil
import pytest

from cellblock.app.assembly import REACH, RUNS, SESSIONS, WORKERS
from cellblock.base.state_dir import HOST_LOG, LOGS
from support.cellblock_zygote import forked_cellblock, with_constants
from support.commands import Said, cellblock, piped
from support.entries import CELLBLOCK, Entry, plain_server, recorded, write_config
from support.http_daemon import INITIALIZE, Daemon, daemon
from support.processes import gone, workers_of
from support.pseudo_terminal import in_terminal
from support.waits import steady, until, until_found, within

SCRIPT = (
    'import { echo } from "@codemode/servers/plain"; console.log("é"); export default await echo({ a: 1.5 });'
)
BROKEN = "import sys; print('Traceback:\\nacme.Error:\\nno key in ACME_KEY', file=sys.stderr); sys.exit(1)"

FAILS_ONCE = '[ -e "$1" ] && exec sleep 600; : > "$1"; echo "Error: no database." >&2; exit 1'

LIGHT: dict[str, Any] = {"pool": {"warm": 0}, "typecheck": "off"}


def starts(folder: Path) -> int:
    return (folder / "starts").read_text().count("x") if (folder / "starts").exists() else 0


def counted(folder: Path) -> dict[str, object]:
    """The plain server, which writes a letter for each of its starts."""
    plain = plain_server()
    begin = f'printf x >> {folder}/starts; exec "$@"'
    return {"command": "sh", "args": ["-c", begin, "sh", plain["command"], *plain["args"]]}


async def said(
    folder: Path, *words: object, code: int = 0, config: str = "cellblock.json", **options: Any
) -> Said:
    """What a command says that ends so."""
    place = ("--config", folder / config, "--state-dir", folder / "s")
    return await cellblock(*words, *place, code=code, **options)


async def test_five_commands_start_a_server_once(tmp_path: Path) -> None:
    script, failing = tmp_path / "script.js", tmp_path / "failing.js"
    script.write_text(SCRIPT)
    failing.write_text("throw new Error('no')")
    servers = {"plain": counted(tmp_path), "broken": {"command": sys.executable, "args": ["-c", BROKEN]}}
    async with daemon(tmp_path, servers=servers, **LIGHT) as running:
        done = await said(tmp_path, "run", script, "--max-tool-calls", "3")
        response = json.loads(done.out)
        assert (response["result"], done.err) == ('{"a": 1.5}', "")
        assert [one["message"] for one in response["logs"]] == ["é"]
        done = await said(tmp_path, "run", failing, code=1)
        assert json.loads(done.out)["diagnostics"][0]["message"].endswith("no")
        assert "the script failed" in done.err
        for words, code, out, err in (
            (("run", script, "--require", "broken"), 2, "", ".*broken.*"),
            (("types", "plain"), 0, r".*function echo\(.*", ""),
            (("search", "zzz"), 1, "nothing found; not connected: broken\n", ".*no key in ACME_KEY.*"),
            (("inspect", "plain.echo"), 0, '{.*"toolName": ?"echo".*}\n', ".*"),
            (("inspect", "broken.tool"), 2, ".*", ".*Server broken is not connected.*ACME_KEY.*"),
        ):
            done = await said(tmp_path, *words, code=code)
            assert re.fullmatch(out, done.out, re.DOTALL) and re.fullmatch(err, done.err, re.DOTALL), done
        report = json.loads((await said(tmp_path, "doctor", "--json", code=1)).out)
        assert report["servers"]["plain"].startswith("connected, ")
        assert starts(tmp_path) == 1

        async def is_between_two_tries() -> bool:
            shown = (await said(tmp_path, "status", code=1)).out
            assert "plain: ready" in shown and "it said: no key in ACME_KEY" in shown
            return "again: cellblock restart broken" in shown

        await until_found(is_between_two_tries, "the broken server waits for its next start")
        logged = "cellblock: not connected: it ended by itself; it said: no key in ACME_KEY"
        assert logged in (await said(tmp_path, "logs", "broken")).out
        await said(tmp_path, "restart", "plain")
        assert starts(tmp_path) == 2
        shown = json.loads((await said(tmp_path, "status", "plain", "--json")).out)
        assert shown["pid"] == running.process.pid
        await said(tmp_path, "status", "none", code=2)

        # Another file is another configuration, whatever it says.
        other = tmp_path / "other.json"
        other.write_bytes((tmp_path / "cellblock.json").read_bytes())
        done = await said(tmp_path, "run", script, config="other.json")
        assert json.loads(done.out)["result"] == '{"a": 1.5}' and "another configuration file" in done.err
        assert starts(tmp_path) == 3
        assert (await said(tmp_path, "stop", config="other.json")).out.startswith("Nothing was ended.")
        # What needs a restart is not in force, and so not what the command would use.
        changed = json.loads(other.read_text())
        changed["cellblock"]["pool"]["warm"] = 1
        changed["cellblock"]["limits"] = {"max_tool_calls": 50}
        (tmp_path / "cellblock.json").write_text(json.dumps(changed))
        done = await said(tmp_path, "run", script)
        assert "cellblock.pool.warm has changed, which needs a restart" in done.err
        assert starts(tmp_path) == 4
        # The state of the daemon that runs is what `status` is for.
        done = await said(tmp_path, "status", code=1)
        why = "cellblock.pool.warm has changed, which needs a restart\n"
        assert "plain: ready" in done.out
        assert f"the daemon has not taken over its configuration file as it is now: {why}" in done.err

        done = await said(tmp_path, "stop")
        assert done.out == f"The daemon (process {running.process.pid}) has ended.\n"
        await within(running.process.wait())
    done = await said(tmp_path, "stop")
    assert "No daemon" in done.out and not done.err
    await said(tmp_path, "status", code=3)


async def test_a_daemon_asks_the_person_at_the_command_and_ends_the_run_of_one_that_is_ended(
    tmp_path: Path,
) -> None:
    asks, waits = tmp_path / "asks.js", tmp_path / "waits.js"
    asks.write_text(
        'import { give } from "@codemode/servers/plain"; export default (await give({ path: "a" })).path;'
    )
    waits.write_text('import { never } from "@codemode/servers/plain"; await never({});')
    servers = {"plain": plain_server("--ledger", tmp_path / "ledger.jsonl")}
    policy = {"default": {"approve": ["plain.give"]}}
    async with daemon(tmp_path, servers=servers, policy=policy, **LIGHT) as running:
        options = ["--config", str(tmp_path / "cellblock.json"), "--state-dir", str(tmp_path / "s")]
        asked = ["run", str(asks), *options]
        async with in_terminal(
            str(forked_cellblock()), *asked, streams=(0, 2), stdout=asyncio.subprocess.PIPE
        ) as terminal:
            await until(lambda: "Allow it? [y/N] " in terminal.text, "the question", bound=60)
            terminal.press(b"y\n")
            assert json.loads(await within(terminal.process.stdout.read(), 60))["result"] == "a"
        async with piped("run", waits, *options) as command:
            await until(lambda: running.recorded(tool="never") == 1, "the call is made", bound=60)
            command.process.terminate()
            assert await within(command.process.wait()) == 143
        await until(lambda: running.recorded(event="cancelled") == 1, "the run has ended", bound=60)


async def test_a_server_that_is_being_installed_still_starts(tmp_path: Path) -> None:
    servers = {
        "late": {"command": "sleep", "args": ["600"]},
        "absent": {"command": str(tmp_path / "absent")},
        "again": {"command": "sh", "args": ["-c", FAILS_ONCE, "sh", str(tmp_path / "began")]},
    }
    async with daemon(tmp_path, servers=servers, upstream={"connect_timeout_ms": 300_000}, **LIGHT):
        out = (await said(tmp_path, "status", "late", code=1)).out
        assert "late: connecting" in out and out.endswith("  It still starts\n")
        out = (await said(tmp_path, "status", "absent", code=1)).out
        assert "again: cellblock restart absent" in out and out.count("Correct command in its entry") == 1

        # What is tried again has failed, and does not still start.
        async def tried_again() -> str | None:
            out = (await said(tmp_path, "status", "again", code=1)).out
            return out if "again: connecting" in out and "no database" in out else None

        shown = await until_found(tried_again, "the second attempt", bound=60)
        assert "All that it said is in" in shown and "It still starts" not in shown
        assert "Did you mean again?" in (await said(tmp_path, "status", "agan", code=2)).err


async def test_a_daemon_whose_state_was_removed_ends(tmp_path: Path) -> None:
    looks = {"cellblock.app.cli.serve_http.POLL_SECONDS": 0.1}
    async with daemon(tmp_path, constants=looks, **LIGHT) as running:
        # Out of the daemon's way first, which may write there meanwhile.
        shutil.rmtree((tmp_path / "s").rename(tmp_path / "removed"))
        assert await within(running.process.wait(), 60) == 0


USES_PLAIN = 'import { echo } from "@codemode/servers/plain"; console.log(await echo({ a: 1 }));'


def configured(folder: Path) -> None:
    write_config(folder, {"plain": plain_server("--ledger", folder / "ledger.jsonl")}, pool={"warm": 4})


@pytest.mark.parametrize(("words", "has_host"), [(("types",), False), (("run", "one.js"), True)])
async def test_only_a_command_that_runs_scripts_starts_a_worker_host(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], has_host: bool
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "one.js").write_text("1")
    configured(tmp_path)
    await said(tmp_path, *words)
    assert (tmp_path / "s" / LOGS / HOST_LOG).exists() == has_host


async def test_a_run_does_not_wait_for_a_server_that_it_does_not_use(tmp_path: Path) -> None:
    """That server is never ready, and its bounds are ten minutes: a run that waited for it would not end here."""
    script = tmp_path / "script.js"
    script.write_text(USES_PLAIN)
    slow = {"command": sys.executable, "args": ["-c", "import sys; sys.stdin.read()"]}
    record = tmp_path / "ledger.jsonl"
    servers = {"plain": plain_server("--ledger", record), "slow": slow}
    bounds = {"connect_timeout_ms": 600_000, "list_wait_ms": 600_000}
    startup = {"cellblock.tools.upstream.registry.STARTUP_WAIT_SECONDS": 600.0}
    write_config(tmp_path, servers, upstream=bounds)
    await said(tmp_path, "run", script, env=with_constants(startup))
    assert recorded(record, tool="echo")


async def test_a_run_boots_no_workers_for_others(tmp_path: Path) -> None:
    script = tmp_path / "script.js"
    script.write_text('import { never } from "@codemode/servers/plain"; await never({});')
    configured(tmp_path)
    place = ("--config", tmp_path / "cellblock.json", "--state-dir", tmp_path / "s")
    # The real one has the real host below it.
    async with piped("run", script, *place, program=CELLBLOCK) as running:
        process = running.process
        await until(lambda: recorded(tmp_path / "ledger.jsonl", tool="never"), "the call")
        workers = await steady(lambda: {worker.pid for worker in workers_of(process.pid)}, "all are booted")
        # Its own, and the one that takes the place of that.
        assert 1 <= len(workers) <= 2
        left = psutil.Process(process.pid).children(recursive=True)
        process.terminate()
        await within(process.wait())
    await gone(left)


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
    "mcp.client",
    "mcp.server.mcpserver",
    "cryptography",
    "jsonschema_rs",
)
"""Names what runs scripts and reaches servers: modules, and rooms that are not entered. Of the SDK, what no greeting
needs."""


async def imported(*arguments: str) -> tuple[list[str], dict[str, object] | None]:
    """What Python imports for `python ARGUMENTS`, until it writes a line of JSON if it does; and that line."""
    names: list[str] = []
    python = Path(sys.executable)
    async with piped("-X", "importtime", *arguments, program=python, stderr=STDOUT) as running:
        running.send(INITIALIZE)
        while line := await within(running.process.stdout.readline()):
            if line.startswith(b"{"):
                return names, json.loads(line)
            assert line.startswith(b"import time:"), line
            names.append(line.rpartition(b"|")[2].strip().decode())
        return names, None


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
    write_config(tmp_path, {})
    words = ("-X", "importtime", "-m", "cellblock.cli", "run", script)
    done = await said(tmp_path, *words, program=Path(sys.executable))
    names = [line.rpartition("|")[2].strip() for line in done.err.splitlines()]
    assert "cellblock.run.calls" in names
    assert [name for name in names if name.partition(".")[0] == "mcp"] == []


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


@pytest.mark.thorough
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
    await gone([installer])
    done = await cellblock(*doctor, code=0)
    assert "is being started or installed" not in done.err
    assert "first: connected" in done.out and "second: connected" in done.out


@pytest.mark.thorough
async def test_a_command_waits_for_an_installation_beyond_its_bounds_and_says_so(
    tmp_path: Path, cache: Path
) -> None:
    entry = installed_first(tmp_path, cache)
    words = ("types", *place(tmp_path, dict.fromkeys(("first", "second"), entry), upstream=SHORT))
    often = {f"cellblock.tools.upstream.registry.{name}_SECONDS": 0.1 for name in ("QUIET", "TELL", "POLL")}
    done = await cellblock(*words, code=0, env=with_constants(often))
    assert "not connected" not in done.err
    # The pauses double: one that takes minutes fills no screen.
    assert 1 <= done.err.count("server first is being started or installed by its program") <= 10
    assert "server second is being started or installed by its program" in done.err


@pytest.mark.thorough
async def test_a_script_waits_for_the_servers_that_it_names(tmp_path: Path, cache: Path) -> None:
    slow = installed_first(tmp_path, cache)
    slow["env"]["FAKE_CACHE"] = str(tmp_path / "nowhere")
    script = tmp_path / "script.js"
    script.write_text('import * as first from "@codemode/servers/first"; first;', encoding="utf-8")
    servers = {"first": installed_first(tmp_path, cache), "other": slow}
    done = await cellblock("run", script, *place(tmp_path, servers), code=0)
    assert "server first is being started or installed" in done.err and "server other" not in done.err


LACKING = {**plain_server(), "env": {"TOKEN": "${env:NOT_SET_FOR_THE_DAEMON}"}}
TOLD = "the daemon does not start the server lacking: the environment variable NOT_SET_FOR_THE_DAEMON is not set."


@pytest.fixture(scope="module")
async def lacking(tmp_path_factory: pytest.TempPathFactory) -> AsyncIterator[Daemon]:
    servers = {"plain": plain_server(), "lacking": LACKING}
    async with daemon(tmp_path_factory.mktemp("lacking"), servers=servers, **LIGHT) as running:
        yield running


@pytest.mark.thorough
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
    lacking: Daemon, words: list[str], code: int, times: int
) -> None:
    options = ("--state-dir", lacking.folder / "s", "--url", lacking.url)
    given = json.dumps(INITIALIZE).encode() + b"\n"
    done = await cellblock(*words, *options, code=code, given=given, program=CELLBLOCK)
    assert (done.err.count(TOLD), "serverInfo" in done.out) == (times, "connect" in words)


@pytest.mark.thorough
async def test_it_is_shown_with_the_others(lacking: Daemon) -> None:
    options = ("--config", lacking.folder / "cellblock.json", "--state-dir", lacking.folder / "s")
    out = (await cellblock("status", "lacking", *options, code=1, program=CELLBLOCK)).out
    assert "NOT_SET_FOR_THE_DAEMON" in out and "again:" not in out
    async with httpx2.AsyncClient(headers=lacking.auth, trust_env=False, verify=False) as http:
        state = (await http.get(lacking.url.replace("/mcp", "/dashboard/state"))).json()
        metrics = (await http.get(lacking.url.replace("/mcp", "/metrics"))).text
    row = next(one for one in state["upstreams"] if one["name"] == "lacking")
    assert (row["state"], row["reason"]) == ("not started", TOLD.split(": ", 1)[1].removesuffix("."))
    assert 'cellblock_upstream_up{server="lacking"} 0' in metrics
