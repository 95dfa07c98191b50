"""The host's control group, found, made, limited and removed; and its workers' groups in the real kernel's hierarchies,
where this user can make some."""

import asyncio
import fcntl
import json
import os
import secrets
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest

from cellblock_worker.base.lifetime import HAS_PIDFD, LINUX, kill_if
from cellblock_worker.confinement import cgroup, cgroup_files, cgroup_workers
from cellblock_worker.confinement.cgroup import Caps, caps_for
from cellblock_worker.confinement.cgroup_files import Home, find_homes, read_memberships, read_mounts
from cellblock_worker.confinement.cgroup_workers import BOOT_BYTES, MIB, RUN_ROOM_BYTES, WorkerGroups
from cellblock_worker.launch.launching import Launcher, SpawnRequest, Started
from support.waits import until, within

CAPS = Caps(memory_bytes=300 * MIB, tasks=77)

HOST = """
import json, sys
from pathlib import Path
from cellblock_worker.confinement import cgroup
membership = cgroup.enter(cgroup.Caps(300 * cgroup.MIB, 77))
print(json.dumps({
    "paths": [str(group.path) for group in membership._groups],
    "in_force": membership.in_force,
    "missing": membership.missing,
    "inside": Path("/proc/self/cgroup").read_text(),
}), flush=True)
sys.stdin.read()
membership.leave()
print(Path("/proc/self/cgroup").read_text(), flush=True)
"""


@contextmanager
def host_in_a_group() -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    """A process that has entered its groups, and what it said of them; it leaves at the end of its stdin."""
    command = [sys.executable, "-c", HOST]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        try:
            yield process, json.loads(process.stdout.readline())
            if process.returncode is None:
                process.communicate("", timeout=60)
        finally:
            process.kill()


@pytest.fixture
def entered() -> Iterator[tuple[subprocess.Popen[str], dict[str, Any]]]:
    with host_in_a_group() as (process, said):
        if not said["paths"]:
            pytest.skip(f"no cgroup can be made here: {said['missing']}")
        yield process, said


def test_the_caps_are_on_the_group_the_process_is_in_it_and_leaving_removes_it(
    entered: tuple[subprocess.Popen[str], dict[str, Any]],
) -> None:
    process, said = entered
    for path in said["paths"]:
        assert (Path(path) / "cgroup.procs").read_text().split() == [str(process.pid)]
        assert f"/{Path(path).name}\n" in said["inside"]
    for names, cap, told in (
        (("memory.max", "memory.limit_in_bytes"), CAPS.memory_bytes, "300 MiB of memory"),
        (("pids.max",), CAPS.tasks, "77 tasks"),
    ):
        files = [Path(path) / name for name in names for path in said["paths"]]
        caps = [file.read_text().strip() for file in files if file.exists()]
        assert caps == [str(cap)] * sum(told in text for text in said["in_force"])
    output, _ = process.communicate("", timeout=30)
    assert process.returncode == 0
    assert [path for path in said["paths"] if Path(path).exists() or Path(path).name in output] == []


def test_the_group_of_a_host_that_was_killed_is_removed_by_the_next_and_one_in_use_is_not(
    entered: tuple[subprocess.Popen[str], dict[str, Any]],
) -> None:
    _, living = entered
    with host_in_a_group() as (killed, dead):
        killed.kill()
        killed.wait()
        assert all(Path(path).exists() for path in dead["paths"])
    with host_in_a_group():
        assert not any(Path(path).exists() for path in dead["paths"])
        assert all(Path(path).exists() for path in living["paths"])


def test_what_a_killed_host_left_running_is_ended_by_the_next(
    entered: tuple[subprocess.Popen[str], dict[str, Any]],
) -> None:
    with host_in_a_group() as (killed, dead), subprocess.Popen(["sleep", "600"]) as left:
        for path in dead["paths"]:
            own = Path(path) / "worker-1"
            own.mkdir()
            (own / "cgroup.procs").write_text(str(left.pid))
        killed.kill()
        killed.wait()
        assert left.poll() is None
        with host_in_a_group():
            assert left.wait(timeout=60) == -signal.SIGKILL
        # What takes its time to die leaves its group to the one after.
        with host_in_a_group():
            assert not any(Path(path).exists() for path in dead["paths"])


def test_a_machine_without_cgroups_says_so_and_how_to_get_them(tmp_path: Path) -> None:
    (tmp_path / "cgroup").write_text("0::/\n")
    (tmp_path / "mountinfo").write_text("22 1 0:20 / /proc rw - proc proc rw\n")
    for proc in (tmp_path, tmp_path / "nowhere"):
        membership = cgroup.enter(CAPS, proc=proc)
        [missing] = membership.missing
        assert membership.in_force == [] and membership.workers is None
        assert missing.startswith("cgroup (memory, pids): ") and "Delegate=yes" in missing
        membership.leave()


def test_a_group_that_cannot_be_written_is_missing_with_its_reason(tmp_path: Path) -> None:
    """As in a container: the hierarchy is there, but is not for this process. Plain files take no process."""
    tree = group_below(tmp_path, "tree", "memory pids")
    (tmp_path / "cgroup").write_text("0::/\n")
    (tmp_path / "mountinfo").write_text(f"30 22 0:20 / {tree} rw - cgroup2 cgroup2 rw\n")
    membership = cgroup.enter(CAPS, proc=tmp_path)
    assert membership.in_force == [] and str(tree) in membership.missing[0]
    assert [path.name for path in tree.iterdir()] == ["cgroup.controllers"]


def test_the_caps_leave_room_for_every_process() -> None:
    caps = caps_for(capacity=3, warm=2, boot_parallel=1, memory_bytes=100 * MIB, total_bytes=None)
    assert caps == Caps(
        300 * MIB + 6 * cgroup.WORKER_ROOM_BYTES + cgroup.HOST_ROOM_BYTES,
        6 * cgroup.TASKS_PER_WORKER + cgroup.HOST_TASKS,
    )
    set_by_hand = caps_for(capacity=3, warm=2, boot_parallel=1, memory_bytes=1, total_bytes=12345)
    assert set_by_hand == (12345, caps.tasks)


# ---- v2, with whatever controller is bound to it ---------------------------------------------------------

V2_HOST = """
import sys
from pathlib import Path
from cellblock_worker.confinement import cgroup
from cellblock_worker.confinement.cgroup_files import Home, read_memberships
own = Path(sys.argv[1]) / read_memberships(Path("/proc/self/cgroup").read_text())[""].lstrip("/")
group = cgroup._Group(Home(2, own, ("hugetlb",)))
try:
    group.enter(cgroup.Caps(1 << 30, 10))
except cgroup.Unusable as error:
    print("unusable:", error)
else:
    print(group.path, (group.path / "cgroup.controllers").read_text().strip(), flush=True)
    group.leave()
    print(group.path.exists(), Path("/proc/self/cgroup").read_text().splitlines()[-1])
"""

V2_BROKER = """
import subprocess, sys
from pathlib import Path
point, group, host = sys.argv[1:]
(Path(group) / "cgroup.procs").write_text("0")
upstream = subprocess.Popen(["sleep", "60"])
try:
    for _ in range(2):
        subprocess.run([sys.executable, "-c", host, point], check=True)
finally:
    upstream.kill()
    upstream.wait()
"""


@pytest.fixture
def v2_group() -> Iterator[tuple[Path, Path]]:
    """The mount point of the real v2 hierarchy, and a group of our own in it with a controller to give on."""
    mounts = read_mounts(Path("/proc/self/mountinfo").read_text()) if LINUX else []
    point = next((mount.point for mount in mounts if mount.version == 2), None)
    if point is None or "hugetlb" not in (point / "cgroup.controllers").read_text().split():
        pytest.skip("there is no cgroup v2 hierarchy with a controller to spare")
    lock = os.open(point, os.O_RDONLY | os.O_DIRECTORY)
    fcntl.flock(lock, fcntl.LOCK_EX)  # other runs of this test change the same root
    given = "hugetlb" in (point / "cgroup.subtree_control").read_text().split()
    group = point / f"test-{os.getpid()}"
    try:
        try:
            if not given:
                (point / "cgroup.subtree_control").write_text("+hugetlb")
            group.mkdir()
        except OSError as error:
            pytest.skip(f"the cgroup v2 hierarchy cannot be changed: {error}")
        yield point, group
    finally:
        for path in [*group.glob("*/"), group]:
            with suppress(OSError):
                path.rmdir()
        if not given:
            with suppress(OSError):
                (point / "cgroup.subtree_control").write_text("-hugetlb")
        os.close(lock)


def run_v2(point: Path, group: Path) -> list[str]:
    command = [sys.executable, "-c", V2_BROKER, str(point), str(group), V2_HOST]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_under_v2_the_broker_is_moved_aside_once_and_a_later_host_finds_its_way(
    v2_group: tuple[Path, Path],
) -> None:
    """The kernel's rule: a group that gives controllers to its children may hold no process."""
    point, group = v2_group
    first, left_first, second, left_second = run_v2(point, group)
    for line in (first, second):
        path, controllers = line.split(" ", 1)
        assert Path(path).parent == group and controllers == "hugetlb"
    assert first != second
    assert left_first == left_second
    assert left_first.startswith(f"False 0::/{group.name}/{cgroup.BROKER_PREFIX}")
    cgroup.remove_stale(group)
    assert [path for path in group.iterdir() if path.is_dir()] == []


def test_under_v2_a_group_with_other_processes_is_left_alone(v2_group: tuple[Path, Path]) -> None:
    point, group = v2_group
    with subprocess.Popen(["sleep", "60"]) as foreign:
        try:
            (group / "cgroup.procs").write_text(str(foreign.pid))
            said = run_v2(point, group)
            inside = (group / "cgroup.procs").read_text().split()
        finally:
            foreign.kill()
    told = [line.startswith("unusable:") and "shared with processes" in line for line in said]
    assert (told, inside) == ([True, True], [str(foreign.pid)])
    assert [path for path in group.iterdir() if path.is_dir()] == []


def mountinfo(tree: Path, *mounts: tuple[str, str, str]) -> str:
    """Lines of mountinfo for (root, mount point below the tree, type and options)."""
    lines = ["22 1 0:20 / /proc rw,nosuid - proc proc rw"]
    for number, (root, point, kind) in enumerate(mounts, start=30):
        shown = str(tree / point).replace(" ", "\\040")
        lines.append(f"{number} 22 0:{number} {root} {shown} rw,relatime shared:9 - {kind}")
    return "\n".join(lines) + "\n"


EVERY = "cpuset cpu io memory pids"


def group_below(tree: Path, path: str, controllers: str) -> Path:
    group = tree / path
    group.mkdir(parents=True, exist_ok=True)
    (group / "cgroup.controllers").write_text(controllers + "\n")
    return group


OWN = ("/", "cg", "cgroup2 cgroup2 rw,nsdelegate")
DOCKERS = ("/docker/12ab", "cg", "cgroup2 cgroup rw")
SPACED = ("/", "c g", "cgroup2 cgroup2 rw")
V1 = [
    ("/", "cg/cpu,cpuacct", "cgroup cgroup rw,cpu,cpuacct"),
    ("/", "cg/memory", "cgroup cgroup rw,memory"),
    ("/", "cg/pids", "cgroup cgroup rw,pids"),
    ("/", "cg/unified", "cgroup2 cgroup2 rw"),
]
BOTH = [("/", "cg/memory", "cgroup none rw,memory"), ("/", "cg/unified", "cgroup2 none rw")]


def in_v2(folder: str) -> list[tuple[int, str, tuple[str, ...]]]:
    return [(2, folder, ("memory", "pids"))]


@pytest.mark.parametrize(
    ("memberships", "mounts", "controllers", "homes"),
    [
        pytest.param("0::/user.slice/1.scope\n", [OWN], EVERY, in_v2("cg/user.slice/1.scope"), id="v2 alone"),
        pytest.param(
            "0::/docker/12ab/inner\n",
            [DOCKERS],
            EVERY,
            in_v2("cg/inner"),
            id="a container without its own namespace",
        ),
        pytest.param("0::/docker/12abc\n", [DOCKERS], EVERY, [], id="another container"),
        pytest.param("0::/elsewhere\n", [DOCKERS], EVERY, [], id="elsewhere"),
        pytest.param("0::/../other\n", [OWN], EVERY, [], id="outside of the namespace"),
        pytest.param("0::/\n", [SPACED], EVERY, in_v2("c g"), id="a mount point with a space"),
        pytest.param(
            "9:name=systemd:/\n8:pids:/\n4:memory:/jobs/7\n1:cpu,cpuacct:/x\n0::/\n",
            V1,
            "hugetlb",
            [(1, "cg/memory/jobs/7", ("memory",)), (1, "cg/pids", ("pids",))],
            id="v1 with an empty v2 beside it",
        ),
        pytest.param(
            "4:memory:/\n0::/mine\n",
            BOTH,
            "pids",
            [(2, "cg/unified/mine", ("pids",)), (1, "cg/memory", ("memory",))],
            id="half way to v2",
        ),
        *(
            pytest.param(memberships, [], EVERY, [], id=f"none is mounted: {name}")
            for name, memberships in (
                *(("empty", ""), ("v2", "0::/\n")),
                *(("odd", "nonsense\n"), ("v1", "3:memory:/a\n")),
            )
        ),
    ],
)
def test_each_controller_is_found_where_it_is(
    memberships: str,
    mounts: list[tuple[str, str, str]],
    controllers: str,
    homes: list[tuple[int, str, tuple[str, ...]]],
    tmp_path: Path,
) -> None:
    for folder in {"cg/inner", "cg/unified", *(folder for _, folder, _ in homes)}:
        group_below(tmp_path, folder, controllers)
    found = find_homes(memberships, mountinfo(tmp_path, *mounts))
    assert found == [Home(version, tmp_path / folder, of) for version, folder, of in homes]


def test_what_cannot_be_read_is_left_out() -> None:
    assert read_mounts("\n30 22\n31 22 0:1 / /x rw - cgroup\n") == []
    assert read_memberships("a:b\n2:x:/with:colon\n") == {"x": "/with:colon"}


with_pidfd = pytest.mark.skipif(not LINUX or not HAS_PIDFD, reason="Linux and pidfd")

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


@with_pidfd
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


@with_pidfd
async def test_the_memory_of_all_is_not_a_runs_own(memory: tuple[int, Path, tuple[str, ...]]) -> None:
    version, folder, _ = memory
    cgroup_files.write(folder / ("memory.max" if version == 2 else "memory.limit_in_bytes"), str(24 * MIB))
    with working(memory) as (launcher, groups):
        group = groups.take()
        group.limit_run(256 * MIB)
        assert ended(await started(TAKE, group, launcher)) == -signal.SIGKILL
        assert group.killed_for() == "shared"
        groups.give_back(group)


@with_pidfd
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


@with_pidfd
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


@with_pidfd
def test_a_group_that_somebody_holds_is_locked_for_others(unified: Path) -> None:
    held = cgroup_files.lock(unified)
    assert cgroup_files.lock(unified) is None
    os.close(held)
    os.close(cgroup_files.lock(unified))
    with pytest.raises(OSError):
        cgroup_files.lock(unified / "nowhere")


@with_pidfd
def test_only_a_member_is_killed(unified: Path) -> None:
    """A pid that is not in the group by then is another's."""
    with subprocess.Popen(SLEEP) as foreign:
        assert not kill_if(foreign.pid, lambda: foreign.pid in cgroup_files.members(unified))
        assert foreign.poll() is None
        foreign.kill()
