"""Folders that Cellblock makes and removes: only with prefix, mark, owner and lock, and only what is its own there."""

from __future__ import annotations

import errno
import logging
import os
import shutil
import signal
from pathlib import Path

import pytest

from cellblock.base import own_folders
from cellblock.base.own_folders import LOCK_NAME, OwnFolder, is_living, own_folder, remove_stale
from cellblock_worker.base.folders import FILE, Contents, Folder, InTheWay

CONTENTS: Contents = {"[0-9]+": FILE}


def killed(parent: Path) -> Path:
    """What a broker leaves that is killed: made by a real process, whose lock ends with it."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            own = OwnFolder(parent, CONTENTS)
            (own.path / "1").touch()
            os.write(writing, str(own.path).encode())
            signal.pause()
        finally:
            os._exit(1)
    os.close(writing)
    path = Path(os.read(reading, 4096).decode())
    os.close(reading)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    return path


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


@pytest.fixture
def parent(tmp_path: Path) -> Path:
    return tmp_path / "run"


def test_it_is_private_and_goes_with_what_is_its_own(parent: Path) -> None:
    one, other = OwnFolder(parent, CONTENTS), OwnFolder(parent, CONTENTS)
    assert names(parent) == sorted([one.path.name, other.path.name])
    assert {path.stat().st_mode & 0o777 for path in (parent, one.path)} == {0o700}
    (one.path / "7").touch()
    one.close()
    assert names(parent) == [other.path.name]
    other.close()
    assert names(parent) == []


def test_a_killed_ones_folder_goes_and_a_living_ones_stays(parent: Path) -> None:
    left = killed(parent)
    living = OwnFolder(parent, CONTENTS)
    assert [is_living(parent, path.name) for path in (left, living.path)] == [False, True]
    remove_stale(parent, CONTENTS)
    assert names(parent) == [living.path.name]
    living.close()
    assert names(parent) == []
    remove_stale(parent / "none", CONTENTS)


def test_what_others_put_into_it_stays_and_is_named(parent: Path, caplog: pytest.LogCaptureFixture) -> None:
    left, own = killed(parent), OwnFolder(parent, CONTENTS)
    for folder in (left, own.path):
        (folder / "thesis.txt").write_text("precious")
    with caplog.at_level(logging.WARNING):
        remove_stale(parent, CONTENTS)
        own.close()
    for folder in (left, own.path):
        assert names(folder) == ["thesis.txt"]
        assert f"{folder} stays" in caplog.text and "thesis.txt" in caplog.text
    caplog.clear()
    remove_stale(parent, CONTENTS)
    assert not caplog.text and names(left) == ["thesis.txt"]


@pytest.mark.parametrize(
    "what", ["copied", "renamed", "no mark", "another mark", "no lock", "link", "owner", "open"]
)
def test_without_one_of_the_proofs_it_stays(parent: Path, tmp_path: Path, what: str) -> None:
    left = killed(parent)
    if what == "copied":
        shutil.rmtree(left.parent / "broker-12345678", ignore_errors=True)
        shutil.copytree(left, left := parent / "broker-12345678")
    elif what == "renamed":
        left = left.rename(parent / "broker-renamed1")
    elif what in ("no mark", "another mark"):
        (left / LOCK_NAME).write_text("" if what == "no mark" else "Cellblock made this folder")
    elif what == "no lock":
        (left / LOCK_NAME).unlink()
    elif what == "link":
        (left / LOCK_NAME).rename(tmp_path / "lock")
        (left / LOCK_NAME).symlink_to(tmp_path / "lock")
    elif what == "owner":
        if os.geteuid() != 0:
            pytest.skip("only root can give a folder away")
        os.chown(left, 12345, 12345)
    else:
        left.chmod(0o777)
    before = names(left)
    remove_stale(parent, CONTENTS)
    assert names(left) == before
    with Folder.inside(parent) as folder, pytest.raises(InTheWay):
        own_folder(folder, left.name)


def test_on_a_full_disk_it_serves_without_a_mark(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(own_folders.os, "write", full)
        own = OwnFolder(parent, CONTENTS)
    assert (own.path / LOCK_NAME).stat().st_size == 0
    remove_stale(parent, CONTENTS)
    own.close()
    assert names(parent) == []


def test_what_cannot_be_made_whole_leaves_nothing(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def too_many(*_: object, **__: object) -> int:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(Folder, "open", too_many)
    parent.mkdir()
    with pytest.raises(OSError, match="Too many open files"):
        OwnFolder(parent, CONTENTS)
    assert names(parent) == []
