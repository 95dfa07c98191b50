"""Leases on files that workers boot from, as another process of the same user asks for them."""

import subprocess
import sys
from pathlib import Path

import pytest

from cellblock_worker.confinement import bubblewrap
from cellblock_worker.confinement.bubblewrap import HeldFiles

pytestmark = pytest.mark.skipif(not sys.platform.startswith("linux"), reason="leases are Linux's")

LEASE = """
import fcntl, sys
file = open(sys.argv[1], "rb")
try:
    fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
except OSError as error:
    print(type(error).__name__)
else:
    print("leased")
"""


def leased(file: Path) -> str:
    done = subprocess.run(
        [sys.executable, "-I", "-S", "-c", LEASE, file], capture_output=True, text=True, timeout=120
    )
    return done.stdout.strip()


def test_a_file_that_is_held_cannot_be_leased_from_readers(tmp_path: Path) -> None:
    folder = tmp_path / "bundle"
    folder.mkdir()
    one, other, free = folder / "boot.js", tmp_path / "deno", tmp_path / "free"
    for file in (one, other, free):
        file.write_text("text")
    held = HeldFiles()
    held.hold([folder, other, tmp_path / "nothing"])
    if leased(free) != "leased":
        pytest.skip("this file system has no leases")
    assert [leased(one), leased(other)] == ["BlockingIOError"] * 2
    held.close()
    assert leased(one) == "leased"


def test_there_is_a_bound(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bubblewrap, "MAX_HELD_FILES", 1)
    for name in ("a", "b"):
        (tmp_path / name).touch()
    held = HeldFiles()
    with pytest.raises(OSError, match="more than 1 files"):
        held.hold([tmp_path])
    held.close()
