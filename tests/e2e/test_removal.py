"""`scripts/install --remove`, of an installation whose programs are those of the tests; and `bash scripts/upgrade`
from this version to itself: draining, handing on and coming back, under load.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.commands import cellblock, piped
from support.documents import ROOT
from support.entries import CELLBLOCK, plain_server
from support.http_daemon import INITIALIZE
from support.http_server import free_port

BOUND_SECONDS = 900
"""It takes half a minute on a quiet machine."""


@pytest.mark.thorough
@pytest.mark.timeout(BOUND_SECONDS + 60)
@pytest.mark.parametrize("order", ["hosts first", "brokers first"])
def test_an_upgrade_part_by_part_loses_nothing(order: str) -> None:
    words = [sys.executable, "-m", "benchmarks.upgrade", "--minutes", "0.3", "--order", order]
    paths = os.pathsep.join(str(ROOT / name) for name in ("scripts", "tests"))
    environment = {**os.environ, "PYTHONPATH": paths}
    done = subprocess.run(
        words, capture_output=True, text=True, env=environment, timeout=BOUND_SECONDS, check=False
    )
    assert done.returncode == 0 and "nothing was lost" in done.stdout, (done.stdout, done.stderr)
    assert "a state directory and a configuration of before: all is there" in done.stdout
    line = next(line for line in done.stdout.splitlines() if line.startswith(order))
    counts = dict(one.rsplit(" ", 1) for one in line.partition(": ")[2].split(", "))
    # It has looked: there were requests of both kinds, parked runs, and sessions that ended with their broker.
    for name in ("requests", "requests_in_sessions", "resumed", "approved", "calls", "sessions_ended"):
        assert int(counts[name]) > 0, done.stdout


class Installed:
    def __init__(self, home: Path) -> None:
        self.home, self.venv = home, home / ".local/share/cellblock/venv"
        self.command = home / ".local/bin/cellblock"
        programs = self.venv / "bin"
        programs.mkdir(parents=True)
        for name, program in (("python", sys.executable), ("cellblock", CELLBLOCK)):
            (programs / name).write_text(f'#!/bin/sh\nexec "{program}" "$@"\n')
            (programs / name).chmod(0o755)
        self.command.parent.mkdir()
        self.command.symlink_to(programs / "cellblock")
        self.environment = {"HOME": str(home), "PATH": os.environ["PATH"]}

    def remove(self, *words: str, code: int = 0) -> str:
        line = ["bash", ROOT / "scripts/install", "--remove", *words]
        done = subprocess.run(line, env=self.environment, capture_output=True, text=True, timeout=120)
        assert (done.returncode, done.stdout) == (code, ""), done.stderr
        assert self.venv.exists() is bool(code)
        return done.stderr

    async def cellblock(self, *words: object) -> None:
        await cellblock(*words, code=0, program=self.command, env=self.environment, cwd=self.home)


@pytest.fixture
def installed(tmp_path: Path) -> Installed:
    return Installed(tmp_path)


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform == "darwin", reason="the folders of the clients are those of Linux")
async def test_it_refuses_while_clients_start_it_and_ends_the_daemon(installed: Installed) -> None:
    home = installed.home
    (home / ".claude.json").write_text(json.dumps({"mcpServers": {"tests": plain_server()}}))
    project = home / "it's"
    project.mkdir()
    for more in (("claude-code", "--take-over"), ("cursor", "--project", project)):
        await installed.cellblock("install", *more, "--yes")
    units = home / ".config/systemd/user"
    units.mkdir(parents=True)
    (units / "cellblock.service").touch()
    url = f"http://127.0.0.1:{free_port()}/mcp"
    async with piped(
        "connect", "--url", url, program=installed.command, env=installed.environment, start_new_session=True
    ) as relay:
        relay.send(INITIALIZE)
        assert "result" in await relay.answer()
        assert await relay.end() == 0
    err = installed.remove(code=1)
    told = {line.strip().partition("    # ")[0] for line in err.splitlines() if line.startswith("  ")}
    assert told == {
        "cellblock install claude-code --uninstall",
        f"cellblock install cursor --uninstall --project '{home}/it'\"'\"'s'",
        f"systemctl --user disable --now cellblock && rm {units}/cellblock.service",
    }
    assert "nothing was removed" in err and "--remove --force" in err
    await installed.cellblock("status")

    (units / "cellblock.service").unlink()
    for more in (("claude-code",), ("cursor", "--project", project)):
        await installed.cellblock("install", *more, "--uninstall", "--yes")
    err = installed.remove()
    assert "has ended" in err and not installed.command.is_symlink()
    copies = [*home.glob("*.bak"), *(home / ".config/cellblock").glob("*.bak")]
    assert copies and all(f"{copy.name} stays" in err for copy in copies)
    assert installed.remove() == f"Nothing to remove: there is no {installed.venv}.\n"


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform == "darwin", reason="the folders of the clients are those of Linux")
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_its_options_are_explained_where_that_is_asked(option: str) -> None:
    line = ["bash", ROOT / "scripts/install", option]
    done = subprocess.run(line, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("Installs Cellblock from this checkout") and done.stderr == ""
    assert "--remove   ends the daemon" in done.stdout and "--force follows" in done.stdout
    wrong = subprocess.run([*line[:2], "--hlep"], capture_output=True, text=True)
    usage = "usage: bash scripts/install [--help | --remove [--force]]"
    assert wrong.returncode == 1 and usage in wrong.stderr


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform == "darwin", reason="the folders of the clients are those of Linux")
async def test_it_can_be_forced(installed: Installed) -> None:
    await installed.cellblock("install", "claude-code", "--yes")
    assert "Nothing was ended" in installed.remove("--force")


@pytest.mark.thorough
@pytest.mark.skipif(sys.platform == "darwin", reason="the folders of the clients are those of Linux")
def test_what_is_broken_is_removed_only_by_force(installed: Installed) -> None:
    (installed.venv / "bin/python").unlink()
    installed.remove(code=1)
    installed.remove("--force")
