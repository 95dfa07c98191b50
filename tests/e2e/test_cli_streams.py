"""Standard streams that are closed, full, left by their reader, or in an encoding that lacks what is said; and signals
while a command waits for a pipe, and while a daemon starts or has no file yet.

`run`, `--version` and what gets a signal early are the console script, which Python starts with such streams; the other
commands are forked.
"""

import contextlib
import json
import os
import re
import signal
import subprocess
from asyncio.subprocess import DEVNULL, Process
from collections.abc import AsyncGenerator
from pathlib import Path

import pytest

from cellblock.app.cli.arguments import default_file
from support.cellblock_zygote import forked_cellblock
from support.commands import piped
from support.entries import CELLBLOCK, plain_server, write_config
from support.processes import waits_for_a_pipe
from support.pseudo_terminal import in_terminal
from support.waits import until, within

pytestmark = pytest.mark.thorough

BOUND_SECONDS = 120

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
        timeout=BOUND_SECONDS,
    )


@pytest.mark.parametrize("words", COMMANDS.values(), ids=COMMANDS)
def test_an_output_that_cannot_be_written_is_said_and_has_an_exit_code_of_its_own(
    folder: Path, words: tuple[str, ...]
) -> None:
    for line, why in (('"$@" >/dev/full', "No space left on device"), ('"$@" >&-', "Bad file descriptor")):
        done = shell(folder, line, *words)
        said = f"cellblock: Standard output cannot be written: {why}.\n"
        assert (done.returncode, done.stderr.decode()) == (3, said)


@pytest.mark.parametrize("words", [COMMANDS["run"], COMMANDS["types"], COMMANDS["version"]])
def test_a_reader_that_has_gone_ends_a_command_as_sigpipe_does(folder: Path, words: tuple[str, ...]) -> None:
    # Its reader has gone before anything is written.
    assert shell(folder, '{ sleep 0.2; "$@"; echo $? >&2; } | true', *words).stderr == b"141\n"


@pytest.mark.parametrize("closed", ["<&-", "2>&-", "2>/dev/full", "<&- 2>&-"])
def test_without_the_other_streams_a_command_does_the_same(folder: Path, closed: str) -> None:
    done = shell(folder, f'"$@" {closed}', *COMMANDS["run"])
    assert done.returncode == 0
    assert json.loads(done.stdout)["result"] == "ü€😀" * 100_000
    refused = shell(folder, f'"$@" {closed}', "run", "absent.js", program=forked_cellblock())
    assert (refused.returncode, refused.stdout) == (2, b"")


@pytest.mark.parametrize("encoding", ["latin-1", "ascii:strict"])
def test_data_is_utf_8_and_text_is_escaped_where_the_encoding_lacks_it(folder: Path, encoding: str) -> None:
    ran = shell(folder, '"$@"', *COMMANDS["run"], PYTHONIOENCODING=encoding)
    assert (ran.returncode, ran.stderr) == (0, b"")
    assert json.loads(ran.stdout.decode())["result"].startswith("ü€😀")
    (folder / "€.json").write_text('{"mcpServers": {"x": {"command": "x"}}}')
    checked = shell(folder, '"$@"', "config", "check", "--config", "€.json", PYTHONIOENCODING=encoding)
    assert (checked.returncode, checked.stdout) == (0, b"\\u20ac.json: fine. Servers: x (stdio)\n")


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
        assert await within(process.wait(), 10) in (128 + number, -number)
        assert b"Traceback" not in await within(process.stderr.read())


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
        assert await within(process.wait(), 20) == 0


async def hears(process: Process, said: list[str], wanted: str) -> None:
    """Reads what the daemon says until it has said this."""
    while not any(wanted in line for line in said):
        line = (await within(process.stderr.readline(), 60)).decode()
        assert line, f"it ended: {said}"
        said.append(line)


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


async def test_a_reload_that_comes_while_a_daemon_starts_is_done_then(tmp_path: Path) -> None:
    config = write_config(tmp_path, {})
    async with serving(tmp_path, "--config", str(config), early=True) as (process, said):
        await hears(process, said, "nothing has changed")


async def test_a_daemon_whose_file_was_a_pipe_reads_it_once(tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    async with (
        piped("-c", 'echo "{}" > "$0"', fifo, program=Path("/bin/sh")),
        serving(tmp_path, "--config", str(fifo)) as (process, said),
    ):
        process.send_signal(signal.SIGHUP)
        await hears(process, said, "is no regular file")
