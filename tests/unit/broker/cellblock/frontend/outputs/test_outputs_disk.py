"""One folder of kept outputs for several processes: together they stay under the cap, and the oldest go first."""

from __future__ import annotations

import fcntl
import multiprocessing
import os
from pathlib import Path

import pytest

from cellblock.base.own_folders import OwnFolder
from cellblock.base.state_dir import OUTPUT_FILES
from cellblock.frontend.outputs import outputs_disk
from cellblock.frontend.outputs.outputs_disk import on_disk, write_within

KIB = 1024
CAP = 256 * KIB


def name(number: int) -> str:
    return f"{number:032}"


def write(own: OwnFolder, number: int, size: int) -> Path:
    write_within(own.parent, CAP, own.folder, name(number), b"x" * size)
    return own.path / name(number)


def used(parent: Path) -> int:
    return sum(on_disk(file.stat().st_size) for file in parent.glob("broker-*/*") if file.name != "lock")


def outputs(parent: Path) -> set[int]:
    return {int(file.name) for file in parent.glob("broker-*/*") if file.name != "lock"}


def test_the_oldest_of_all_folders_go(tmp_path: Path) -> None:
    one, other = (OwnFolder(tmp_path / "outputs", OUTPUT_FILES) for _ in range(2))
    for age, (own, number) in enumerate(((one, 3), (other, 2), (one, 1), (other, 0))):
        os.utime(write(own, number, 60 * KIB), (1_000 + age, 1_000 + age))
    assert used(tmp_path / "outputs") == 240 * KIB
    write(one, 4, 100 * KIB)
    assert outputs(tmp_path / "outputs") == {4, 1, 0}
    one.close()
    other.close()
    assert list((tmp_path / "outputs").iterdir()) == []


def test_what_is_not_ours_stays(tmp_path: Path) -> None:
    """It is neither removed nor counted, whatever it is called; links are not followed."""
    own, parent, outside = (
        OwnFolder(tmp_path / "outputs", OUTPUT_FILES),
        tmp_path / "outputs",
        tmp_path / "outside",
    )
    foreign = [
        outside / "file",
        own.path / "below" / name(1),
        own.path / "notes.txt",
        parent / "experiment" / name(2),
        parent / "broker-12345678" / name(3),
    ]
    for file in foreign:
        file.parent.mkdir(exist_ok=True)
        file.write_bytes(b"x" * CAP)
        os.utime(file, (1, 1))
    (parent / "broker-12345678" / "lock").write_bytes((own.path / "lock").read_bytes())
    (parent / "link").symlink_to(outside / "file")
    (own.path / name(4)).symlink_to(outside / "file")
    kept = write(own, 5, CAP)
    assert kept.exists()
    own.close()
    assert not kept.exists() and all(file.read_bytes() == b"x" * CAP for file in foreign)
    assert (own.path / name(4)).is_symlink() and (parent / "link").is_symlink()


def test_who_holds_the_lock_and_is_stopped_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(outputs_disk, "TURN_SECONDS", 0.05)
    own = OwnFolder(tmp_path / "outputs", OUTPUT_FILES)
    held = os.open(tmp_path / "outputs", os.O_RDONLY)
    fcntl.flock(held, fcntl.LOCK_EX)
    try:
        written = write(own, 1, 1)
    finally:
        os.close(held)
    assert written.read_bytes() == b"x"
    own.close()


def used_between_writes(parent: Path) -> int:
    """Holds the writers' lock: while one of them is at it, what was listed may be gone, or not counted yet."""
    held = os.open(parent, os.O_RDONLY)
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
        return used(parent)
    finally:
        os.close(held)


def fill(parent: Path) -> None:
    own = OwnFolder(parent, OUTPUT_FILES)
    for number in range(40):
        write(own, number, 30 * KIB)
        assert used_between_writes(parent) <= CAP


def test_several_processes_at_once_stay_under_it(tmp_path: Path) -> None:
    spawn = multiprocessing.get_context("spawn")
    processes = [spawn.Process(target=fill, args=(tmp_path,)) for _ in range(3)]
    for process in processes:
        process.start()
    for process in processes:
        process.join(60)
        assert process.exitcode == 0
    assert CAP - 64 * KIB < used(tmp_path) <= CAP
