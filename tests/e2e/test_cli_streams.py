"""Standard streams of commands: closed, full, left by their reader, or in an encoding that lacks what is said;
signals while one waits for a pipe. `cellblock run` on a terminal and elsewhere: a line on stderr while it works, and
questions about calls, on terminals alone; JSON alone on stdout; grants that narrow what a script may call.

`run`, `--version` and what gets a signal early are the console script, which Python starts with such streams; the
other commands are forked. A forked `cellblock` does what the console script does, and no more of it is shared than the
zygote says.
"""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import AsyncGenerator, Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from cellblock.app.cli.arguments import default_file
from support.cellblock_zygote import PRELOADED, forked_cellblock, pid_of
from support.commands import cellblock, piped
from support.entries import CELLBLOCK, ledger, plain_server, write_config
from support.processes import gone, waits_for_a_pipe
from support.pseudo_terminal import Terminal, in_terminal
from support.waits import until, within

CODE = """
import { echo, wait } from "@codemode/servers/plain";
await echo({});
console.log("half \\x1b[2J way");
await wait({ ms: 600 });
globalThis.__codemode_result__ = 7;
console.log("\\x9b2J\\u202e");
"""


def command(
    folder: Path, *options: str, code: str = CODE, script: str | None = None, **policy: Any
) -> list[str]:
    (folder / "script.js").write_text(code)
    config = write_config(folder, {"plain": plain_server("--ledger", folder / "ledger")}, policy=policy)
    place = ["--config", str(config), "--state-dir", str(folder / "s")]
    return ["run", script or str(folder / "script.js"), *place, *options]


async def test_a_terminal_sees_the_run_go_on(tmp_path: Path) -> None:
    words = (str(forked_cellblock()), *command(tmp_path))
    async with in_terminal(*words, streams=(2,), stdin=DEVNULL, stdout=PIPE) as terminal:
        out = await within(terminal.process.stdout.read(), 60)
        assert await within(terminal.process.wait(), 60) == 0
        assert json.loads(out)["result"] == 7
        # JSON escapes C0 by itself; C1 and what reorders text are escaped too.
        assert b"\\u009b2J\\u202e" in out and json.loads(out)["logs"][-1]["message"] == "\x9b2J\u202e"
        await until(lambda: terminal.text.endswith("\r\x1b[K"), "a wiped line")
        lines = terminal.text.split("\r")
        assert any("connecting" in line for line in lines)
        (busy, *_) = [line for line in lines if "in plain.wait" in line and "half" in line]
        assert "running" in busy and "1 of 2 calls done" in busy
        # The script's own escape sequence is shown, not obeyed.
        assert "half ·[2J way" in busy and "\x1b[2J" not in terminal.text
        # What was used stands above the line.
        first, second, rest = terminal.text.split("\r\n", 2)
        assert first == f"cellblock: configuration: {tmp_path / 'cellblock.json'}" and "\n" not in rest
        assert second.endswith(
            "No daemon of this configuration runs. The servers are started for this command alone."
        )


async def test_a_pipe_sees_nothing(tmp_path: Path) -> None:
    done = await cellblock(*command(tmp_path))
    assert (json.loads(done.out)["result"], done.err) == (7, "")


ASKING = """
import { give, echo } from "@codemode/servers/plain";
const said = [];
for (const path of ["first", "sec\\u001b[2Jond", "third", "fourth"]) {
  try { said.push((await give({ path })).path); } catch (error) { said.push(error.code); }
}
globalThis.__codemode_result__ = said;
"""


async def question(terminal: Terminal, number: int) -> str:
    """The last prompt, when so many were made."""
    await until(lambda: terminal.text.count("Allow it? [y/N] ") == number, f"question {number}", bound=60)
    return terminal.text.rpartition("A script wants to call ")[2]


@pytest.mark.thorough
async def test_a_person_at_the_terminal_is_asked(tmp_path: Path) -> None:
    """The clock stands still; what was typed before, and what nobody can see, decides nothing."""
    asked = command(tmp_path, "--timeout-ms", "2000", code=ASKING, default={"approve": ["plain.give"]})
    async with in_terminal(str(CELLBLOCK), *asked, streams=(0, 2), stdout=PIPE) as terminal:
        terminal.press(b"y\ny\ny\n")
        assert '"first"' in await question(terminal, 1)
        await asyncio.sleep(2.5)
        terminal.press(b"y\n")
        second = await question(terminal, 2)
        assert "\\u001b[2J" in second and "\x1b[2J" not in second
        terminal.press(b"perhaps\n")
        await question(terminal, 3)
        terminal.press(b"\n")
        await question(terminal, 4)
        terminal.press(b"\x04")
        await question(terminal, 5)
        terminal.press(b"YES\n")
        response = json.loads(await within(terminal.process.stdout.read(), 60))
        assert response["result"] == ["first", "APPROVAL_DECLINED", "APPROVAL_CANCELLED", "fourth"], response
        assert response["usage"]["approvalWaitMs"] >= 2500
        assert await within(terminal.process.wait(), 60) == 0
    assert sum(event.get("tool") == "give" for event in ledger(tmp_path / "ledger")) == 2


@pytest.mark.thorough
@pytest.mark.parametrize("script", ["file", "-"])
async def test_nobody_is_asked_where_nobody_sits(tmp_path: Path, script: str) -> None:
    """Not when standard input is no terminal, and not when the script comes from it."""
    given = None if script == "file" else script
    asked = command(tmp_path, code=ASKING, script=given, default={"approve": ["plain.give"]})
    streams: dict[str, Any] = {"streams": (0, 2)} if given else {"streams": (2,), "stdin": DEVNULL}
    async with in_terminal(str(CELLBLOCK), *asked, **streams, stdout=PIPE) as terminal:
        if given:
            terminal.press(ASKING.encode() + b"\x04")
        out = await within(terminal.process.stdout.read(), 60)
    assert json.loads(out)["result"] == ["APPROVAL_UNAVAILABLE"] * 4
    assert "Allow it?" not in terminal.text


@pytest.mark.thorough
@pytest.mark.parametrize("how", ["json", "file"])
async def test_grants_narrow_a_run(tmp_path: Path, how: str) -> None:
    grants = '{"tools": ["plain.echo"]}'
    if how == "file":
        file = tmp_path / "grants.json"
        file.write_text(grants)
        grants = str(file)
    code, out, _ = await cellblock(*command(tmp_path, "--grants", grants, code=ASKING))
    (found, *_) = json.loads(out)["diagnostics"]
    assert (code, found["code"]) == (1, "IMPORT_FAILURE")
    assert "grant" in found["message"] + found["hint"]


@pytest.mark.thorough
@pytest.mark.parametrize(
    ("grants", "said"),
    [
        ("missing.json", "--grants missing.json: cannot be read"),
        ("{not json", "--grants: this is no JSON"),
        ('{"tols": []}', "tols"),
        ('{"budgets": {"plain.*": -1}}', "budgets"),
        ('{"arguments": {"plain.*": {"type": "sting"}}}', "plain.*"),
        ('{"arguments": {"plain.*": {"$ref": "https://evil.example/schema"}}}', "remote references"),
    ],
)
async def test_grants_that_cannot_be_used_run_nothing(tmp_path: Path, grants: str, said: str) -> None:
    code, out, err = await cellblock(*command(tmp_path, "--grants", grants, code=ASKING))
    assert (code, out) == (2, "")
    assert said in err and len(err.splitlines()) == 1, err
    assert not (tmp_path / "s").exists(), "nothing was started for it"


COMMANDS = {
    "run": ("run", "script.js"),
    "types": ("types", "--config", "cellblock.json"),
    "config check": ("config", "check", "--config", "cellblock.json"),
    "import": ("import", "--dry-run"),
    "service": ("service", "--systemd"),
    "version": ("--version",),
    "help": ("run", "--help"),
}

SCRIPT = "globalThis.__codemode_result__ = 'ü€😀'.repeat(100_000);"
"""Its response is far over what a pipe holds."""


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "script.js").write_text(SCRIPT, encoding="utf-8")
    write_config(tmp_path, {"plain": plain_server()})
    return tmp_path


def shell(
    folder: Path, line: str, *words: str, program: Path | None = None, **env: str
) -> subprocess.CompletedProcess[bytes]:
    """A line of bash; `"$@"` in it is the command."""
    if program is None:
        program = CELLBLOCK if words[0] in ("run", "--version") or env else forked_cellblock()
    return subprocess.run(
        ["bash", "-c", line, "-", str(program), *words],
        cwd=folder,
        env={"PATH": os.environ["PATH"], "HOME": str(folder), **env},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        timeout=120,
    )


@pytest.mark.thorough
@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_an_output_that_cannot_be_written_is_said_and_has_an_exit_code_of_its_own(
    folder: Path, words: tuple[str, ...]
) -> None:
    for line, why in (('"$@" >/dev/full', "No space left on device"), ('"$@" >&-', "Bad file descriptor")):
        done = shell(folder, line, *words)
        said = f"cellblock: Standard output cannot be written: {why}.\n"
        assert (done.returncode, done.stderr.decode()) == (3, said)


@pytest.mark.thorough
@pytest.mark.parametrize("words", [COMMANDS["run"], COMMANDS["types"], COMMANDS["version"]])
def test_a_reader_that_has_gone_ends_a_command_as_sigpipe_does(folder: Path, words: tuple[str, ...]) -> None:
    # Its reader has gone before anything is written.
    assert shell(folder, '{ sleep 0.2; "$@"; echo $? >&2; } | true', *words).stderr == b"141\n"


@pytest.mark.thorough
@pytest.mark.parametrize("closed", ["<&-", "2>&-", "2>/dev/full", "<&- 2>&-"])
def test_without_the_other_streams_a_command_does_the_same(folder: Path, closed: str) -> None:
    done = shell(folder, f'"$@" {closed}', *COMMANDS["run"])
    assert done.returncode == 0
    assert json.loads(done.stdout)["result"] == "ü€😀" * 100_000
    refused = shell(folder, f'"$@" {closed}', "run", "absent.js", program=forked_cellblock())
    assert (refused.returncode, refused.stdout) == (2, b"")


@pytest.mark.thorough
@pytest.mark.parametrize("encoding", ["latin-1", "ascii:strict"])
def test_data_is_utf_8_and_text_is_escaped_where_the_encoding_lacks_it(folder: Path, encoding: str) -> None:
    ran = shell(folder, '"$@"', *COMMANDS["run"], PYTHONIOENCODING=encoding)
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert json.loads(ran.stdout.decode())["result"].startswith("ü€😀")
    (folder / "€.json").write_text('{"mcpServers": {"x": {"command": "x"}}}')
    checked = shell(folder, '"$@"', "config", "check", "--config", "€.json", PYTHONIOENCODING=encoding)
    assert (checked.returncode, checked.stdout) == (0, b"\\u20ac.json: fine. Servers: x (stdio)\n")


@pytest.mark.thorough
async def test_whatever_is_written_does_nothing_to_a_terminal(tmp_path: Path) -> None:
    hostile = "\x1b]52;c;ZXZpbA==\x07\x1b[2Aup\r\u202e"
    file = tmp_path / f"x{hostile}.json"
    file.write_text(json.dumps({"mcpServers": {f"a{hostile}": {"command": f"b{hostile}"}}, f"c{hostile}": 1}))
    config = ("--config", str(file))
    for words in (
        ("config", "check", *config),
        ("add", *config, f"x{hostile}", "--", "y"),
        ("schemas", "show", *config),
        ("types", *config),
    ):
        async with in_terminal(str(CELLBLOCK), *words) as terminal:
            await within(terminal.process.wait())
        left = re.sub(r"\x1b\[[\d;]*m", "", terminal.text).replace("\r\n", "\n")
        assert all(one.isprintable() or one in "\n\t" for one in left), (words, left)


WAITING = {
    "stdin": ("run", "-"),
    "script": ("run", "{fifo}"),
    "config": ("run", "one.js", "--config", "{fifo}"),
    "grants": ("run", "one.js", "--grants", "{fifo}"),
}


def catches(pid: int, number: int) -> bool:
    """Whether a process has a handler of its own for a signal."""
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    (caught,) = [line.split()[1] for line in lines if line.startswith("SigCgt:")]
    return bool(int(caught, 16) >> (number - 1) & 1)


@pytest.mark.thorough
@pytest.mark.parametrize("words", WAITING.values(), ids=WAITING)
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_command_that_waits_for_a_pipe_ends_at_the_first_signal(
    tmp_path: Path, words: tuple[str, ...], number: signal.Signals
) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo, 0o600)
    (tmp_path / "one.js").write_text("1")
    async with piped(
        *(word.format(fifo=fifo) for word in words),
        program=CELLBLOCK,
        cwd=tmp_path,
        env={"PATH": os.environ["PATH"], "HOME": str(tmp_path)},
        stdout=DEVNULL,
        # As in a shell's foreground.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.default_int_handler),
    ) as running:
        process = running.process
        await until(lambda: waits_for_a_pipe(process.pid), "it waits")
        process.send_signal(number)
        assert await within(process.wait()) in (128 + number, -number)
        assert b"Traceback" not in await within(process.stderr.read())


@pytest.mark.thorough
@pytest.mark.parametrize(
    "words", [("run", "one.js"), ("doctor", "--json"), ("schemas", "export"), ("types",)]
)
def test_a_configuration_from_a_process_substitution_is_read_once(
    tmp_path: Path, words: tuple[str, ...]
) -> None:
    (tmp_path / "one.js").write_text("globalThis.__codemode_result__ = 1;")
    line = '"$@" --config <(echo "{}")' + (
        " --grants <(echo '{\"readOnly\": true}')" if words[0] == "run" else ""
    )
    done = shell(tmp_path, line, *words, program=forked_cellblock())
    assert done.stdout and done.returncode != 2, done.stderr
    assert b"JSON" not in done.stderr


@contextlib.asynccontextmanager
async def serving(
    folder: Path, *options: str, early: bool = False
) -> AsyncGenerator[tuple[Process, list[str]]]:
    """A daemon that has said where it serves; with `early` it gets a SIGHUP as soon as it knows what that is."""
    words = ("serve", "--http", "127.0.0.1:0", "--state-dir", folder / "s", *options)
    environment = {"PATH": os.environ["PATH"], "HOME": str(folder)}
    program = CELLBLOCK if early else None
    async with piped(*words, program=program, stdin=DEVNULL, stdout=DEVNULL, env=environment) as running:
        process = running.process
        if early:
            await until(lambda: catches(process.pid, signal.SIGHUP), "it heeds SIGHUP", pause=0.001)
            process.send_signal(signal.SIGHUP)
        said: list[str] = []
        await hears(process, said, "the token is in")
        yield process, said
        process.terminate()
        assert await within(process.wait()) == 0


async def hears(process: Process, said: list[str], wanted: str) -> None:
    """Reads what the daemon says until it has said this."""
    while not any(wanted in line for line in said):
        line = (await within(process.stderr.readline(), 60)).decode()
        assert line, f"it ended: {said}"
        said.append(line)


@pytest.mark.thorough
async def test_a_daemon_without_a_file_takes_the_users_own_once_that_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    async with serving(tmp_path) as (process, said):
        process.send_signal(signal.SIGHUP)
        await hears(process, said, "nothing has changed")
        file = default_file()
        file.parent.mkdir(parents=True)
        write_config(file.parent, {"late": {"command": "true"}})
        await hears(process, said, "server late is added")


@pytest.mark.thorough
async def test_a_reload_that_comes_while_a_daemon_starts_is_done_then(tmp_path: Path) -> None:
    config = write_config(tmp_path, {})
    async with serving(tmp_path, "--config", str(config), early=True) as (process, said):
        await hears(process, said, "nothing has changed")


@pytest.mark.thorough
async def test_a_daemon_whose_file_was_a_pipe_reads_it_once(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    async with (
        piped("-c", 'echo "{}" > "$0"', fifo, program=Path("/bin/sh")),
        serving(tmp_path, "--config", str(fifo)) as (process, said),
    ):
        process.send_signal(signal.SIGHUP)
        await hears(process, said, "is no regular file")


FILES = {
    "said.js": "console.log(1); globalThis.__codemode_result__ = 'ü'.repeat(300_000);",
    "fails.js": "throw new Error('on purpose')",
    "off.json": json.dumps({"cellblock": {"typecheck": "off"}}),
    "wrong.json": '{"mcpServers": {"x": {}}}',
}

SAME: dict[str, Sequence[str]] = {
    "an answer": ("config", "check", "--config", "off.json"),
    "a script's answer": ("run", "said.js", "--config", "off.json"),
    "a failed script": ("run", "fails.js", "--config", "off.json"),
    "a wrong file": ("config", "check", "--config", "wrong.json"),
    "wrong words": ("run", "--no-such-option"),
    "words that are no UTF-8": ("keygen", os.fsdecode(b"\xff")),
    "an output that is full": ("--version",),
}


def outcome(program: Path, folder: Path, name: str) -> tuple[int, list[str], str]:
    """What a command gives and says, without the lines that differ each time: those with a number."""
    with Path("/dev/full" if name == "an output that is full" else folder.parent / "said").open(
        "w+b"
    ) as output:
        done = subprocess.run(
            [program, *SAME[name]],
            cwd=folder,
            env={"PATH": os.environ["PATH"], "HOME": str(folder), "COLUMNS": "80"},
            stdin=DEVNULL,
            stdout=output,
            stderr=PIPE,
            umask=0o027,
            timeout=60,
        )
        output.seek(0)
        said = [] if done.returncode == 3 else output.read().decode().splitlines()
    errors = done.stderr.decode().replace(str(folder), "")
    return done.returncode, [line for line in said if not any(map(str.isdigit, line))], errors


@pytest.mark.thorough
@pytest.mark.parametrize("name", SAME)
def test_it_does_what_the_console_script_does(tmp_path: Path, name: str) -> None:
    found: list[tuple[Any, ...]] = []
    for program in (CELLBLOCK, forked_cellblock()):
        folder = tmp_path / str(len(found)) / "home"
        folder.mkdir(parents=True)
        for file, text in FILES.items():
            (folder / file).write_text(text, encoding="utf-8")
        told = outcome(program, folder, name)
        found.append((*told, sorted((one.name, one.stat().st_mode) for one in folder.iterdir())))
    assert found[0] == found[1]


@pytest.mark.thorough
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_for_the_caller_is_for_the_command(tmp_path: Path, number: signal.Signals) -> None:
    codes: list[int | None] = []
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for program in (CELLBLOCK, forked_cellblock()):
        async with piped("run", fifo, program=program, stdin=DEVNULL) as running:
            caller = running.process
            pid = pid_of(caller.pid) if codes else caller.pid
            await until(lambda pid=pid: waits_for_a_pipe(pid), "it waits")
            caller.send_signal(number)
            _, errors = await within(caller.communicate())
        assert b"Traceback" not in errors and not psutil.pid_exists(pid)
        codes.append(caller.returncode)
    assert codes[0] == codes[1]


@pytest.mark.thorough
async def test_a_caller_that_is_killed_takes_its_command_along(tmp_path: Path) -> None:
    config = write_config(tmp_path, {"plain": plain_server()})
    async with piped("serve", "--config", config, "--state-dir", tmp_path / "s", stdout=DEVNULL) as caller:
        command = psutil.Process(pid_of(caller.process.pid))
        children = "its server, and who has started its host"
        await until(lambda: len(command.children(recursive=True)) >= 2, children)
        family = [command, *command.children(recursive=True)]
    # At the end of the block it is killed.
    await gone(family)


READ_ON_IMPORT = """
import importlib, os, random, secrets, sys, uuid
read = []
def noting(kind, name):
    before = getattr(kind, name)
    def noted(*words, **more):
        frame = sys._getframe(1)
        while frame.f_globals["__name__"] in ("os", "_collections_abc", "collections.abc", "random", "secrets", "uuid"):
            frame = frame.f_back
        if frame.f_globals["__name__"].startswith("cellblock"):
            read.append((frame.f_globals["__name__"], name, str(words[1:])))
        return before(*words, **more)
    setattr(kind, name, noted)
for name in ("__getitem__", "__contains__", "__iter__"):
    noting(os._Environ, name)
for kind, names in ((os, "urandom getcwd umask"), (secrets, "token_hex token_bytes token_urlsafe"), (uuid, "uuid4")):
    for name in names.split():
        noting(kind, name)
for name in sys.argv[1:]:
    importlib.import_module(name)
print(read)
"""


@pytest.mark.thorough
def test_what_is_imported_before_the_fork_depends_on_no_caller_and_on_no_chance() -> None:
    """What Cellblock's modules read on import, all commands of a zygote share."""
    words = [sys.executable, "-c", READ_ON_IMPORT, *PRELOADED]
    assert subprocess.run(words, capture_output=True, text=True, timeout=60, check=True).stdout == "[]\n"
