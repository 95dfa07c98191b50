"""The DENO_DIR of workers inside bubblewrap: real Deno, real mounts."""

import asyncio
import contextlib
import hashlib
import logging
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from cellblock_worker.confinement import bubblewrap, confinement
from cellblock_worker.host import deno_dir
from cellblock_worker.wire.endpoints import ipc_folder
from cellblock_worker.worker.rehearsal import WARM_FRAME
from support.waits import until

HEAP_MB = 64
WANTED = asyncio.Event()
WANTED.set()
BOUND_SECONDS = 120.0


@pytest.fixture
def wrapped(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    if not sys.platform.startswith("linux"):
        pytest.skip("bubblewrap is Linux only")
    confinement.use_isolation("auto")
    if "namespaces" in " ".join(confinement.layers_missing()):
        pytest.skip("there is no bubblewrap")
    monkeypatch.setattr(deno_dir, "IDLE_PAUSE_SECONDS", 0.0)
    yield
    confinement.use_isolation("off")


@pytest.fixture
async def filled(wrapped: None, tmp_path: Path) -> AsyncIterator[Path]:
    owner = deno_dir.DenoDir(tmp_path, HEAP_MB, WANTED, shown)
    await owner.serve()
    yield tmp_path / deno_dir.FOLDER_NAME / "shown"
    owner.close()


def contents(folder: Path) -> dict[str, str]:
    return {path.name: hashlib.sha256(path.read_bytes()).hexdigest() for path in folder.iterdir()}


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


async def shown() -> None:
    """Nobody moves workers here."""


def boot() -> tuple[subprocess.Popen[bytes], int]:
    launch = confinement.launch(HEAP_MB)
    process = subprocess.Popen(
        launch.command,
        env=confinement.WORKER_ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        start_new_session=True,
        pass_fds=launch.fds,
    )
    launch.close()
    process.stdin.write(WARM_FRAME)
    process.stdin.flush()
    assert b"ready" in os.read(process.stdout.fileno(), 4096)
    return process, bubblewrap.inner_pid(process.pid)


async def test_a_worker_opens_the_files_and_cannot_write_them(filled: Path) -> None:
    before = contents(filled)
    process, inner = boot()
    with process:
        opened = {str(link.readlink()) for link in Path(f"/proc/{inner}/fd").iterdir()}  # noqa: ASYNC240
        mounts = [line.split() for line in Path(f"/proc/{inner}/mountinfo").read_text().splitlines()]  # noqa: ASYNC240
        [flags] = [fields[5] for fields in mounts if fields[4] == confinement.DENO_DIR_INSIDE]
        process.stdin.close()
        assert process.wait(BOUND_SECONDS) == 0
    assert f"{confinement.DENO_DIR_INSIDE}/dep_analysis_cache_v2" in opened
    assert "ro" in flags.split(",")
    assert contents(filled) == before


@pytest.mark.usefixtures("contexts")
async def test_it_has_all_files_that_workers_boot_from(filled: Path, tmp_path: Path) -> None:
    """A host that may reuse processes has two kinds of workers."""
    copy = shutil.copytree(filled, tmp_path / "copy")
    with contextlib.closing(sqlite3.connect(copy / "dep_analysis_cache_v2")) as known:
        of_modules = {specifier for (specifier,) in known.execute("SELECT specifier FROM moduleinfocache")}
    for name in (confinement.BOOT_SCRIPT, confinement.CONTEXTS_SCRIPT):
        assert f"file://{bubblewrap.BUNDLE_INSIDE}/{name}" in of_modules


async def test_what_a_killed_host_left_is_replaced_and_what_others_put_there_stays(
    filled: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (filled.parent / "filled").mkdir()
    (filled.parent / "filled" / "dep_analysis_cache_v2-wal").write_text("of a host that was killed")
    (filled.parent / "mine.txt").write_text("precious")
    owner = deno_dir.DenoDir(filled.parent.parent, HEAP_MB, WANTED, shown)
    await owner.serve()
    assert names(filled.parent) == ["mine.txt", "shown"]
    with caplog.at_level(logging.WARNING, "cellblock.host"):
        owner.close()
    assert names(filled.parent) == ["mine.txt"] and "mine.txt" in caplog.text


async def test_without_bubblewrap_there_is_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(deno_dir, "IDLE_PAUSE_SECONDS", 0.0)
    confinement.use_isolation("off")
    owner = deno_dir.DenoDir(tmp_path, HEAP_MB, WANTED, shown)
    await owner.serve()
    assert "--setenv" not in confinement.launch(HEAP_MB).command
    owner.close()
    assert names(tmp_path) == []


async def test_a_folder_that_cannot_be_made_is_told_and_workers_boot_without(
    wrapped: None, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    (tmp_path / "file").write_text("")
    owner = deno_dir.DenoDir(tmp_path / "file", HEAP_MB, WANTED, shown)
    with caplog.at_level(logging.WARNING, "cellblock.host"):
        await owner.serve()
    assert "without a DENO_DIR" in caplog.text
    assert "--setenv" not in confinement.launch(HEAP_MB).command
    owner.close()


async def test_nothing_is_made_before_it_is_wanted(wrapped: None, tmp_path: Path) -> None:
    wanted, made = asyncio.Event(), asyncio.Event()

    async def told() -> None:
        made.set()

    owner = deno_dir.DenoDir(tmp_path, HEAP_MB, wanted, told)
    task = asyncio.create_task(owner.serve())
    # All that it did before it waited for that.
    await asyncio.wait([task], timeout=0.2)
    assert not task.done() and names(tmp_path) == []
    wanted.set()
    await asyncio.wait_for(task, BOUND_SECONDS)
    assert made.is_set() and names(tmp_path) == [deno_dir.FOLDER_NAME]
    owner.close()


async def test_a_stop_while_it_is_filled_leaves_nothing(wrapped: None, tmp_path: Path) -> None:
    owner = deno_dir.DenoDir(tmp_path, HEAP_MB, WANTED, shown)
    task = asyncio.create_task(owner.serve())
    await until(lambda: deno_dir.FOLDER_NAME in names(tmp_path), "the folder")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    owner.close()
    assert names(tmp_path) == []


def test_the_folder_of_a_socket() -> None:
    endpoints = ("ipc:///run/x/broker.sock", "tcp://127.0.0.1:5")
    assert [ipc_folder(endpoint) for endpoint in endpoints] == [Path("/run/x"), None]
