"""State directories with other people's things in them: real commands and daemons leave every one as it is."""

from __future__ import annotations

import json
import signal
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from cellblock.state_dir import prepare_state_dir
from foreign_things import FOLDERS, KINDS, NAMES, Foreign, is_ours
from http_daemon import TOOL, daemon
from support import CELLBLOCK, plain_server, until, within, write_config

ONE = "globalThis.__codemode_result__ = 1;"
LARGE = "globalThis.__codemode_result__ = 'x'.repeat(5000);"

SECTION: dict[str, Any] = {"outputs": {"inline_bytes": 1024, "expire_ms": 700}, "pool": {"warm": 1}}

NEEDED = {"token", "schemas.sqlite3-wal", "schemas.sqlite3-journal"}
"""A foreign thing there is an error that names it, which the unit tests look at."""

THINGS = 60


@pytest.fixture
def top() -> Iterator[Path]:
    """A path that leaves room for a socket's name."""
    with tempfile.TemporaryDirectory(prefix="cb-", dir="/tmp") as folder:
        yield Path(folder)


def command(*arguments: str | Path, code: str | None = None, cwd: Path | None = None) -> str:
    """Runs `cellblock`, which must succeed, and gives what it said."""
    done = subprocess.run(
        [str(CELLBLOCK), *map(str, arguments)],
        **({"stdin": subprocess.DEVNULL} if code is None else {"input": code}),
        cwd=cwd,
        capture_output=True,
        text=True,
        timeout=90,
    )
    assert done.returncode == 0, (arguments, done.stdout, done.stderr)
    return done.stdout + done.stderr


def test_a_project_as_the_state_directory_keeps_its_own_folders(top: Path) -> None:
    """`run/mystuff` and `outputs/exp1/model.bin` were removed, being old and without a lock."""
    project, foreign = top / "project", Foreign(top / "outside")
    for place in ("run/mystuff", "outputs/exp1", "outputs/broker-12345678"):
        foreign.plant(project / place, "full folder")
    (project / "outputs/broker-12345678/lock").touch()
    foreign.plant(project / "run" / "old.sock", "socket")
    before = foreign.seen()
    config = write_config(project, {}, **SECTION)
    assert '"result": 1' in command("run", "-", "--state-dir", project, code=ONE)
    command("serve", "--state-dir", ".", "--config", config, cwd=project)
    assert foreign.seen() == before


def test_links_at_the_names_of_logs_are_told_and_not_written_through(top: Path) -> None:
    state, foreign = top / "s", Foreign(top / "outside")
    prepare_state_dir(state)
    for name in ("host.log", "upstream-plain.log"):
        foreign.plant(state / "logs" / name, "link to a file")
    before = foreign.seen()
    config = write_config(top, {"plain": plain_server()}, log={"level": "warning"})
    arguments = ["--config", config, "--state-dir", state, "--require", "plain"]
    said = command("run", "-", *arguments, code=ONE)
    assert f"the worker host has no log: {state}/logs/host.log is a symbolic link" in said
    assert f"is not kept: {state}/logs/upstream-plain.log is a symbolic link" in said
    assert foreign.seen() == before


def test_a_link_at_a_folders_name_is_an_error_that_says_what_to_do(top: Path) -> None:
    state, foreign = top / "s", Foreign(top / "outside")
    foreign.plant(state / "outputs", "link to a folder")
    before = foreign.seen()
    config = write_config(top, {}, **SECTION)
    arguments = ["serve", "--state-dir", str(state), "--config", str(config)]
    done = subprocess.run(
        [str(CELLBLOCK), *arguments], stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=90
    )
    assert done.returncode == 2
    assert f"{state}/outputs is a symbolic link" in done.stderr and "Move it away" in done.stderr
    assert foreign.seen() == before


def plant_everywhere(state: Path, foreign: Foreign, chance: Random) -> None:
    """Random things, also in the folders of the daemon that is running."""
    (run,), (outputs,) = state.glob("run/broker-*"), state.glob("outputs/broker-*")
    for _ in range(THINGS):
        folder, name, kind = chance.choice(FOLDERS), chance.choice(NAMES), chance.choice(KINDS)
        place = f"{folder}/{name}".removeprefix("./")
        if place in NEEDED or is_ours(place, kind):
            continue
        own = run.name if folder.startswith("run") else outputs.name
        foreign.plant(state / folder.replace("OWN", own).replace("LEFT", "broker-left0000") / name, kind)


async def test_a_directory_in_use_keeps_them_through_every_command_and_life_of_a_daemon(top: Path) -> None:
    state, foreign, chance = top / "s", Foreign(top / "outside"), Random(15)
    async with daemon(top, **SECTION) as running, running.client("legacy") as client:
        await within(client.call_tool(TOOL, {"code": LARGE}))
        plant_everywhere(state, foreign, chance)
        before = foreign.seen()
        assert len(before) > THINGS / 2
        running.process.send_signal(signal.SIGKILL)
        await within(running.process.wait())
    assert foreign.seen() == before
    async with daemon(top, **SECTION) as running, running.client() as client:
        result = await within(client.call_tool(TOOL, {"code": LARGE}))
        assert any(getattr(block, "uri", "").startswith("cellblock://outputs/") for block in result.content)
        await until(lambda: not kept(state, foreign), "what was kept has expired")
        assert foreign.seen() == before
    assert foreign.seen() == before
    config = top / "cellblock.json"
    report = json.loads(command("doctor", "--json", "--config", config, "--state-dir", state))
    assert report["ok"]
    command("approve", "plain", "--all", "--config", config, "--state-dir", state)
    assert '"result": 1' in command("run", "-", "--config", config, "--state-dir", state, code=ONE)
    assert foreign.seen() == before
    assert not [path for path in state.rglob("*") if path.name == "lock" and path not in foreign.planted]


def kept(state: Path, foreign: Foreign) -> list[Path]:
    """The outputs on the disk."""
    return [path for path in state.glob("outputs/broker-*/" + "?" * 32) if path not in foreign.planted]
