"""A worker that was taken over, and means to outlive its host or to stop others' boots."""

import os
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path

import psutil
import pytest

from cellblock import Broker
from cellblock_worker.confinement import bubblewrap, confinement
from cellblock_worker.confinement.bubblewrap import end_orphans
from security.native.harness import Native, attack
from support.brokers import host_of
from support.entries import settings
from support.params import mostly
from support.processes import alive, launchers_of, parent_of, workers_of
from support.waits import steady, until, warmed

F_SETLEASE, F_WRLCK = 1024, 1

ATTEMPTS = 5
"""A host that another test starts may end the orphan first."""


@contextmanager
def lone_host(native: Native, kind: str) -> Generator[tuple[psutil.Process, psutil.Process, psutil.Process]]:
    """A process that is a host as far as its worker sees, its launcher, and the worker, which means to stay."""
    # The last words are a host's: while it has no launcher, hosts of other tests would take its worker for an orphan.
    argv = [
        sys.executable,
        "-m",
        "security.native.lone_host",
        str(native.folder),
        kind,
        "-m",
        "cellblock_worker",
    ]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[1])}
    with subprocess.Popen(argv, env=environment, stdout=subprocess.PIPE, text=True) as started:
        try:
            worker, launcher = map(int, started.stdout.readline().split())
            yield psutil.Process(started.pid), psutil.Process(launcher), psutil.Process(worker)
        finally:
            started.kill()


def has_lost(worker: psutil.Process, parent: int) -> bool:
    return parent_of(worker) != parent


def holds_pidfd(holder: int, pid: int) -> bool:
    with suppress(OSError):
        return any(f"Pid:\t{pid}\n" in info.read_text() for info in Path(f"/proc/{holder}/fdinfo").iterdir())
    return False


@pytest.mark.parametrize("replaced", [False, True], ids=["its own launcher", "one in its place"])
@pytest.mark.parametrize("kind", mostly(["jail"], ["jail", "bubblewrap"]))
async def test_the_launcher_ends_one_that_takes_back_pdeathsig_when_its_host_is_killed(
    kind: str, replaced: bool, native: Native
) -> None:
    with lone_host(native, kind) as (host, launcher, worker):
        if replaced:
            launcher.kill()
            await until(
                lambda: any(holds_pidfd(other.pid, worker.pid) for other in launchers_of(host.pid)),
                "another one that has been told of it",
            )
            assert alive(worker)
        host.kill()
        await until(lambda: not alive(worker), "the worker's end")


@pytest.mark.parametrize("kind", ["jail", "bubblewrap"])
async def test_the_next_host_finds_one_whose_host_and_launcher_were_killed(kind: str, native: Native) -> None:
    for _ in range(ATTEMPTS):
        with lone_host(native, kind) as (host, launcher, worker):
            assert worker.pid not in end_orphans()
            # It could make another launcher.
            host.suspend()
            launcher.kill()
            is_orphaned = partial(has_lost, worker, worker.ppid())
            host.kill()
            await until(is_orphaned, "its parent's end", pause=0.001)
            found = worker.pid in end_orphans()
            await until(lambda: not alive(worker), "its end")
            if found:
                return
    pytest.fail("it has always ended before it was looked for")


async def test_a_host_whose_launcher_was_killed_keeps_its_workers(native: Native, tmp_path: Path) -> None:
    """While the host cannot yet have noticed, and at any time after."""
    pool = {"warm": 2, "capacity": 2}
    async with Broker(settings(tmp_path, isolation="required", pool=pool)) as broker:
        await warmed(broker)
        host = host_of(broker)
        workers = await steady(lambda: workers_of(host.pid), "warm workers")
        assert workers
        killed = launchers_of(host.pid)
        host.suspend()
        for launcher in killed:
            launcher.kill()
        await until(lambda: not launchers_of(host.pid), "the end of its launchers")
        assert not {worker.pid for worker in workers} & set(end_orphans())
        host.resume()
        await until(lambda: launchers_of(host.pid), "another one, though nothing is ordered")
        assert all(map(alive, workers))


async def test_no_file_that_others_boot_from_can_be_leased(native_workers: Native) -> None:
    prefix = confinement.launch(64).command
    inside = [prefix[at + 2] for at, word in enumerate(prefix) if word == "--ro-bind"]
    files = [path for path in inside if path not in (bubblewrap.BUNDLE_INSIDE, "/native")]
    files += [
        f"{bubblewrap.BUNDLE_INSIDE}/{name}" for name in (confinement.BOOT_SCRIPT, confinement.IMPORT_MAP)
    ]
    assert len(files) >= 5
    lines: list[tuple[object, ...]] = []
    for number, file in enumerate(files):
        lines.append(("openat", -100, file.encode(), os.O_RDONLY))
        lines.append(("fcntl", f"${2 * number}", F_SETLEASE, F_WRLCK))
    said = await attack(*lines)
    for file, opened, leased in zip(files, said[::2], said[1::2], strict=True):
        assert opened > 2, file
        assert leased < 0, f"{file} was leased"
    # It has all of them open still, and another one boots.
    assert await attack("getpid") == [1]
