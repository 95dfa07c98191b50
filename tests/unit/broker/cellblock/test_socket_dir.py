"""Folders of sockets: a living broker's stay, a killed one's go, wherever they are."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from cellblock import socket_dir
from cellblock.errors import ConfigError
from cellblock.socket_dir import LOCK_NAME, SocketDir, remove_stale

HOLDER = """
import sys
from pathlib import Path
from cellblock.socket_dir import SocketDir
held = SocketDir(Path(sys.argv[1]))
(held.path / "hosts.sock").touch()
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
    assert not (state_dir / "run").exists()


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
    assert not held.parent.exists()


def test_a_shared_folder_that_others_can_enter_is_refused(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(state_dir))
    (state_dir / f"cellblock-{os.getuid()}").mkdir(mode=0o755)
    with pytest.raises(ConfigError, match="not a private folder"):
        SocketDir(state_dir / ("x" * 90))


def test_a_folder_that_has_no_lock_yet_is_left_alone_until_it_is_old(state_dir: Path) -> None:
    young, old = state_dir / "broker-young", state_dir / "123-old"
    young.mkdir()
    old.mkdir()
    os.utime(old, (1, 1))
    (state_dir / "a file").touch()
    remove_stale(state_dir)
    assert young.exists() and not old.exists() and (state_dir / "a file").exists()


def test_what_other_brokers_tidy_up_meanwhile_is_no_error(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    remove_stale(state_dir / "gone")
    folder = state_dir / "broker-stopping"
    folder.mkdir()
    opened = os.open

    def gone_by_then(path: Path, *arguments: int) -> int:
        folder.rmdir()
        return opened(path, *arguments)

    monkeypatch.setattr(socket_dir.os, "open", gone_by_then)
    remove_stale(state_dir)
    assert not folder.exists()


def test_a_folder_lost_to_another_broker_is_made_again(
    state_dir: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[str] = []
    mkdtemp = tempfile.mkdtemp

    def removed_at_first(prefix: str, dir: Path) -> str:
        path = mkdtemp(prefix=prefix, dir=dir)
        made.append(path)
        if len(made) == 1:
            Path(path).rmdir()
        return path

    monkeypatch.setattr(socket_dir.tempfile, "mkdtemp", removed_at_first)
    got = SocketDir(state_dir)
    assert str(got.path) == made[1] and (got.path / LOCK_NAME).exists()
    got.close()


def test_a_path_that_no_socket_can_have_is_said_with_what_to_do(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    deep = tmp_path / ("x" * 100)
    deep.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(deep))
    with pytest.raises(ConfigError, match="Set TMPDIR or --state-dir to a folder with a shorter path"):
        SocketDir(deep)
