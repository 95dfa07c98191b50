"""Folders of sockets: a living broker's stay, a killed one's go, wherever they are."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellblock.base.errors import ConfigError
from cellblock.base.own_folders import LOCK_NAME
from cellblock.base.socket_dir import SocketDir
from cellblock_worker.base.folders import InTheWay

HOLDER = """
import socket, sys
from pathlib import Path
from cellblock.base.socket_dir import SocketDir
held = SocketDir(Path(sys.argv[1]))
socket.socket(socket.AF_UNIX).bind(str(held.path / "hosts.sock"))
print(held.path, flush=True)
sys.stdin.read()
"""


@pytest.fixture
def state_dir() -> Iterator[Path]:
    """A path that is short enough, unlike pytest's own."""
    with tempfile.TemporaryDirectory(prefix="cb-") as folder:
        yield Path(folder)


def start_holder(
    state_dir: Path, environment: dict[str, str] | None = None
) -> tuple[subprocess.Popen[str], Path]:
    process = subprocess.Popen(
        [sys.executable, "-c", HOLDER, str(state_dir)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **(environment or {})},
    )
    assert process.stdout is not None
    return process, Path(process.stdout.readline().strip())


def kill(process: subprocess.Popen[str]) -> None:
    process.kill()
    process.communicate()


def test_a_folder_is_private_and_goes_at_close(state_dir: Path) -> None:
    made = SocketDir(state_dir)
    assert made.path.parent == state_dir / "run"
    assert made.path.stat().st_mode & 0o077 == 0
    made.close()
    assert not made.path.exists()


def test_a_living_brokers_folder_stays_and_a_killed_ones_goes(state_dir: Path) -> None:
    process, held = start_holder(state_dir)
    try:
        first = SocketDir(state_dir)
        assert (held / "hosts.sock").exists()
        first.close()
        assert (held / "hosts.sock").exists()
    finally:
        kill(process)
    assert held.exists()
    second = SocketDir(state_dir)
    assert not held.exists() and second.path.exists()
    second.close()


def test_where_the_path_is_too_long_leftovers_are_found_too(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    temporary = state_dir / "t"
    temporary.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(temporary))
    long = state_dir / ("x" * 90)
    process, held = start_holder(long, {"TMPDIR": str(temporary)})
    try:
        assert held.is_relative_to(temporary) and not long.exists()
        made = SocketDir(long)
        assert made.path.parent == held.parent and held.exists()
        made.close()
    finally:
        kill(process)
    SocketDir(long).close()
    assert [*held.parent.iterdir()] == []


def test_a_shared_folder_that_others_can_enter_is_refused(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(state_dir))
    (state_dir / f"cellblock-{os.getuid()}").mkdir(mode=0o755)
    with pytest.raises(ConfigError, match="not a private folder"):
        SocketDir(state_dir / ("x" * 90))


def test_a_folder_that_someone_removed_is_made_anew_under_its_name(state_dir: Path) -> None:
    made = SocketDir(state_dir)
    held = made.path
    made.restore()
    assert sorted(path.name for path in held.iterdir()) == [LOCK_NAME]
    for folder in (held, held.parent, state_dir):
        shutil.rmtree(folder)
        made.restore()
        assert made.path == held and (held / LOCK_NAME).exists() and held.stat().st_mode & 0o777 == 0o700
    (held / LOCK_NAME).unlink()
    made.restore()
    held.rename(state_dir / "aside")
    made.restore()
    assert (held / LOCK_NAME).exists() and (state_dir / "aside" / LOCK_NAME).exists()
    process, _ = start_holder(state_dir)
    kill(process)
    assert (held / LOCK_NAME).exists(), "what is restored is held"
    made.close()
    assert not held.exists()


def test_nothing_of_others_is_taken_for_the_folder_or_the_socket(state_dir: Path) -> None:
    made = SocketDir(state_dir)
    (made.path / "hosts.sock").write_text("precious")
    with pytest.raises(InTheWay, match=r"hosts\.sock is not the socket"):
        made.restore()
    (made.path / "hosts.sock").unlink()
    made.path.rename(state_dir / "aside")
    (state_dir / "aside" / LOCK_NAME).unlink()
    made.path.mkdir()
    with pytest.raises(InTheWay, match="not the folder that Cellblock has made"):
        made.restore()
    made.close()
    assert made.path.is_dir() and (state_dir / "aside").is_dir()


def test_a_path_that_no_socket_can_have_is_said_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with pytest.raises(ConfigError, match="Set TMPDIR or --state-dir to a folder with a shorter path"):
        SocketDir(deep)
