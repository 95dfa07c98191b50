"""A forked `cellblock` does what the console script does, and no more of it is shared than the zygote says."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from asyncio.subprocess import DEVNULL, PIPE, Process
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import psutil
import pytest

from support.cellblock_zygote import (
    PRELOADED,
    forked_cellblock,
    forked_python,
    install,
    pid_of,
    started,
    zygote,
)
from support.entries import CELLBLOCK, plain_server, write_config
from support.processes import alive, gone
from support.waits import until, within

pytestmark = pytest.mark.thorough

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


TELLS = (
    "import sys; print(sys.argv, __name__, sys.modules['__main__'].__name__); print(input()); sys.exit({})"
)


@pytest.mark.parametrize("how", ["-c", "-I", "-m"])
@pytest.mark.parametrize("end", ["3", "'in words'", "1 / 0"])
def test_python_runs_a_program_as_it_does(tmp_path: Path, how: str, end: str) -> None:
    (tmp_path / "tells.py").write_text(TELLS.format(end))
    program = {"-c": TELLS.format(end), "-I": "tells.py", "-m": "tells"}[how]
    environment = {"PATH": os.environ["PATH"], "PYTHONPATH": str(tmp_path)}
    found: list[tuple[int, str, list[str]]] = []
    for python in (Path(sys.executable), forked_python()):
        words = [python, how, program, "a word"]
        done = subprocess.run(
            words, cwd=tmp_path, env=environment, input="said\n", capture_output=True, text=True, timeout=60
        )
        # Of a traceback the last line: those above name the code that was on the way.
        found.append((done.returncode, done.stdout, done.stderr.splitlines()[-1:]))
    assert found[0] == found[1]


def test_it_has_the_files_that_its_caller_has_open(tmp_path: Path) -> None:
    (tmp_path / "c.json").write_text('{"mcpServers": {"far": {"command": "x"}}}')
    line = '"$@" config check --config /dev/fd/7 7<c.json 3>&- <&-'
    words = ["bash", "-c", line, "-", str(forked_cellblock())]
    done = subprocess.run(words, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, "Servers: far (stdio)" in done.stdout) == (0, True), done


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
async def test_a_signal_for_the_caller_is_for_the_command(tmp_path: Path, number: signal.Signals) -> None:
    codes: list[int | None] = []
    for program in (CELLBLOCK, forked_cellblock()):
        caller = await begun(program, *waits(tmp_path / str(len(codes))), stderr=PIPE)
        pid = pid_of(caller.pid) if codes else caller.pid
        await until(lambda pid=pid: waits_for_pipe(pid), "it waits")
        caller.send_signal(number)
        _, errors = await within(caller.communicate())
        assert b"Traceback" not in errors and not psutil.pid_exists(pid)
        codes.append(caller.returncode)
    assert codes[0] == codes[1]


def waits(folder: Path) -> list[str]:
    """The words of a command that waits for a pipe."""
    folder.mkdir(exist_ok=True)
    os.mkfifo(folder / "fifo")
    return ["run", str(folder / "fifo")]


def waits_for_pipe(pid: int) -> bool:
    """Whether it waits in the kernel for the other end of its pipe."""
    return any(word in Path(f"/proc/{pid}/wchan").read_text() for word in ("fifo", "partner"))


async def begun(program: Path, *words: str, **streams: Any) -> Process:
    return await asyncio.create_subprocess_exec(program, *words, **{"stdin": DEVNULL, **streams})


async def test_the_death_of_the_command_is_that_of_its_caller(tmp_path: Path) -> None:
    caller = await begun(forked_cellblock(), *waits(tmp_path))
    os.kill(pid_of(caller.pid), signal.SIGKILL)
    assert await within(caller.wait()) == -signal.SIGKILL


async def test_a_caller_that_is_killed_takes_its_command_along(tmp_path: Path) -> None:
    config = write_config(tmp_path, {"plain": plain_server()})
    words = ["serve", "--config", str(config), "--state-dir", str(tmp_path / "s")]
    caller = await begun(forked_cellblock(), *words, stdin=PIPE, stdout=DEVNULL)
    command = psutil.Process(pid_of(caller.pid))
    await until(lambda: len(command.children(recursive=True)) >= 3, "its server, its host and a worker")
    family = [command, *command.children(recursive=True)]
    caller.kill()
    await within(caller.wait())
    await gone(family)


async def test_one_that_is_started_as_asyncio_does_has_the_commands_pid(tmp_path: Path) -> None:
    config = write_config(tmp_path, {}, pool={"warm": 1})
    command = await started(
        *("serve", "--http", "127.0.0.1:0", "--config", config, "--state-dir", tmp_path / "s"),
        stdin=DEVNULL,
        stdout=DEVNULL,
        stderr=PIPE,
    )
    assert b"serving http" in await within(command.stderr.readline())
    process = psutil.Process(command.pid)
    assert [one for one in process.net_connections() if one.status == psutil.CONN_LISTEN]
    command.terminate()
    assert await within(command.wait()) == 0
    assert not alive(process)


PID_AGAIN = """
import subprocess
from support.cellblock_zygote import forked_cellblock, pid_of

def begun(*words, pid=None):
    if pid is not None:
        with open("/proc/sys/kernel/ns_last_pid", "w") as last:
            last.write(str(pid - 1))
    return subprocess.Popen(words, stdout=subprocess.DEVNULL)

words = (forked_cellblock(), "--version")
first = begun(*words)
command = pid_of(first.pid)
first.wait()
holder = begun("sleep", "60", pid=command)
second = begun(*words, pid=first.pid)
print((holder.pid, second.pid) == (command, first.pid), pid_of(second.pid) == command)
second.wait()
holder.kill()
"""


def test_a_caller_with_the_pid_of_an_earlier_one_has_its_own_command() -> None:
    """The system gives pids again within one run of the suite."""
    alone = ["unshare", "--user", "--map-root-user", "--pid", "--fork", "--mount-proc"]
    if subprocess.run([*alone, "true"], check=False).returncode:
        pytest.skip("this system gives no namespace of pids")
    tests = Path(__file__).parent.parent
    words = [*alone, sys.executable, "-c", PID_AGAIN]
    done = subprocess.run(words, cwd=tests, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "True False\n"


async def test_the_end_of_a_zygote_ends_its_commands(tmp_path: Path, short_path: Path) -> None:
    with zygote(short_path / "s") as process:
        caller = await begun(install(short_path / "bin", short_path / "s"), *waits(tmp_path))
        await until(lambda: any(waits_for_pipe(one.pid) for one in commands_of(process.pid)), "it waits")
        commands = commands_of(process.pid)
    await gone(commands)
    assert await within(caller.wait()) == -signal.SIGTERM


def commands_of(pid: int) -> list[psutil.Process]:
    return psutil.Process(pid).children()


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


def test_what_is_imported_before_the_fork_depends_on_no_caller_and_on_no_chance() -> None:
    """What Cellblock's modules read on import, all commands of a zygote share."""
    words = [sys.executable, "-c", READ_ON_IMPORT, *PRELOADED]
    done = subprocess.run(words, capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout == "[]\n"
