"""One folder of kept outputs for several processes: together they stay under the cap, and the oldest go first."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
from pathlib import Path

import pytest

from cellblock.frontend import outputs_disk
from cellblock.frontend.outputs_disk import on_disk, write_within

KIB = 1024
CAP = 256 * KIB


def folder(parent: Path, name: str) -> Path:
    """As a process makes its own."""
    made = parent / name
    made.mkdir(parents=True)
    (made / "lock").write_bytes(b"x" * CAP)
    return made


def used(parent: Path) -> int:
    return sum(on_disk(file.stat().st_size) for file in parent.glob("*/*") if file.name != "lock")


def test_the_oldest_of_all_folders_go(tmp_path: Path) -> None:
    one, other = folder(tmp_path, "a"), folder(tmp_path, "b")
    for age, file in enumerate((one / "3", other / "2", one / "1", other / "0")):
        write_within(tmp_path, CAP, file, b"x" * (60 * KIB))
        os.utime(file, (1_000 + age, 1_000 + age))
    assert used(tmp_path) == 240 * KIB
    write_within(tmp_path, CAP, one / "new", b"x" * (100 * KIB))
    assert {file.name for file in tmp_path.glob("*/*")} == {"lock", "1", "0", "new"}


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    """Links are not followed, and folders are not looked into."""
    own, outside = folder(tmp_path / "outputs", "a"), tmp_path / "outside"
    outside.mkdir()
    (outside / "file").write_bytes(b"x" * CAP)
    (tmp_path / "outputs" / "link").symlink_to(outside / "file")
    (own / "link").symlink_to(outside / "file")
    (own / "below").mkdir()
    (own / "below" / "file").write_bytes(b"x" * CAP)
    write_within(tmp_path / "outputs", CAP, own / "new", b"x" * CAP)
    assert (outside / "file").exists() and (own / "below" / "file").exists() and (own / "new").exists()


def test_who_holds_the_lock_and_is_stopped_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs_disk, "TURN_SECONDS", 0.05)
    own = folder(tmp_path, "a")
    held = os.open(tmp_path, os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        write_within(tmp_path, CAP, own / "new", b"x")
    finally:
        os.close(held)
    assert (own / "new").read_bytes() == b"x"


def used_between_writes(parent: Path) -> int:
    """Holds the writers' lock: while one of them is at it, what was listed may be gone, or not counted yet."""
    held = os.open(parent, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        return used(parent)
    finally:
        os.close(held)


def fill(parent: Path, name: str) -> None:
    own = folder(parent, name)
    for number in range(40):
        write_within(parent, CAP, own / str(number), b"x" * (30 * KIB))
        assert used_between_writes(parent) <= CAP


def test_several_processes_at_once_stay_under_it(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=fill, args=(tmp_path, f"p{number}")) for number in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert CAP - 64 * KIB < used(tmp_path) <= CAP
