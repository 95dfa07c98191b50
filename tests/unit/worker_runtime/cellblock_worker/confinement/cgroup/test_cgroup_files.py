"""Where the groups of a process are, read from texts as kernels write them, against a tree of plain files."""

from __future__ import annotations

from pathlib import Path

import pytest

from cellblock_worker.confinement.cgroup.cgroup_files import Home, find_homes, read_memberships, read_mounts


def mountinfo(tree: Path, *mounts: tuple[str, str, str]) -> str:
    """Lines of mountinfo for (root, mount point below the tree, type and options)."""
    lines = ["22 1 0:20 / /proc rw,nosuid - proc proc rw"]
    for number, (root, point, kind) in enumerate(mounts, start=30):
        shown = str(tree / point).replace(" ", "\\040")
        lines.append(f"{number} 22 0:{number} {root} {shown} rw,relatime shared:9 - {kind}")
    return "\n".join(lines) + "\n"


def unified(tree: Path, path: str, controllers: str = "cpuset cpu io memory pids") -> Path:
    group = tree / path
    group.mkdir(parents=True)
    (group / "cgroup.controllers").write_text(controllers + "\n")
    return group


def test_v2_alone(tmp_path: Path) -> None:
    group = unified(tmp_path, "cg/user.slice/run-1.scope")
    mounts = mountinfo(tmp_path, ("/", "cg", "cgroup2 cgroup2 rw,nsdelegate"))
    assert find_homes("0::/user.slice/run-1.scope\n", mounts) == [Home(2, group, ("memory", "pids"))]


def test_v2_below_a_container_without_its_own_namespace(tmp_path: Path) -> None:
    group = unified(tmp_path, "cg/inner")
    mounts = mountinfo(tmp_path, ("/docker/12ab", "cg", "cgroup2 cgroup rw"))
    assert find_homes("0::/docker/12ab/inner\n", mounts) == [Home(2, group, ("memory", "pids"))]
    assert find_homes("0::/docker/12abc\n", mounts) == []
    assert find_homes("0::/elsewhere\n", mounts) == []


def test_a_group_outside_of_the_namespace_is_out_of_reach(tmp_path: Path) -> None:
    unified(tmp_path, "cg")
    assert find_homes("0::/../other\n", mountinfo(tmp_path, ("/", "cg", "cgroup2 cgroup2 rw"))) == []


def test_v1_with_an_empty_v2_beside_it(tmp_path: Path) -> None:
    unified(tmp_path, "cg/unified", "hugetlb")
    for folder in ("memory/jobs/7", "pids"):
        (tmp_path / "cg" / folder).mkdir(parents=True)
    memberships = "9:name=systemd:/\n8:pids:/\n4:memory:/jobs/7\n1:cpu,cpuacct:/x\n0::/\n"
    mounts = mountinfo(
        tmp_path,
        ("/", "cg/cpu,cpuacct", "cgroup cgroup rw,cpu,cpuacct"),
        ("/", "cg/memory", "cgroup cgroup rw,memory"),
        ("/", "cg/pids", "cgroup cgroup rw,pids"),
        ("/", "cg/unified", "cgroup2 cgroup2 rw"),
    )
    assert find_homes(memberships, mounts) == [
        Home(1, tmp_path / "cg/memory/jobs/7", ("memory",)),
        Home(1, tmp_path / "cg/pids", ("pids",)),
    ]


def test_each_controller_where_it_is(tmp_path: Path) -> None:
    """A machine that is half way to v2."""
    group = unified(tmp_path, "cg/unified/mine", "pids")
    (tmp_path / "cg" / "memory").mkdir()
    mounts = mountinfo(
        tmp_path, ("/", "cg/memory", "cgroup none rw,memory"), ("/", "cg/unified", "cgroup2 none rw")
    )
    assert find_homes("4:memory:/\n0::/mine\n", mounts) == [
        Home(2, group, ("pids",)),
        Home(1, tmp_path / "cg/memory", ("memory",)),
    ]


def test_a_mount_point_with_a_space(tmp_path: Path) -> None:
    group = unified(tmp_path, "c g")
    mounts = mountinfo(tmp_path, ("/", "c g", "cgroup2 cgroup2 rw"))
    assert find_homes("0::/\n", mounts) == [Home(2, group, ("memory", "pids"))]


@pytest.mark.parametrize(
    "memberships", ["", "0::/\n", "nonsense\n", "3:memory:/a\n"], ids=["empty", "v2", "odd", "v1"]
)
def test_no_cgroup_mounted(memberships: str, tmp_path: Path) -> None:
    assert find_homes(memberships, mountinfo(tmp_path)) == []


def test_what_cannot_be_read_is_left_out() -> None:
    assert read_mounts("\n30 22\n31 22 0:1 / /x rw - cgroup\n") == []
    assert read_memberships("a:b\n2:x:/with:colon\n") == {"x": "/with:colon"}
