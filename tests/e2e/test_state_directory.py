"""State directories with other people's things in them: real commands and daemons leave every one as it is."""

import asyncio
import contextlib
import json
import signal
import sqlite3
import subprocess
from collections.abc import Callable
from pathlib import Path
from random import Random, randrange
from typing import Any

import psutil
import pytest

from cellblock.base.state_dir import prepare_state_dir
from support.cellblock_zygote import forked_cellblock
from support.commands import in_this_process
from support.entries import CELLBLOCK, plain_server, write_config
from support.foreign_things import DATABASE_ENDINGS, FOLDERS, KINDS, NAMES, PIN_FILE, Foreign, Seen, is_ours
from support.http_daemon import INITIALIZE, TOOL, daemon
from support.http_server import free_port
from support.processes import command_line, descendants, left_after
from support.waits import WAIT_BOUND_SECONDS, until, within

LARGE = "globalThis.__codemode_result__ = 'x'.repeat(5000);"

SECTION: dict[str, Any] = {
    "frontend": {"inline_bytes": 1024},
    "auth": {"keyring": "off"},
    "policy": {"default": {"approve": ["plain.echo"]}},
}

SOON = {"cellblock.base.settings.sections.EXPIRE_MS": 700}

NEEDED = {
    *(
        f"{name}.sqlite3{ending}"
        for name in ("schemas", "journals", "outputs")
        for ending in DATABASE_ENDINGS
    ),
    *("token", "journals.key", "tokens", "tokens/ci.json", "overlays", "logs/daemon.log"),
    *("auth", "pins", f"pins/{PIN_FILE}", "audit.jsonl", "audit.jsonl.1"),
}
"""A foreign thing there is an error that names it, which the unit tests look at."""

THINGS = 60


Command = Callable[..., str]


@pytest.fixture
def command(short_path: Path) -> Command:
    """Runs `cellblock`, which is to end so: all that it said."""

    def run(*arguments: str | Path, code: int = 0) -> str:
        done = in_this_process(*arguments, code=code)
        return done.out + done.err

    (short_path / "one.js").write_text("globalThis.__codemode_result__ = 1;")
    (short_path / "asks.js").write_text(
        'import { echo } from "@codemode/servers/plain"; await echo({ text: "x" });'
    )
    return run


def test_a_project_as_the_state_directory_keeps_its_own_folders(short_path: Path, command: Command) -> None:
    """`run/mystuff` and `outputs/exp1/model.bin` were removed, being old and without a lock."""
    project, foreign = short_path / "project", Foreign(short_path / "outside")
    for place in ("run/mystuff", "outputs/exp1", "outputs/broker-12345678"):
        foreign.plant(project / place, "full folder")
    (project / "outputs/broker-12345678/lock").touch()
    foreign.plant(project / "run" / "old.sock", "socket")
    before = foreign.seen()
    assert '"result": 1' in command("run", short_path / "one.js", "--state-dir", project)
    config = write_config(project, {}, **SECTION | {"policy": {}})
    arguments = [str(forked_cellblock()), "serve", "--state-dir", ".", "--config", str(config)]
    subprocess.run(arguments, cwd=project, stdin=subprocess.DEVNULL, timeout=90, check=True)
    assert foreign.seen() == before


def test_links_at_the_names_of_logs_are_told_and_not_written_through(
    short_path: Path, command: Command
) -> None:
    state, foreign = short_path / "s", Foreign(short_path / "outside")
    prepare_state_dir(state)
    for name in ("host.log", "upstream-plain.log"):
        foreign.plant(state / "logs" / name, "link to a file")
    before = foreign.seen()
    config = write_config(short_path, {"plain": plain_server()}, log={"level": "warning"})
    arguments = ["--config", config, "--state-dir", state, "--require", "plain"]
    said = command("run", short_path / "one.js", *arguments)
    for part in (
        '"result": 1',
        f"host.log is not written: {state}/logs/host.log is a symbolic link",
        f"is not kept: {state}/logs/upstream-plain.log is a symbolic link",
    ):
        assert part in said
    assert foreign.seen() == before


@pytest.mark.parametrize(
    ("name", "words", "code"),
    [
        *(
            (name, ("serve", "--http", "127.0.0.1:0"), 2)
            for name in ("outputs.sqlite3", "run", "logs", ".cellblock")
        ),
        ("pins", ("pins", "approve", "plain", "--all"), 3),
    ],
)
def test_a_link_at_a_name_is_an_error_that_says_what_to_do(
    short_path: Path, command: Command, name: str, words: tuple[str, ...], code: int
) -> None:
    state, foreign = short_path / "s", Foreign(short_path / "outside")
    foreign.plant(state / name, "link to a folder")
    before = foreign.seen()
    config = write_config(short_path, {"plain": plain_server()}, **SECTION)
    said = command(*words, "--config", config, "--state-dir", state, code=code)
    assert f"{state}/{name} is a symbolic link" in said and "Move it away" in said
    assert foreign.seen() == before


@pytest.mark.parametrize("mode", [0o777, 0o770])
def test_one_that_others_may_write_to_is_refused_and_the_groups_is_warned_of(
    short_path: Path, command: Command, mode: int
) -> None:
    (short_path / "s").mkdir()
    (short_path / "s").chmod(mode)
    said = command("auth", "status", "--state-dir", short_path / "s", code=2 if mode == 0o777 else 0)
    assert ("All users may write" if mode == 0o777 else "warning: The group of") in said
    assert list((short_path / "s").iterdir()) == []


def plant_everywhere(state: Path, foreign: Foreign, chance: Random) -> None:
    """Random things, also in the folders of the daemon that is running."""
    (run,) = state.glob("run/broker-*")
    for _ in range(THINGS):
        folder, name, kind = chance.choice(FOLDERS), chance.choice(NAMES), chance.choice(KINDS)
        place = f"{folder}/{name}".removeprefix("./")
        if place in NEEDED or is_ours(place, kind):
            continue
        foreign.plant(state / folder.replace("OWN", run.name).replace("LEFT", "broker-left0000") / name, kind)


@pytest.mark.thorough
def test_a_directory_in_use_keeps_them_through_every_command_and_life_of_a_daemon(
    short_path: Path, command: Command
) -> None:
    state, foreign = short_path / "s", Foreign(short_path / "outside")
    before = asyncio.run(lives_of_daemons(short_path, foreign))
    place = ("--config", short_path / "cellblock.json", "--state-dir", state)
    assert json.loads(command("doctor", "--json", *place))["ok"]
    # Every other one that uses a state directory and needs no person.
    for words in (
        ("pins", "approve", "plain", "--all"),
        ("run", short_path / "one.js"),
        ("token", "create", "ci"),
        ("token", "list"),
        ("token", "revoke", "ci"),
        ("schemas", "export"),
        ("schemas", "clear"),
        ("auth", "status"),
        ("run", short_path / "one.js", "--durable"),
        ("record", short_path / "one.js", "-o", short_path / "one.cellrun"),
        ("types",),
    ):
        command(*words, *place)
        assert foreign.seen() == before, words
    run_id = json.loads(command("run", short_path / "asks.js", "--durable", *place))["usage"]["runId"]
    for words in (("list",), ("show", run_id), ("approve", run_id), ("resume", run_id), ("delete", run_id)):
        command("runs", *words, *place)
        assert foreign.seen() == before, words
    connected(place)
    assert (state / "logs" / "daemon.log").exists() and foreign.seen() == before
    assert not [path for path in state.rglob("*") if path.name == "lock" and path not in foreign.planted]


def connected(place: tuple[str | Path, ...]) -> None:
    """Has a daemon started by the relay of an editor that goes at once, and stops it."""
    address = f"127.0.0.1:{free_port()}"
    words = [str(CELLBLOCK), "connect", "--url", f"http://{address}/mcp", *map(str, place)]
    relay = subprocess.run(
        words, input=json.dumps(INITIALIZE) + "\n", capture_output=True, text=True, timeout=90
    )
    assert json.loads(relay.stdout)["id"] == 1, relay
    (started,) = [one for one in psutil.process_iter() if address in command_line(one)]
    family = [started, *descendants(started.pid)]
    started.terminate()
    assert left_after(family, WAIT_BOUND_SECONDS) == []


async def lives_of_daemons(short_path: Path, foreign: Foreign) -> Seen:
    """One is killed while it keeps an output; the next one keeps one till it expires, and is stopped.

    Returns:
        What was planted meanwhile.
    """
    async with daemon(short_path, constants=SOON, **SECTION) as running, running.client("legacy") as client:
        await within(client.call_tool(TOOL, {"code": LARGE}))
        seed = randrange(2**32)
        print(f"planted by Random({seed})")
        plant_everywhere(short_path / "s", foreign, Random(seed))
        before = foreign.seen()
        assert len(before) > THINGS / 2
        running.process.send_signal(signal.SIGKILL)
        await within(running.process.wait())
    assert foreign.seen() == before
    async with daemon(short_path, constants=SOON, **SECTION) as running, running.client() as client:
        result = await within(client.call_tool(TOOL, {"code": LARGE}))
        assert any(getattr(block, "uri", "").startswith("cellblock://outputs/") for block in result.content)
        await until(lambda: not kept(short_path / "s"), "what was kept has expired")
        assert foreign.seen() == before
    assert foreign.seen() == before
    return before


def kept(state: Path) -> list[str]:
    """The outputs on the disk."""
    with contextlib.closing(sqlite3.connect(state / "outputs.sqlite3")) as file:
        return file.execute("SELECT id FROM outputs").fetchall()
