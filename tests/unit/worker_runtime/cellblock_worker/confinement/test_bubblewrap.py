"""Leases on files that workers boot from, as another process of the same user asks for them; and a real half-started
bubblewrap, which is found and ended, while a living one is left alone."""

import contextlib
import os
import signal
import subprocess
import sys
import time
from collections.abc import Generator
from pathlib import Path

import psutil
import pytest

from cellblock_worker.confinement import bubblewrap, confinement
from cellblock_worker.confinement.bubblewrap import HeldFiles
from support.processes import alive, left_after, name_of, signal_all

pytestmark = pytest.mark.skipif(
    not sys.platform.startswith("linux"), reason="bubblewrap and leases are Linux's"
)

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


BOUND_SECONDS = 120.0

SETTLED_SECONDS = 1.0
"""A child of bubblewrap that is let go has become another program long before."""

OTHERS = 5
"""Bounds how often hosts of other tests may have been first."""


LEFT_BY_ITS_LEADER = """
import os, subprocess, sys
os.setsid()
if os.fork():
    os._exit(0)
started = subprocess.Popen(sys.argv[1:], stdout=subprocess.DEVNULL)
print(started.pid, flush=True)
started.wait()
"""
"""Starts a program, and waits for it, in a session whose leader has ended."""


@pytest.fixture
def argv() -> list[str]:
    found = bubblewrap.try_out(confinement.deno_binary(), str(confinement.BUNDLE_DIR))
    if found.prefix is None:
        pytest.skip(found.reason)
    inside = confinement.plain_argv(64, confinement.BOOT_SCRIPT)[1:]
    return [
        *found.prefix,
        bubblewrap.DENO_INSIDE,
        *(part.replace(str(confinement.BUNDLE_DIR), bubblewrap.BUNDLE_INSIDE) for part in inside),
    ]


def start(argv: list[str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen(
        argv,
        env=confinement.WORKER_ENVIRONMENT,
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )


def first_child(outer: subprocess.Popen[bytes]) -> psutil.Process:
    deadline = time.monotonic() + BOUND_SECONDS
    while (child := bubblewrap.inner_pid(outer.pid)) is None:
        assert outer.poll() is None, "bubblewrap has ended"
        assert time.monotonic() < deadline
    return psutil.Process(child)


def is_bubblewrap(process: psutil.Process) -> bool:
    return alive(process) and name_of(process) == "bwrap"


@contextlib.contextmanager
def orphan(argv: list[str]) -> Generator[psutil.Process]:
    """A child of bubblewrap whose parent was killed the moment that it had a child."""
    deadline = time.monotonic() + BOUND_SECONDS
    while time.monotonic() < deadline:
        with start(argv) as outer:
            child = first_child(outer)
            outer.kill()
        # A child that was let go in time makes its session, becomes Deno and ends with its stdin.
        until = time.monotonic() + SETTLED_SECONDS
        while is_bubblewrap(child) and time.monotonic() < until:
            time.sleep(0.01)
        if is_bubblewrap(child):
            yield child
            signal_all([child], signal.SIGKILL)
            return
    pytest.fail("bubblewrap never left a child behind: perhaps it no longer can, and bubblewrap.py may go")


def test_what_a_killed_parent_left_is_ended(argv: list[str]) -> None:
    # A host of another test that starts in this moment looks for them, too.
    for _ in range(OTHERS):
        with orphan(argv) as left:
            was_ended = left.pid in bubblewrap.end_orphans()
            assert left_after([left], BOUND_SECONDS) == []
        if was_ended:
            return
    pytest.fail("none of them was ended here")


def test_a_living_worker_is_no_orphan_at_any_moment_of_its_start(argv: list[str]) -> None:
    with start(argv) as outer:
        deadline = time.monotonic() + BOUND_SECONDS
        looks = 0
        while looks < 3 or name_of(first_child(outer)) != "deno":
            assert not {outer.pid, bubblewrap.inner_pid(outer.pid)} & set(bubblewrap.end_orphans())
            assert outer.poll() is None
            assert time.monotonic() < deadline
            looks += 1
        os.killpg(outer.pid, signal.SIGKILL)


def test_a_living_one_whose_session_has_lost_its_leader_is_no_orphan(argv: list[str]) -> None:
    """As under a shell that has gone, or where the leader is outside of this process's pid namespace."""
    with subprocess.Popen(
        [sys.executable, "-c", LEFT_BY_ITS_LEADER, *argv],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as started:
        started.wait(BOUND_SECONDS)
        outer = psutil.Process(int(started.stdout.readline()))
        deadline = time.monotonic() + BOUND_SECONDS
        while not (children := outer.children()):
            assert time.monotonic() < deadline
        assert not Path(f"/proc/{os.getsid(outer.pid)}").exists()
        assert not {outer.pid, children[0].pid} & set(bubblewrap.end_orphans())
        assert outer.is_running()
        started.stdin.close()
        assert left_after([outer, *children], BOUND_SECONDS) == []


def test_a_bubblewrap_of_someone_else_is_left_alone(argv: list[str]) -> None:
    """The same program with other arguments and another root, in someone's session, is not ours to end."""
    # What is there are paths of this machine, which may have that name in them.
    inside = bubblewrap.BUNDLE_INSIDE
    moved = [part if Path(part).exists() else part.replace(inside, "/other") for part in argv]
    with start([part for part in moved if part != "--new-session"]) as outer:
        child = first_child(outer)
        outer.kill()
        outer.wait()
        assert child.pid not in bubblewrap.end_orphans()
        signal_all([child], signal.SIGKILL)
