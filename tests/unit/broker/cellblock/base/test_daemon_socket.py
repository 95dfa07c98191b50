"""The daemon's socket: private, at any path, and never in the place of what is not Cellblock's."""

import contextlib
import os
import socket
import stat
from pathlib import Path

import pytest

from cellblock.base.daemon_socket import FOLDER, ListeningSocket, Stranger, connected, refuse_strangers
from cellblock_worker.base.folders import InTheWay

ADDRESS = "127.0.0.1:7433"


def place(state_dir: Path) -> Path:
    return state_dir / FOLDER / "127.0.0.1-7433.sock"


def test_it_is_private_reached_and_removed(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    made = ListeningSocket(tmp_path, ADDRESS)
    socket_and_folder = (place(tmp_path), place(tmp_path).parent)
    assert [stat.S_IMODE(path.stat().st_mode) for path in socket_and_folder] == [0o600, 0o700]
    connected(tmp_path, ADDRESS).close()
    accepted, _ = made.socket.accept()
    with accepted:
        refuse_strangers(accepted)
    made.close()
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


@pytest.mark.parametrize("what", ["file", "link", "folder"])
def test_what_is_in_its_place_stays_and_is_named(tmp_path: Path, what: str) -> None:
    there = place(tmp_path)
    there.parent.mkdir(mode=0o700)
    if what == "file":
        there.write_text("mine")
    elif what == "link":
        (tmp_path / "other").write_text("mine")
        there.symlink_to(tmp_path / "other")
    else:
        there.mkdir()
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
    with contextlib.closing(ListeningSocket(deep, ADDRESS)):
        connected(deep, ADDRESS).close()
    assert not place(deep).exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can be another user for a moment")
def test_another_user_is_a_stranger_at_both_ends(tmp_path: Path) -> None:
    with contextlib.closing(ListeningSocket(tmp_path, ADDRESS)), socket.socket(socket.AF_UNIX) as theirs:
        os.seteuid(4711)
        try:
            # As one that has got in all the same: over an open descriptor, say.
            ours, other = socket.socketpair()
            with pytest.raises(PermissionError):
                theirs.connect(str(place(tmp_path)))
        finally:
            os.seteuid(0)
    for end in (ours, other):
        with end, pytest.raises(Stranger, match="uid 4711"):
            refuse_strangers(end)
