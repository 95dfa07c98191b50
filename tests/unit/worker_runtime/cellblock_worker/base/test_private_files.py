"""Files and folders that are their owner's alone."""

import errno
import os
import signal
import stat
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from cellblock_worker.base.folders import FILE, SOCKET, Contents, Folder, InTheWay, remove_known
from cellblock_worker.base.private_files import (
    NotAFile,
    OpenToOthers,
    TooLarge,
    read_named,
    read_private,
    stamp_of,
    write_private,
)
from support.foreign_things import KINDS, Foreign


def write(file: Path, data: bytes, *, replace: bool = True) -> bool:
    with Folder.inside(file.parent, make=True) as folder:
        return write_private(folder, file.name, data, replace=replace)


def read(file: Path, max_bytes: int = 100, *, secret: bool = True) -> bytes:
    with Folder.inside(file.parent) as folder:
        return read_private(folder, file.name, max_bytes, secret=secret)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    return tmp_path / "own" / "file"


def test_what_was_written_is_read_and_is_its_owners_alone_whatever_the_umask(file: Path) -> None:
    assert stamp_of(file) is None
    before = os.umask(0)
    try:
        assert write(file, b"one")
    finally:
        os.umask(before)
    first = stamp_of(file)
    assert write(file, b"two") and read(file) == b"two" == read_named(file, 3)[0]
    assert stamp_of(file) != first
    assert stat.S_IMODE(file.stat().st_mode) == 0o600 and stat.S_IMODE(file.parent.stat().st_mode) == 0o700
    assert list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind != "file"])
def test_what_is_no_file_of_ours_is_neither_read_nor_replaced(tmp_path: Path, file: Path, kind: str) -> None:
    foreign = Foreign(tmp_path / "outside")
    foreign.plant(file, kind)
    before = foreign.seen()
    for use in (lambda file: read(file, secret=False), lambda file: write(file, b"ours")):
        with pytest.raises(InTheWay, match="own/file is "):
            use(file)
    assert not write(file, b"ours", replace=False)
    if "folder" in kind or kind in ("pipe", "dangling link"):
        with pytest.raises((NotAFile, FileNotFoundError)):
            read_named(file, 100)
    assert foreign.seen() == before and list(file.parent.iterdir()) == [file]


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_file_of_another_user_is_neither_read_nor_replaced(file: Path) -> None:
    write(file, b"precious")
    os.chown(file, 12345, 12345)
    for use in (read, lambda file: write(file, b"ours")):
        with pytest.raises(InTheWay, match=r"another user's \(uid 12345\)"):
            use(file)
    assert file.read_bytes() == b"precious" and list(file.parent.iterdir()) == [file]


def test_a_second_name_of_a_file_keeps_the_old_one(tmp_path: Path, file: Path) -> None:
    write(file, b"old")
    (tmp_path / "backup").hardlink_to(file)
    write(file, b"new")
    assert ((tmp_path / "backup").read_bytes(), read(file)) == (b"old", b"new")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o601, 0o644])
def test_a_secret_that_others_may_use_is_refused(file: Path, mode: int) -> None:
    write(file, b"secret")
    file.chmod(mode)
    for use in (read, lambda file: read_named(file, 100)):
        with pytest.raises(OpenToOthers) as caught:
            use(file)
        assert caught.value.mode == mode
    assert read(file, secret=False) == b"secret"


def test_a_file_without_end_is_not_read_whole(file: Path) -> None:
    write(file, b"x")
    for size in (101, 10**12):
        os.truncate(file, size)
        for use in (read, lambda file: read_named(file, 100)):
            with pytest.raises(TooLarge):
                use(file)


def test_only_a_file_that_the_user_has_named_may_be_behind_a_link(tmp_path: Path, file: Path) -> None:
    write(file, b"secret")
    (tmp_path / "named").symlink_to(file)
    data, found = read_named(tmp_path / "named", 100)
    assert (data, found.st_ino) == (b"secret", file.stat().st_ino)


def test_of_those_who_write_a_first_file_at_once_one_wins(file: Path) -> None:
    with ThreadPoolExecutor(8) as threads:
        won = list(threads.map(lambda number: write(file, b"%d" % number, replace=False), range(32)))
    assert [number for number, one in enumerate(won) if one] == [int(read(file))]
    assert list(file.parent.iterdir()) == [file]


def test_only_the_version_that_was_seen_is_replaced(file: Path) -> None:
    write(file, b"one")
    seen = stamp_of(file)
    write(file, b"another")
    with Folder.inside(file.parent) as folder:
        assert not write_private(folder, file.name, b"mine", only=seen)
        assert read(file) == b"another" and list(file.parent.iterdir()) == [file]
        assert write_private(folder, file.name, b"mine", only=stamp_of(file))
        file.unlink()
        assert not write_private(folder, file.name, b"mine", only=seen)
    assert not file.exists()


def test_a_file_system_without_hard_links_will_do(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: object, **__: object) -> None:
        raise OSError(errno.EPERM, os.strerror(errno.EPERM))

    monkeypatch.setattr(os, "link", refused)
    assert write(file, b"one", replace=False) and not write(file, b"two", replace=False)
    assert read(file) == b"one" and list(file.parent.iterdir()) == [file]


AT = """
import os, resource, signal, sys
from pathlib import Path
from cellblock_worker.base.folders import Folder
from cellblock_worker.base.private_files import write_private

file, step = Path(sys.argv[1]), sys.argv[2]
if step == "full":
    resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
else:
    setattr(os, step, lambda *_, **__: os.kill(os.getpid(), signal.SIGKILL))
try:
    with Folder.inside(file.parent) as folder:
        write_private(folder, file.name, b"new" * 1000, replace=sys.argv[3] == "replace")
except OSError as error:
    print(error.errno)
"""
"""Writes a file on a disk that takes 1000 bytes, or is killed at a step."""


def write_until(file: Path, step: str, how: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", AT, str(file), step, how]
    return subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)


@pytest.mark.parametrize("how", ["replace", "first"])
def test_a_full_disk_leaves_the_old_file_and_is_not_made_fuller(file: Path, how: str) -> None:
    write(file, b"old")
    done = write_until(file, "full", how)
    assert (done.returncode, done.stdout, done.stderr) == (0, f"{errno.EFBIG}\n", "")
    assert read(file) == b"old" and list(file.parent.iterdir()) == [file]


@pytest.mark.parametrize(
    ("step", "how"), [("fsync", "replace"), ("rename", "replace"), ("fsync", "first"), ("link", "first")]
)
def test_a_crash_leaves_the_old_file_or_none_and_costs_the_next_write_nothing(
    file: Path, step: str, how: str
) -> None:
    if how == "replace":
        write(file, b"old")
    else:
        file.parent.mkdir()
    assert write_until(file, step, how).returncode == -signal.SIGKILL
    assert file.exists() == (how == "replace") and (how == "first" or read(file) == b"old")
    assert write(file, b"next", replace=how == "replace") and read(file) == b"next"


def test_a_disk_that_cannot_be_written_for_sure_keeps_the_old_file(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write(file, b"old")

    def lost(_: int) -> None:
        raise OSError(errno.EIO, os.strerror(errno.EIO))

    with monkeypatch.context() as patch:
        patch.setattr(os, "fsync", lost)
        with pytest.raises(OSError, match="Input/output error"):
            write(file, b"new")
    assert read(file) == b"old" and list(file.parent.iterdir()) == [file]


CONTENTS: Contents = {
    "[a-z]+[.]db": FILE,
    "s[.]sock": SOCKET,
    "inner": {"[0-9]+": FILE, "empty": {}},
    "other": {"[0-9]+": FILE},
}


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
            for use in (lambda: own.replace("new", "x"), lambda: own.remove("x")):
                with pytest.raises(InTheWay):
                    use()
            with pytest.raises(FileExistsError):
                own.link("new", "x")
        if "folder" not in kind or "link" in kind:
            for make in (True, False):
                with pytest.raises(InTheWay, match="own/folder is "):
                    own.below("folder", make=make)
                with pytest.raises(InTheWay, match="own/folder is "):
                    Folder.inside(tmp_path / "own" / "folder", make=make)
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
    modes = [path.stat().st_mode & 0o777 for path in (tmp_path / "moved", tmp_path / "moved" / "x")]
    assert modes == [0o700, 0o600] and not (tmp_path / "x").exists()


def test_only_what_is_known_is_removed_and_only_as_what_it_is_known(tmp_path: Path, foreign: Foreign) -> None:
    own = tmp_path / "own"
    (tmp_path / "outside" / "folder" / "1").write_text("precious")
    (own / "inner" / "empty").mkdir(parents=True)
    for name in ("a.db", "inner/1", "inner/22"):
        (own / name).touch()
    with Folder.inside(own) as folder:
        for name, kind in (
            ("b.db", "link to a file"),
            ("s.sock", "file"),
            ("inner/3", "full folder"),
            ("c", "pipe"),
            ("other", "link to a folder"),
        ):
            assert foreign.plant(own / name, kind)
        before = foreign.seen()
        assert remove_known(folder, CONTENTS) == ["b.db", "c", "inner/3", "other", "s.sock"]
        assert foreign.seen() == before
        assert sorted(str(path.relative_to(own)) for path in own.rglob("*")) == [
            *("b.db", "c", "inner", "inner/3", "inner/3/model.bin", "other", "s.sock")
        ]
