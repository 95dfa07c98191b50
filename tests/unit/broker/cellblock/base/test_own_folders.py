"""Folders of one user's own: where its sockets are; the state folder, whose it is, and what its files hold. The
daemon's socket: private, at any path, and never in the place of what is not Cellblock's."""

import errno
import logging
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Generator
from contextlib import closing, contextmanager
from pathlib import Path
from unittest.mock import Mock

import pytest

from cellblock.base import own_folders
from cellblock.base.daemon_socket import FOLDER, ListeningSocket, Stranger, connected, refuse_strangers
from cellblock.base.database import SqliteDatabase
from cellblock.base.errors import ConfigError
from cellblock.base.own_folders import LOCK_NAME, OwnFolder, is_living, own_folder, remove_stale
from cellblock.base.state_dir import MARK_NAME, SocketDir, check_state_dir, prepare_state_dir
from cellblock.types.learning.store import TABLES, Observations
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
    with closing(OwnFolder(parent, CONTENTS)) as other:
        with closing(OwnFolder(parent, CONTENTS)) as one:
            assert names(parent) == sorted([one.path.name, other.path.name])
            assert {path.stat().st_mode & 0o777 for path in (parent, one.path)} == {0o700}
            (one.path / "7").touch()
        assert names(parent) == [other.path.name]
    assert names(parent) == []


def test_a_killed_ones_folder_goes_and_a_living_ones_stays(parent: Path) -> None:
    left = killed(parent)
    with closing(OwnFolder(parent, CONTENTS)) as living:
        assert [is_living(parent, path.name) for path in (left, living.path)] == [False, True]
        remove_stale(parent, CONTENTS)
        assert names(parent) == [living.path.name]
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


def lock_behind_a_link(left: Path) -> None:
    aside = (left / LOCK_NAME).rename(left.parent.with_name("lock"))
    (left / LOCK_NAME).symlink_to(aside)


AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")


@pytest.mark.parametrize(
    ("change", "name"),
    [
        pytest.param(
            lambda left: shutil.copytree(left, left.with_name("broker-copied12")),
            "broker-copied12",
            id="copied",
        ),
        pytest.param(
            lambda left: left.rename(left.with_name("broker-renamed1")), "broker-renamed1", id="renamed"
        ),
        pytest.param(lambda left: (left / LOCK_NAME).write_text(""), None, id="no mark"),
        pytest.param(
            lambda left: (left / LOCK_NAME).write_text("Cellblock made this folder"), None, id="another mark"
        ),
        pytest.param(lambda left: (left / LOCK_NAME).unlink(), None, id="no lock"),
        pytest.param(lock_behind_a_link, None, id="link"),
        pytest.param(lambda left: os.chown(left, 12345, 12345), None, id="owner", marks=AS_ROOT),
        pytest.param(lambda left: left.chmod(0o777), None, id="open"),
    ],
)
def test_without_one_of_the_proofs_it_stays(
    parent: Path, change: Callable[[Path], object], name: str | None
) -> None:
    left = killed(parent)
    change(left)
    left = parent / (name or left.name)
    before = names(left)
    remove_stale(parent, CONTENTS)
    assert names(left) == before
    with Folder.inside(parent) as folder, pytest.raises(InTheWay):
        own_folder(folder, left.name)


def test_on_a_full_disk_it_serves_without_a_mark(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patched:
        full = OSError(errno.ENOSPC, "No space left on device")
        patched.setattr(own_folders.os, "write", Mock(side_effect=full))
        own = OwnFolder(parent, CONTENTS)
    assert (own.path / LOCK_NAME).stat().st_size == 0
    remove_stale(parent, CONTENTS)
    own.close()
    assert names(parent) == []


def test_what_cannot_be_made_whole_leaves_nothing(parent: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    too_many = OSError(errno.EMFILE, "Too many open files")
    monkeypatch.setattr(Folder, "open", Mock(side_effect=too_many))
    parent.mkdir()
    with pytest.raises(OSError, match="Too many open files"):
        OwnFolder(parent, CONTENTS)
    assert names(parent) == []


HOLDER = """
import socket, sys
from pathlib import Path
from cellblock.base.state_dir import SocketDir
held = SocketDir(Path(sys.argv[1]))
socket.socket(socket.AF_UNIX).bind(str(held.path / "hosts.sock"))
print(held.path, flush=True)
sys.stdin.read()
"""


@contextmanager
def holder(short_path: Path, **environment: str) -> Generator[Path]:
    """The folder for sockets of a process, which is killed at the end of the block."""
    with subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(short_path)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **environment},
    ) as process:
        assert process.stdout is not None
        yield Path(process.stdout.readline().strip())
        process.kill()


def test_where_the_path_is_too_long_leftovers_are_found_too(
    short_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = short_path / "t"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    long = short_path / ("x" * 90)
    with holder(long, TMPDIR=str(temporary)) as held:
        assert held.is_relative_to(temporary) and not long.exists()
        with closing(SocketDir(long)) as made:
            assert made.path.parent == held.parent and held.exists()
    SocketDir(long).close()
    assert [*held.parent.iterdir()] == []


def of_another_user(name: Path) -> None:
    name.mkdir(mode=0o700)
    os.chown(name, 12345, 12345)


@pytest.mark.parametrize(
    "squat",
    [
        pytest.param(lambda name: name.mkdir(mode=0o755), id="open"),
        pytest.param(lambda name: name.write_text(""), id="file"),
        pytest.param(lambda name: name.symlink_to(name.parent), id="link"),
        pytest.param(of_another_user, id="another user's", marks=AS_ROOT),
    ],
)
def test_a_shared_folder_that_is_not_this_users_alone_gets_another_name(
    short_path: Path, monkeypatch: pytest.MonkeyPatch, squat: Callable[[Path], object]
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(short_path))
    name = short_path / f"cellblock-{os.getuid()}"
    squat(name)
    short_path.joinpath(f"{name.name}-0").mkdir(mode=0o777)
    with (
        closing(SocketDir(short_path / ("x" * 90))) as first,
        closing(SocketDir(short_path / ("y" * 90))) as second,
    ):
        parent = first.path.parent
        assert parent == second.path.parent and parent.parent == short_path
        assert parent.name.startswith(f"{name.name}-") and parent.stat().st_mode & 0o777 == 0o700
    assert [*parent.iterdir()] == []


def test_a_folder_that_someone_removed_is_made_anew_under_its_name(short_path: Path) -> None:
    made = SocketDir(short_path)
    held = made.path
    made.restore()
    assert names(held) == [LOCK_NAME]
    for folder in (held, held.parent, short_path):
        shutil.rmtree(folder)
        made.restore()
        assert made.path == held and (held / LOCK_NAME).exists() and held.stat().st_mode & 0o777 == 0o700
    (held / LOCK_NAME).unlink()
    made.restore()
    held.rename(short_path / "aside")
    made.restore()
    assert (held / LOCK_NAME).exists() and (short_path / "aside" / LOCK_NAME).exists()
    with holder(short_path):
        pass
    assert (held / LOCK_NAME).exists(), "what is restored is held"
    made.close()
    assert not held.exists()


def test_nothing_of_others_is_taken_for_the_folder_or_the_socket(short_path: Path) -> None:
    made = SocketDir(short_path)
    (made.path / "hosts.sock").write_text("precious")
    with pytest.raises(InTheWay, match=r"hosts\.sock is not the socket"):
        made.restore()
    (made.path / "hosts.sock").unlink()
    made.path.rename(short_path / "aside")
    (short_path / "aside" / LOCK_NAME).unlink()
    made.path.mkdir()
    with pytest.raises(InTheWay, match="not the folder that Cellblock has made"):
        made.restore()
    made.close()
    assert made.path.is_dir() and (short_path / "aside").is_dir()


def test_a_path_that_no_socket_can_have_is_said_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with pytest.raises(ConfigError, match="Set TMPDIR or --state-dir to a folder with a shorter path"):
        SocketDir(deep)


def test_it_is_made_private_and_marked(tmp_path: Path) -> None:
    state = tmp_path / "a" / "state"
    assert check_state_dir(state) is None and not state.exists()
    prepare_state_dir(state)
    prepare_state_dir(state)
    assert names(state) == [MARK_NAME, "logs"]
    assert {path.stat().st_mode & 0o777 for path in (state, state / "logs")} == {0o700}


@pytest.mark.parametrize(
    ("change", "said"),
    [
        pytest.param(
            lambda folder: os.chown(folder, 12345, 12345),
            r"another user \(uid 12345\).*chown 0 .*or use another --state-dir",
            id="another user's",
            marks=AS_ROOT,
        ),
        pytest.param(
            lambda folder: folder.chmod(0o1777),
            r"All users may write .*\(mode 1777\).*chmod 700",
            id="open to all",
        ),
    ],
)
def test_one_that_others_may_write_to_is_refused_with_what_to_do(
    tmp_path: Path, change: Callable[[Path], object], said: str
) -> None:
    change(tmp_path)
    for refuse in (check_state_dir, prepare_state_dir):
        with pytest.raises(ConfigError, match=said):
            refuse(tmp_path)
    assert names(tmp_path) == []


@contextmanager
def another_user() -> Generator[None]:
    """Has this process be another user."""
    os.seteuid(12345)
    try:
        yield
    finally:
        os.seteuid(0)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_another_user_is_refused_roots(tmp_path: Path) -> None:
    # Wherever the folders of tests are: the other user must come as far.
    for folder in (tmp_path, *tmp_path.parents):
        if folder.stat().st_mode & 0o5 != 0o5:
            folder.chmod(0o755)
    (tmp_path / "state").mkdir()
    with another_user(), pytest.raises(ConfigError, match=r"belongs to another user \(uid 0\)"):
        prepare_state_dir(tmp_path / "state")


def test_one_that_its_group_may_write_to_is_a_warning(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    tmp_path.chmod(0o770)
    assert "chmod g-w" in (check_state_dir(tmp_path) or "")
    with caplog.at_level(logging.WARNING):
        prepare_state_dir(tmp_path)
    assert "The group of the state directory" in caplog.text


def test_it_may_be_a_link_as_the_user_has_named_it(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "state").symlink_to(tmp_path / "real")
    prepare_state_dir(tmp_path / "state")
    assert names(tmp_path / "real") == [MARK_NAME, "logs"]


def test_one_without_a_mark_that_has_a_store_is_cellblocks(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs/host.log").touch()
    Observations(SqliteDatabase(tmp_path / "schemas.sqlite3", TABLES)).close()
    prepare_state_dir(tmp_path)
    assert MARK_NAME in names(tmp_path)


@pytest.mark.parametrize("name", ["logs/host.log", "logs/upstream-files.log", "schemas.sqlite3"])
def test_a_strangers_file_at_a_name_that_is_written_to_is_refused(tmp_path: Path, name: str) -> None:
    """As in a project with logs of its own; once the directory is in use, such files are Cellblock's."""
    (tmp_path / "logs").mkdir(mode=0o755)
    (tmp_path / name).write_text("precious")
    with pytest.raises(ConfigError, match=f"{name} is not a file that Cellblock has made. Move it away"):
        prepare_state_dir(tmp_path)
    assert MARK_NAME not in names(tmp_path)
    (tmp_path / name).rename(tmp_path / "aside")
    prepare_state_dir(tmp_path)
    (tmp_path / "aside").rename(tmp_path / name)
    prepare_state_dir(tmp_path)


ADDRESS = "127.0.0.1:7433"


def place(state_dir: Path) -> Path:
    return state_dir / FOLDER / "127.0.0.1-7433.sock"


def test_it_is_private_reached_and_removed(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    with closing(ListeningSocket(tmp_path, ADDRESS)) as made:
        socket_and_folder = (place(tmp_path), place(tmp_path).parent)
        assert [stat.S_IMODE(path.stat().st_mode) for path in socket_and_folder] == [0o600, 0o700]
        connected(tmp_path, ADDRESS).close()
        accepted, _ = made.socket.accept()
        with accepted:
            refuse_strangers(accepted)
    assert not place(tmp_path).exists()
    with pytest.raises(FileNotFoundError):
        connected(tmp_path, ADDRESS)


def test_a_folder_that_others_may_enter_is_not_used(tmp_path: Path) -> None:
    place(tmp_path).parent.mkdir(mode=0o755)
    for use in (ListeningSocket, connected):
        with pytest.raises(InTheWay, match="chmod 700"):
            use(tmp_path, ADDRESS)
    assert stat.S_IMODE(place(tmp_path).parent.stat().st_mode) == 0o755


def test_one_of_a_daemon_that_was_killed_is_replaced_and_one_that_lives_is_not(tmp_path: Path) -> None:
    listening = ListeningSocket(tmp_path, ADDRESS)
    with pytest.raises(OSError, match="another daemon"):
        ListeningSocket(tmp_path, ADDRESS)
    connected(tmp_path, ADDRESS).close()
    listening.socket.close()
    with pytest.raises(ConnectionRefusedError):
        connected(tmp_path, ADDRESS)
    second = ListeningSocket(tmp_path, ADDRESS)
    listening.close()
    assert place(tmp_path).is_socket(), "the first removes its own only"
    second.close()
    ListeningSocket(tmp_path, ADDRESS).close()


@pytest.mark.parametrize(
    "put",
    [
        pytest.param(lambda there: there.write_text("mine"), id="file"),
        pytest.param(lambda there: there.symlink_to(__file__), id="link"),
        pytest.param(Path.mkdir, id="folder"),
    ],
)
def test_what_is_in_its_place_stays_and_is_named(tmp_path: Path, put: Callable[[Path], object]) -> None:
    there = place(tmp_path)
    there.parent.mkdir(mode=0o700)
    put(there)
    before = there.lstat()
    for use in (ListeningSocket, connected):
        with pytest.raises(InTheWay, match="7433"):
            use(tmp_path, ADDRESS)
    assert there.lstat() == before


def test_a_folder_that_is_a_link_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / FOLDER).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(InTheWay):
        ListeningSocket(tmp_path, ADDRESS)
    assert list((tmp_path / "elsewhere").iterdir()) == []


@pytest.mark.skipif(not Path("/proc/self/fd").exists(), reason="elsewhere the path is too long")
def test_its_path_may_be_longer_than_the_system_takes(tmp_path: Path) -> None:
    deep = tmp_path / ("d" * 120) / ("e" * 120)
    with closing(ListeningSocket(deep, ADDRESS)):
        connected(deep, ADDRESS).close()
    assert not place(deep).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user for a moment")
def test_another_user_is_a_stranger_at_both_ends(tmp_path: Path) -> None:
    with closing(ListeningSocket(tmp_path, ADDRESS)), socket.socket(socket.AF_UNIX) as theirs, another_user():
        # As one that has got in all the same: over an open descriptor, say.
        ours, other = socket.socketpair()
        with pytest.raises(PermissionError):
            theirs.connect(str(place(tmp_path)))
    for end in (ours, other):
        with end, pytest.raises(Stranger, match="uid 12345"):
            refuse_strangers(end)
