"""Groups for workers in the real kernel's hierarchies; skipped where this user can make none."""

import asyncio
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from cellblock_worker.base import lifetime
from cellblock_worker.base.lifetime import kill_if
from cellblock_worker.confinement import cgroup_files, cgroup_workers
from cellblock_worker.confinement.cgroup_files import find_homes, read_memberships, read_mounts
from cellblock_worker.confinement.cgroup_workers import BOOT_BYTES, MIB, RUN_ROOM_BYTES, WorkerGroups
from cellblock_worker.launch.launching import Launcher, SpawnRequest, Started
from support.waits import until, within

pytestmark = pytest.mark.skipif(not lifetime.LINUX or not lifetime.HAS_PIDFD, reason="Linux and pidfd")

TAKE_64_MIB = "import mmap, sys; m = mmap.mmap(-1, 1 << 26); m.write(b'x' * (1 << 26)); sys.stdin.read()"
TAKE = [sys.executable, "-I", "-S", "-c", TAKE_64_MIB]
SLEEP = [str(shutil.which("sleep")), "600"]


@contextmanager
def a_group_in(parent: Path, controllers: str = "") -> Iterator[Path]:
    """A new one, with these controllers for groups in it; gone at the end."""
    folder = parent / f"test-{secrets.token_hex(4)}"
    try:
        folder.mkdir()
        if controllers:
            cgroup_files.write(folder / "cgroup.subtree_control", controllers)
    except OSError as error:
        pytest.skip(f"no group can be made: {error}")
    yield folder
    assert cgroup_files.end(folder)


@pytest.fixture
def memory() -> Iterator[tuple[int, Path, tuple[str, ...]]]:
    """Version, folder and controllers of a group of our own that can have groups with a memory controller in it."""
    homes = find_homes(Path("/proc/self/cgroup").read_text(), Path("/proc/self/mountinfo").read_text())
    home = next((home for home in homes if "memory" in home.controllers), None)
    if home is None:
        pytest.skip("there is no memory controller")
    with a_group_in(home.path, "+memory" if home.version == 2 else "") as folder:
        yield home.version, folder, ("memory",)


@pytest.fixture
def unified() -> Iterator[Path]:
    """A group in the v2 hierarchy, with whatever controllers or none."""
    mounts = read_mounts(Path("/proc/self/mountinfo").read_text())
    point = next((mount.point for mount in mounts if mount.version == 2), None)
    if point is None:
        pytest.skip("there is no cgroup v2 hierarchy")
    own = point / read_memberships(Path("/proc/self/cgroup").read_text())[""].lstrip("/")
    with a_group_in(own) as folder:
        yield folder


@contextmanager
def working(home: tuple[int, Path, tuple[str, ...]]) -> Iterator[tuple[Launcher, WorkerGroups]]:
    launcher, groups = Launcher(), WorkerGroups([home])
    try:
        yield launcher, groups
    finally:
        groups.close()
        launcher.close()


async def started(command: list[str], group: cgroup_workers.WorkerGroup, launcher: Launcher) -> Started:
    answered: asyncio.Future[Started | OSError] = asyncio.get_running_loop().create_future()
    nothing = os.open(os.devnull, os.O_RDWR)
    order = SpawnRequest(command, {}, entries=group.entries, group=group.born_in)
    launcher.start(order, (nothing,) * 3, answered.set_result)
    os.close(nothing)
    child = await within(answered)
    assert isinstance(child, Started), child
    return child


def ended(child: Started) -> int:
    _, status = os.waitpid(child.pid, 0)
    os.close(child.pidfd)
    return os.waitstatus_to_exitcode(status)


async def test_a_run_past_its_memory_is_killed_for_its_own_and_a_group_forgets(
    memory: tuple[int, Path, tuple[str, ...]],
) -> None:
    with working(memory) as (launcher, groups):
        group = groups.take()
        limit = memory[1] / "worker-1" / ("memory.max" if memory[0] == 2 else "memory.limit_in_bytes")
        assert BOOT_BYTES <= int(limit.read_text()) <= BOOT_BYTES + 16 * MIB
        group.limit_run(8 * MIB)
        assert 8 * MIB + RUN_ROOM_BYTES <= int(limit.read_text()) <= 24 * MIB + RUN_ROOM_BYTES
        assert ended(await started(TAKE, group, launcher)) == -signal.SIGKILL
        assert group.killed_for() == "own" and group.is_empty()
        assert group.peak_bytes() == 0 or 8 * MIB < group.peak_bytes() <= int(limit.read_text())
        groups.give_back(group)
        following = groups.take()
        assert (following is group) == group.lasts
        assert following.killed_for() is None and following.peak_bytes() < 8 * MIB
        if group.lasts:
            assert int(limit.read_text()) >= BOOT_BYTES
        groups.give_back(following)


async def test_the_memory_of_all_is_not_a_runs_own(memory: tuple[int, Path, tuple[str, ...]]) -> None:
    version, folder, _ = memory
    cgroup_files.write(folder / ("memory.max" if version == 2 else "memory.limit_in_bytes"), str(24 * MIB))
    with working(memory) as (launcher, groups):
        group = groups.take()
        group.limit_run(256 * MIB)
        assert ended(await started(TAKE, group, launcher)) == -signal.SIGKILL
        assert group.killed_for() == "shared"
        groups.give_back(group)


async def test_a_group_is_not_used_again_while_anything_is_left_in_it(
    memory: tuple[int, Path, tuple[str, ...]],
) -> None:
    with working(memory) as (launcher, groups):
        group = groups.take()
        child = await started(SLEEP, group, launcher)
        # Under v1 it enters after the answer.
        await until(
            lambda: child.pid in cgroup_files.members(memory[1] / "worker-1"), "the child in its group"
        )
        groups.give_back(group)
        assert groups.take() is not group
        # What is left in it has been ended.
        assert ended(child) == -signal.SIGKILL
        assert group.is_empty()


async def test_under_v2_a_child_is_born_in_its_group_and_ended_through_it(unified: Path) -> None:
    """Without controllers: what the kernel does for memory under v2 is another test's, where it has some."""
    with working((2, unified, ())) as (launcher, groups):
        group = groups.take()
        assert group.born_in and not group.entries
        child = await started(SLEEP, group, launcher)
        memberships = read_memberships(Path(f"/proc/{child.pid}/cgroup").read_text())  # noqa: ASYNC240
        assert memberships[""].endswith(f"{unified.name}/worker-1")
        assert not group.is_empty()
        assert ended(child) == -signal.SIGKILL
        groups.give_back(group)
        assert groups.take() is group
        groups.give_back(group)
    assert not (unified / "worker-1").exists()


def test_a_group_that_somebody_holds_is_locked_for_others(unified: Path) -> None:
    held = cgroup_files.lock(unified)
    assert cgroup_files.lock(unified) is None
    os.close(held)
    os.close(cgroup_files.lock(unified))
    with pytest.raises(OSError):
        cgroup_files.lock(unified / "nowhere")


def test_only_a_member_is_killed(unified: Path) -> None:
    """A pid that is not in the group by then is another's."""
    with subprocess.Popen(SLEEP) as foreign:
        assert not kill_if(foreign.pid, lambda: foreign.pid in cgroup_files.members(unified))
        assert foreign.poll() is None
        foreign.kill()
