"""The lists of system calls and the filter that is made of them."""

import errno
import importlib.metadata
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellblock_worker.confinement import confinement, seccomp, syscall_lists
from cellblock_worker.confinement.confinement import IsolationUnavailable
from cellblock_worker.confinement.seccomp import ALLOW, Branch, Check, refuse
from cellblock_worker.confinement.syscall_lists import NEWEST, NUMBERS
from support.bpf import decide

MACHINES = list(seccomp.ARCHITECTURES)
PINNED = "2.9.8"
NO, NONE = refuse(errno.EPERM), refuse(errno.ENOSYS)
THREAD = 0x3D0F00
NEW_USER = 0x10000000


class Filter:
    """One program, asked by names."""

    def __init__(self, machine: str, version: str | None = PINNED, **options: Any) -> None:
        program = syscall_lists.filter_program(options.pop("program", "deno"), version, machine)
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
@pytest.mark.parametrize("machine", MACHINES)
def test_what_no_worker_needs_is_refused_in_every_version(machine: str, version: str | None) -> None:
    asked = Filter(machine, version)
    for name in syscall_lists.REFUSED:
        # Deno reads its own scheduling policy; setting it is what is refused.
        assert not asked.has(name) or asked(name) == NO, name
    assert asked("clone", NEW_USER) == asked("clone", THREAD | NEW_USER) == asked("clone", 17) == NO
    assert asked("clone", THREAD) == ALLOW and asked("clone3") == NONE
    assert asked("prctl", 1) == asked("fcntl", 3, 1024) == asked("mmap", 0, 1, 3, 0x21) == NO
    assert asked(NEWEST + 1) == asked(0x40000000 + 41) == NONE


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
    assert syscall_lists.filter_program("deno", PINNED, "riscv64") is None


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


X86_64 = seccomp.ARCHITECTURES["x86_64"]
UNKNOWN, OTHERWISE = refuse(38), refuse(1)
WORD = 0xFFFFFFFF


def expected(calls: dict[int, list[Branch]], number: int, arguments: Sequence[int], above: int) -> int:
    """The same by the table."""
    if number > above:
        return UNKNOWN
    for checks, action in calls.get(number, ()):
        if all(_holds(check, arguments[check.argument]) for check in checks):
            return action
    return OTHERWISE


def _holds(check: Check, value: int) -> bool:
    return value in check.among if check.pointer else value & WORD & check.mask in check.among


small = st.integers(0, 3)
masks = st.sampled_from([WORD, 1, 6])
numbers = st.tuples(st.integers(0, 5), st.lists(small, min_size=1, max_size=3).map(tuple), masks)
pointers = st.integers(0, 5).map(lambda argument: Check(argument, (0,), pointer=True))
checks = numbers.map(lambda parts: Check(*parts)) | pointers
actions = st.sampled_from([ALLOW, refuse(13)])
branches = st.tuples(st.lists(checks, max_size=2).map(tuple), actions).map(lambda parts: Branch(*parts))
tables = st.dictionaries(st.integers(0, 99), st.lists(branches, min_size=1, max_size=2), max_size=16)


@settings(max_examples=50)
@given(tables, st.lists(st.tuples(st.integers(0, 110), st.tuples(*[small] * 6)), max_size=8))
def test_a_program_decides_as_its_table_says(
    calls: dict[int, list[Branch]], made: list[tuple[int, tuple[int, ...]]]
) -> None:
    ops = seccomp.assemble("x86_64", calls, otherwise=OTHERWISE, above=100, unknown=UNKNOWN)
    program = seccomp.packed(ops)
    for number, arguments in [*made, *((number, (0,) * 6) for number in calls)]:
        assert decide(program, X86_64, number, arguments) == expected(calls, number, arguments, 100)


def test_far_branches_are_reached() -> None:
    """More between a test and what is behind it than a conditional jump can pass."""
    many = Check(0, tuple(range(250)))
    calls = {number: [Branch((many,) * 4, ALLOW)] for number in range(2)} | {7: [Branch((), refuse(7))]}
    ops = seccomp.assemble("x86_64", calls, otherwise=OTHERWISE, above=400, unknown=UNKNOWN)
    program = seccomp.packed(ops)
    assert decide(program, X86_64, 1, [249]) == ALLOW
    assert decide(program, X86_64, 1, [250]) == OTHERWISE
    assert decide(program, X86_64, 7) == refuse(7)


def test_another_architecture_and_x32_are_unknown() -> None:
    ops = seccomp.assemble("x86_64", {1: [Branch((), ALLOW)]}, otherwise=ALLOW, above=469, unknown=UNKNOWN)
    program = seccomp.packed(ops)
    assert decide(program, X86_64, 1) == ALLOW
    assert decide(program, 0x40000003, 1) == UNKNOWN  # i386, by int 0x80
    assert decide(program, X86_64, 0x40000001) == UNKNOWN
    assert decide(program, X86_64, WORD) == UNKNOWN


def test_both_words_of_a_pointer_count_and_only_the_low_one_of_a_number() -> None:
    calls = {1: [Branch((Check(0, (0,), pointer=True),), ALLOW)], 2: [Branch((Check(0, (0,)),), ALLOW)]}
    ops = seccomp.assemble("x86_64", calls, otherwise=OTHERWISE, above=469, unknown=UNKNOWN)
    program = seccomp.packed(ops)
    assert [decide(program, X86_64, 1, [value]) for value in (0, 1 << 32, 1)] == [ALLOW, OTHERWISE, OTHERWISE]
    assert [decide(program, X86_64, 2, [value]) for value in (0, 1 << 32, 1)] == [ALLOW, ALLOW, OTHERWISE]


def test_a_program_that_the_kernel_would_not_take_is_not_made() -> None:
    calls = {number: [Branch((Check(0, tuple(range(100))),), ALLOW)] for number in range(50)}
    with pytest.raises(ValueError, match="instructions"):
        seccomp.assemble("x86_64", calls, otherwise=OTHERWISE, above=469, unknown=UNKNOWN)
