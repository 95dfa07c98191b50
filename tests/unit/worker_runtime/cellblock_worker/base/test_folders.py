"""Folders by descriptor: no link is followed, nothing of others is opened, replaced or removed."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from cellblock_worker.base.folders import FILE, SOCKET, Contents, Folder, InTheWay, remove_known
from support.foreign_things import KINDS, Foreign

CONTENTS: Contents = {"[a-z]+[.]db": FILE, "s[.]sock": SOCKET, "inner": {"[0-9]+": FILE, "empty": {}}}


@pytest.fixture
def foreign(tmp_path: Path) -> Foreign:
    (tmp_path / "own").mkdir()
    return Foreign(tmp_path / "outside")


@pytest.mark.parametrize("kind", KINDS)
def test_a_name_that_something_else_has_is_refused_and_left(
    tmp_path: Path, foreign: Foreign, kind: str
) -> None:
    if kind != "file":
        foreign.plant(tmp_path / "own" / "x", kind)
    foreign.plant(tmp_path / "own" / "folder", kind)
    before = foreign.seen()
    with Folder.inside(tmp_path / "own") as own:
        (tmp_path / "own" / "new").write_text("ours")
        if kind != "file":
            for flags in (os.O_RDONLY, os.O_RDWR | os.O_CREAT, os.O_WRONLY | os.O_CREAT | os.O_TRUNC):
                with pytest.raises(InTheWay, match="own/x is "):
                    own.open("x", flags)
            with pytest.raises(InTheWay):
                own.replace("new", "x")
            with pytest.raises(InTheWay):
                own.remove("x")
            with pytest.raises(FileExistsError):
                own.link("new", "x")
        if "folder" not in kind or "link" in kind:
            with pytest.raises(InTheWay, match="own/folder is "):
                own.below("folder", make=True)
            with pytest.raises(InTheWay):
                Folder.inside(tmp_path / "own" / "folder", make=True)
    assert foreign.seen() == before


def test_a_file_with_another_name_is_refused_where_it_would_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "mine").write_text("precious")
    (tmp_path / "log").hardlink_to(tmp_path / "mine")
    with Folder.named(tmp_path) as folder:
        with pytest.raises(InTheWay, match="second name"):
            folder.open("log", os.O_WRONLY | os.O_APPEND, alone=True)
        os.close(folder.open("log", os.O_RDONLY))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_what_another_user_has_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    for name in ("file", "folder"):
        os.chown(tmp_path / name, 12345, 12345)
    with Folder.named(tmp_path) as folder:
        for refused in (
            lambda: folder.open("file", os.O_RDONLY),
            lambda: folder.remove("file"),
            lambda: folder.below("folder"),
        ):
            with pytest.raises(InTheWay, match=r"another user's \(uid 12345\)"):
                refused()
        assert remove_known(folder, {"file": FILE, "folder": {}}) == ["file", "folder"]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


def test_a_folder_that_all_may_write_to_is_refused_with_what_to_do(tmp_path: Path) -> None:
    (tmp_path / "open").mkdir()
    (tmp_path / "open").chmod(0o777)
    with Folder.named(tmp_path) as folder, pytest.raises(InTheWay, match="chmod o-w"):
        folder.below("open")


def test_what_is_new_is_private_whatever_its_path_becomes_meanwhile(tmp_path: Path) -> None:
    with Folder.inside(tmp_path / "a" / "b", make=True) as folder:
        (tmp_path / "a" / "b").rename(tmp_path / "moved")
        (tmp_path / "a" / "b").symlink_to(tmp_path)
        os.close(folder.open("x", os.O_WRONLY | os.O_CREAT))
    assert (tmp_path / "moved" / "x").stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "moved").stat().st_mode & 0o777 == 0o700
    assert not (tmp_path / "x").exists()


def test_only_what_is_known_is_removed_and_only_as_what_it_is_known(tmp_path: Path, foreign: Foreign) -> None:
    own = tmp_path / "own"
    (own / "inner" / "empty").mkdir(parents=True)
    for name in ("a.db", "inner/1", "inner/22"):
        (own / name).touch()
    with Folder.inside(own) as folder:
        for name, kind in (
            ("b.db", "link to a file"),
            ("s.sock", "file"),
            ("inner/3", "full folder"),
            ("c", "pipe"),
        ):
            assert foreign.plant(own / name, kind)
        before = foreign.seen()
        assert remove_known(folder, CONTENTS) == ["b.db", "c", "inner/3", "s.sock"]
        assert foreign.seen() == before
        assert sorted(str(path.relative_to(own)) for path in own.rglob("*")) == [
            *("b.db", "c", "inner", "inner/3", "inner/3/model.bin", "s.sock")
        ]


def test_a_known_folder_that_is_a_link_now_is_not_entered(tmp_path: Path, foreign: Foreign) -> None:
    (tmp_path / "outside" / "folder" / "1").write_text("precious")
    foreign.plant(tmp_path / "own" / "inner", "link to a folder")
    before = foreign.seen()
    with Folder.inside(tmp_path / "own") as folder:
        assert remove_known(folder, CONTENTS) == ["inner"]
    assert foreign.seen() == before
