"""What the lists decide, on both architectures, as the kernel would read their programs."""

from __future__ import annotations

import errno
import importlib.metadata
import re
import sys
from pathlib import Path
from typing import Any

import pytest

from cellblock_worker.confinement import confinement, seccomp, syscall_lists
from cellblock_worker.confinement.confinement import IsolationUnavailable
from cellblock_worker.confinement.seccomp import ALLOW, LOG, refuse
from cellblock_worker.confinement.syscalls import NEWEST, NUMBERS
from support.bpf import decide

MACHINES = list(seccomp.ARCHITECTURES)
PINNED = "2.9.8"
NO, NONE = refuse(errno.EPERM), refuse(errno.ENOSYS)
THREAD = 0x3D0F00
NEW_USER = 0x10000000


class Filter:
    """One program, asked by names."""

    def __init__(self, machine: str, version: str | None = PINNED, **options: Any) -> None:
        program = syscall_lists.filter_program(
            options.pop("program", "deno"), version, options.pop("mode", "enforce"), machine
        )
        assert program is not None and not options
        self.program, self.machine = program, machine

    def __call__(self, name: str | int, *arguments: int) -> int:
        number = NUMBERS[name][MACHINES.index(self.machine)] if isinstance(name, str) else name
        return decide(self.program, seccomp.ARCHITECTURES[self.machine], number, arguments)

    def has(self, name: str) -> bool:
        return NUMBERS[name][MACHINES.index(self.machine)] >= 0


@pytest.mark.parametrize("machine", MACHINES)
def test_the_list_has_what_is_used_and_decides_by_argument(machine: str) -> None:
    asked = Filter(machine)
    for name in (
        "read",
        "write",
        "futex",
        "mprotect",
        "exit_group",
        "execve",
        "rt_sigreturn",
        "clock_gettime",
    ):
        assert asked(name) == ALLOW, name
    assert asked("clone", THREAD) == ALLOW
    for flags in (0, 17, NEW_USER, THREAD | NEW_USER, THREAD & ~0x10000, 0x50F00):
        assert asked("clone", flags) == NO, hex(flags)
    assert asked("clone3") == NONE
    assert asked("mmap", 0, 4096, 3, 0x22) == ALLOW and asked("mmap", 0, 4096, 3, 0x20022) == ALLOW
    for flags in (0x21, 0x23, 0x03, 0x40022, 0x2022, 0x28):
        assert asked("mmap", 0, 4096, 3, flags) == NO, hex(flags)
    assert asked("fcntl", 3, 1030) == ALLOW
    for command in (8, 10, 1024, 1026, 1031, 1033):
        assert asked("fcntl", 3, command) == NO, command
    assert asked("prctl", 15) == ALLOW and asked("prctl", 1) == NO and asked("prctl", 22) == NO
    assert asked("prlimit64", 0, 7, 0) == ALLOW
    assert asked("prlimit64", 0, 7, 1) == asked("prlimit64", 0, 7, 1 << 32) == NO
    assert asked("socketpair", 1, 0x80801) == ALLOW
    assert asked("socketpair", 1, 0x80802) == asked("socketpair", 2, 0x80801) == NO
    assert asked("ioctl", 0, 0x5401) == ALLOW and asked("ioctl", 0, 0x5412) == NO
    assert asked("mkdirat") == refuse(errno.EROFS)


@pytest.mark.parametrize("version", [PINNED, None])
@pytest.mark.parametrize("mode", ["enforce", "log"])
@pytest.mark.parametrize("machine", MACHINES)
def test_what_no_worker_needs_is_refused_in_every_mode_and_version(
    machine: str, mode: str, version: str | None
) -> None:
    asked = Filter(machine, version, mode=mode)
    for name in syscall_lists.REFUSED:
        # Deno reads its own scheduling policy; setting it is what is refused.
        assert not asked.has(name) or asked(name) == NO, name
    assert asked("clone", NEW_USER) == asked("clone", THREAD | NEW_USER) == asked("clone", 17) == NO
    assert asked("clone", THREAD) == ALLOW and asked("clone3") == NONE
    assert asked("prctl", 1) == asked("fcntl", 3, 1024) == asked("mmap", 0, 1, 3, 0x21) == NO
    assert asked(NEWEST + 1) == asked(0x40000000 + 41) == NONE


@pytest.mark.parametrize("machine", MACHINES)
def test_log_lets_the_rest_go_on(machine: str) -> None:
    asked = Filter(machine, mode="log")
    assert asked("read") == ALLOW and asked("prctl", 15) == ALLOW
    assert asked("prctl", 4) == LOG and asked("prlimit64", 0, 7, 1) == LOG
    assert asked(NUMBERS["kill"][MACHINES.index(machine)] if "kill" in NUMBERS else 129) == LOG


@pytest.mark.parametrize("machine", MACHINES)
def test_a_version_that_was_not_traced_may_call_what_is_not_known(machine: str) -> None:
    asked = Filter(machine, "2.9.99")
    assert asked("prctl", 4) == asked("mkdirat") == asked("fcntl", 3, 1033) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_the_compiler_has_a_list_of_its_own(machine: str) -> None:
    [version] = syscall_lists.TRACED["tsc"]
    asked = Filter(machine, version, program="tsc")
    assert asked("clone", 0x50F00) == ALLOW and asked("clone", THREAD) == NO
    assert asked("socketpair", 1, 0x80801) == NO


@pytest.mark.parametrize("machine", MACHINES)
def test_a_program_is_short_and_its_numbers_are_those_of_one_call_each(machine: str) -> None:
    column = MACHINES.index(machine)
    numbers = [row[column] for row in NUMBERS.values() if row[column] >= 0]
    assert len(set(numbers)) == len(numbers) and max(numbers) <= NEWEST
    assert len(Filter(machine).program) // 8 < 1000


def test_a_machine_whose_calls_are_not_known_has_no_filter() -> None:
    assert syscall_lists.filter_program("deno", PINNED, "enforce", "riscv64") is None


@pytest.mark.parametrize(
    ("column", "header"), [(0, "x86_64-linux-gnu/asm/unistd_64.h"), (1, "asm-generic/unistd.h")]
)
def test_the_numbers_are_those_of_the_kernels_headers(column: int, header: str) -> None:
    file = Path("/usr/include") / header
    if not file.exists():
        pytest.skip(f"there is no {file}")
    stated = re.findall(r"#define __NR(?:3264)?_(\w+) (\d+)\n", file.read_text(encoding="utf-8"))
    wrong = {
        name: (number, NUMBERS[name][column])
        for name, number in stated
        if name in NUMBERS and int(number) != NUMBERS[name][column]
    }
    assert wrong == {}


def test_the_version_of_deno_is_the_installed_packages(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    version = confinement.deno_version.__wrapped__
    assert version() == importlib.metadata.version("deno")
    (tmp_path / "deno-2.9.99.dist-info").mkdir()
    monkeypatch.setattr(sys, "path", [str(tmp_path / "absent"), str(tmp_path), *sys.path])
    assert version() == "2.9.99"
    # In an egg, as other installers leave it.
    (tmp_path / "deno-2.9.99.dist-info").rename(tmp_path / "other")
    (tmp_path / "deno.egg-info").write_text("Metadata-Version: 2.1\nName: deno\nVersion: 2.9.100\n")
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    assert version() == "2.9.100"
    monkeypatch.setattr(sys, "path", [])
    assert version() is None


@pytest.fixture
def another_deno(monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(confinement, "deno_version", lambda: "2.9.99")
    yield
    confinement.use_isolation("off")


@pytest.mark.usefixtures("another_deno")
def test_required_refuses_a_deno_that_was_not_traced_and_auto_says_so() -> None:
    with pytest.raises(IsolationUnavailable, match=r"deno 2\.9\.99 needs is not known"):
        confinement.use_isolation("required")
    confinement.use_isolation("auto")
    # On a busy machine another layer may be missing beside it.
    assert any("install deno 2.9.8" in missing for missing in confinement.layers_missing())
    assert any(layer.startswith("seccomp: no sockets") for layer in confinement.layers_in_force())
