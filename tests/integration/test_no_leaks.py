"""After many runs of every kind nothing is left: no process, no descriptor, no file.

A run's parts go when it is over: what waits for the garbage collector stays long, and holds the loop when it goes. The
frames of a call that was cancelled wait for it all the same: the exception in them knows them.
"""

import asyncio
import gc
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cellblock import Broker, RunResponse, tool
from cellblock.record.journal import Journal
from cellblock.run.context import RunContext
from cellblock.run.run import Run
from cellblock.run.side_checks import SideCheck
from cellblock_worker.host.warm import MAX_WARM_SHARE
from soak.watch import Kinds, descriptors
from support.brokers import host_of, ready
from support.entries import CELLBLOCK, WARM, plain_server, settings, write_config
from support.params import mostly
from support.processes import descendants, workers_of
from support.waits import until, warmed, within

AT_ONCE = 4

SCRIPTS: list[tuple[str, dict[str, int], str | None]] = [
    ("globalThis.__codemode_result__ = 1;", {}, None),
    ('import { echo } from "@codemode/servers/plain"; await echo({});', {}, None),
    ("console.log('x'.repeat(100000));", {"maxLogBytes": 100}, None),
    ("const x: number = 1; globalThis.__codemode_result__ = x;", {}, None),
    ("throw new Error('on purpose');", {}, "UNCAUGHT_EXCEPTION"),
    ("this is no JavaScript", {}, "SYNTAX_ERROR"),
    ('import "@codemode/servers/nowhere";', {}, "IMPORT_FAILURE"),
    ("for (;;) {}", {"timeoutMs": 60}, "SANDBOX_LIMIT"),
    ("for (;;) {}", {"maxCpuMs": 40}, "SANDBOX_LIMIT"),
    (
        'import { never } from "@codemode/servers/plain"; await never({});',
        {"timeoutMs": 60},
        "SANDBOX_LIMIT",
    ),
    (
        'import { echo } from "@codemode/servers/plain"; for (;;) await echo({});',
        {"maxToolCalls": 2},
        "SANDBOX_LIMIT",
    ),
    (
        "const keep = []; for (;;) keep.push(new Uint8Array(1 << 20).fill(1));",
        {"maxMemoryBytes": 16 << 20},
        "SANDBOX_LIMIT",
    ),
]

STABLE_LOOKS = 100
"""Looks, 10 ms apart, that must agree: far longer than a boot."""


async def one_round(broker: Broker, runs: int) -> list[RunResponse]:
    """So many runs, some at once, each kind of script in turn; each must end as expected."""
    turns = asyncio.Semaphore(AT_ONCE)

    async def one(number: int) -> RunResponse:
        code, limits, expected = SCRIPTS[number % len(SCRIPTS)]
        async with turns:
            response = await broker.run(code, limits=limits)
        codes = [found.code for found in response.diagnostics if found.severity == "error"]
        assert codes == ([expected] if expected else []), (code, response.as_json())
        return response

    return list(await within(asyncio.gather(*map(one, range(runs))), 90))


async def at_rest(broker: Broker) -> None:
    """Waits until the pool is as full as it keeps itself and nothing boots or dies."""
    await warmed(broker)
    host = broker.host_pid
    # As many as after any burst.
    warm = MAX_WARM_SHARE * broker.settings.cellblock.pool.warm
    # Each worker is one process, or two where bubblewrap watches over it; beside them there may be a launcher.
    await until(
        lambda: len(workers_of(host)) == warm and len(descendants(host)) - warm in (0, 1, warm, warm + 1),
        f"{warm} workers and no more",
    )
    # A worker is a process before it is ready, and its host opens one more descriptor then.
    seen: list[Kinds] = []

    def unchanged_for_a_while() -> bool:
        seen.append(descriptors(host))
        return len(seen) >= STABLE_LOOKS and all(kinds == seen[-1] for kinds in seen[-STABLE_LOOKS:])

    await until(unchanged_for_a_while, "descriptors that stay the same", pause=0.01)


@pytest.mark.thorough
@pytest.mark.real_host
async def test_200_runs_leave_no_process_and_no_descriptor(tmp_path: Path) -> None:
    async with ready(settings(tmp_path, {"plain": plain_server()}, pool={"warm": WARM})) as broker:
        await one_round(broker, 2 * len(SCRIPTS))  # first uses: threads, caches
        await at_rest(broker)
        processes = {process.pid for process in descendants(os.getpid())} - {
            process.pid for process in descendants(broker.host_pid)
        }
        mine, hosts = descriptors(os.getpid()), descriptors(broker.host_pid)
        host_pid = broker.host_pid

        await one_round(broker, 200)

        await at_rest(broker)
        assert broker.host_pid == host_pid
        after = {process.pid for process in descendants(os.getpid())} - {
            process.pid for process in descendants(broker.host_pid)
        }
        assert after == processes
        assert host_of(broker).num_threads() < 20
        await until(lambda: descriptors(host_pid) == hosts, f"as before: {hosts}")
        await until(lambda: descriptors(os.getpid()) == mine, f"as before: {mine}")


@pytest.mark.thorough
@pytest.mark.real_host
async def test_start_and_stop_leave_no_process_and_no_descriptor(tmp_path: Path) -> None:
    mine: Kinds | None = None
    for _ in range(4):
        before = set(descendants(os.getpid()))
        async with ready(settings(tmp_path, {"plain": plain_server()}, pool={"warm": WARM})) as broker:
            await within(broker.run("globalThis.__codemode_result__ = 1;"))
        assert set(descendants(os.getpid())) - before == set()
        assert list((tmp_path / "run").glob("*")) == []
        if mine is not None:
            assert descriptors(os.getpid()) == mine
        mine = descriptors(os.getpid())


def files_under(folder: Path) -> set[str]:
    return {str(path.relative_to(folder)) for path in folder.rglob("*")}


def new_in_shared_places() -> set[str]:
    """What is in the folders that a process without HOME and TMPDIR falls back to, by names of our making."""
    shared = {Path("/tmp"), Path("/var/tmp"), Path("/dev/shm")}
    names = {str(path) for folder in shared if folder.exists() for path in folder.iterdir()}
    ours = ("cellblock", "deno", ".deno", "v8", "tmp")
    return {name for name in names if Path(name).name.startswith(ours)} | {
        str(path) for path in Path("/").iterdir()
    }


@pytest.mark.thorough
@pytest.mark.real_host
async def test_everything_is_written_under_the_state_directory(short_path: Path) -> None:
    """A whole broker in a process of its own, whose HOME, TMPDIR and working directory are watched."""
    folders = {name: short_path / name for name in ("home", "tmp", "cwd", "xdg")}
    for folder in folders.values():
        folder.mkdir()
    state = short_path / "s"
    script = short_path / "runs.py"
    script.write_text(
        f"""
import asyncio, sys
sys.path[:0] = {[str(Path(__file__).parent), str(Path(__file__).parent.parent)]!r}
sys.dont_write_bytecode = True
from cellblock import Broker
from cellblock.app.config.load import load_settings
from test_no_leaks import one_round

async def main():
    async with Broker(load_settings(sys.argv[1]).with_state_dir(__import__("pathlib").Path(sys.argv[2]))) as broker:
        await broker.settled()
        await one_round(broker, 36)

asyncio.run(main())
"""
    )
    config = write_config(short_path, {"plain": plain_server()})
    environment = {
        "PATH": os.environ["PATH"],
        "HOME": str(folders["home"]),
        "TMPDIR": str(folders["tmp"]),
        "XDG_STATE_HOME": str(folders["xdg"]),
        "XDG_CACHE_HOME": str(folders["xdg"]),
        "XDG_CONFIG_HOME": str(folders["xdg"]),
        "XDG_DATA_HOME": str(folders["xdg"]),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    shared = new_in_shared_places()
    outcome = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, str(script), str(config), str(state)],
        cwd=folders["cwd"],
        env=environment,
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert outcome.returncode == 0, outcome.stderr
    assert {name: files_under(folder) for name, folder in folders.items()} == {
        name: set() for name in folders
    }
    written = files_under(state)
    assert {name.partition("/")[0] for name in written} <= {
        ".cellblock",
        "logs",
        "pins",
        "run",
        "schemas.sqlite3",
    }
    assert not any(name.startswith("run/") for name in written), written
    # Others may use the machine's shared folders for a moment; what we left would stay.
    await until(lambda: new_in_shared_places() <= shared, "nothing new in the shared folders", bound=30)


@pytest.mark.thorough
@pytest.mark.real_host
async def test_without_a_state_dir_the_platforms_is_used(short_path: Path) -> None:
    home = short_path / "home"
    home.mkdir()
    outcome = await asyncio.to_thread(
        subprocess.run,
        [str(CELLBLOCK), "run", "-"],
        input="globalThis.__codemode_result__ = 1;",
        env={"PATH": os.environ["PATH"], "HOME": str(home), "TMPDIR": str(short_path)},
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert outcome.returncode == 0, outcome.stderr
    assert json.loads(outcome.stdout)["result"] == 1
    state = home / ".local" / "state" / "cellblock"
    written = {path for path in home.rglob("*") if path.is_file()}
    assert {path.parent for path in written} <= {state / "logs", state}
    assert {path.name for path in written if path.parent == state} <= {".cellblock", "schemas.sqlite3"}
    assert state.stat().st_mode & 0o777 == 0o700


IMPORTS = "import { echo, fail } from '@codemode/servers/local';\n"
ENDINGS = {
    "finished": "console.log(1); await Promise.all([echo({ text: 'a' }), echo({ text: 'b' })]);",
    "failed": "await fail({});",
    "killed": "while (true);",
    "refused": "import '@codemode/servers/none';",
}


@tool
async def echo(text: str) -> str:
    """Gives a text back."""
    return text


@tool
async def fail() -> None:
    """Fails."""
    raise ValueError("no")


def kept() -> set[int]:
    return {id(one) for one in gc.get_objects() if isinstance(one, Run | RunContext | SideCheck | Journal)}


@pytest.mark.parametrize("durable", mostly([True], [False, True]))
async def test_no_run_waits_for_the_collector(tmp_path: Path, durable: bool) -> None:
    async with Broker(settings(tmp_path), tools=[echo, fail]) as broker:
        await broker.run(IMPORTS + ENDINGS["finished"], durable=durable)
        gc.collect()
        before = kept()
        gc.disable()
        try:
            for code in ENDINGS.values():
                await broker.run(IMPORTS + code, limits={"timeoutMs": 700}, durable=durable)
            # The last check of types, and the last write, may take a moment.
            await until(lambda: not kept() - before, "no run is left")
        finally:
            gc.enable()
