"""The lists of system calls and the filter that is made of them."""

import errno
import importlib.metadata
import re
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings, strategies as st

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

    def decides(self, calls: Iterable[tuple[Any, ...]]) -> dict[tuple[Any, ...], int]:
        return {call: self(*call) for call in calls}


USED = ("read", "write", "futex", "mprotect", "exit_group", "execve", "rt_sigreturn", "clock_gettime")
DECIDED = {
    **{(name,): ALLOW for name in USED},
    ("clone", THREAD): ALLOW,
    **{("clone", flags): NO for flags in (0, 17, NEW_USER, THREAD | NEW_USER, THREAD & ~0x10000, 0x50F00)},
    ("clone3",): NONE,
    **{("mmap", 0, 4096, 3, flags): ALLOW for flags in (0x22, 0x20022)},
    **{("mmap", 0, 4096, 3, flags): NO for flags in (0x21, 0x23, 0x03, 0x40022, 0x2022, 0x28)},
    ("fcntl", 3, 1030): ALLOW,
    **{("fcntl", 3, command): NO for command in (8, 10, 1024, 1026, 1031, 1033)},
    ("prctl", 15): ALLOW,
    ("prctl", 1): NO,
    ("prctl", 22): NO,
    ("prlimit64", 0, 7, 0): ALLOW,
    ("prlimit64", 0, 7, 1): NO,
    ("prlimit64", 0, 7, 1 << 32): NO,
    ("socketpair", 1, 0x80801): ALLOW,
    ("socketpair", 1, 0x80802): NO,
    ("socketpair", 2, 0x80801): NO,
    ("ioctl", 0, 0x5401): ALLOW,
    ("ioctl", 0, 0x5412): NO,
    ("mkdirat",): refuse(errno.EROFS),
}
"""Says what becomes of each call, by its arguments."""

NEVER = {
    **{("clone", flags): NO for flags in (NEW_USER, THREAD | NEW_USER, 17)},
    ("clone", THREAD): ALLOW,
    ("clone3",): NONE,
    ("prctl", 1): NO,
    ("fcntl", 3, 1024): NO,
    ("mmap", 0, 1, 3, 0x21): NO,
    (NEWEST + 1,): NONE,
    (0x40000000 + 41,): NONE,
}
"""The same of what no version needs."""


@pytest.mark.parametrize("machine", MACHINES)
def test_the_list_has_what_is_used_and_decides_by_argument(machine: str) -> None:
    assert Filter(machine).decides(DECIDED) == DECIDED


@pytest.mark.parametrize("version", [PINNED, None])
@pytest.mark.parametrize("machine", MACHINES)
def test_what_no_worker_needs_is_refused_in_every_version(machine: str, version: str | None) -> None:
    asked = Filter(machine, version)
    # Deno reads its own scheduling policy; setting it is what is refused.
    column = MACHINES.index(machine)
    refused = {(name,): NO for name in syscall_lists.REFUSED if NUMBERS[name][column] >= 0}
    assert asked.decides(refused | NEVER) == refused | NEVER


@pytest.mark.parametrize("machine", MACHINES)
def test_a_version_that_was_not_traced_may_call_what_is_not_known(machine: str) -> None:
    asked = Filter(machine, "2.9.99")
    assert asked("prctl", 4) == asked("mkdirat") == asked("fcntl", 3, 1033) == ALLOW


@pytest.mark.parametrize("machine", MACHINES)
def test_the_compiler_has_a_list_of_its_own(machine: str) -> None:
    [version] = syscall_lists.TRACED["tsc"]
    decided = {("clone", 0x50F00): ALLOW, ("clone", THREAD): NO, ("socketpair", 1, 0x80801): NO}
    assert Filter(machine, version, program="tsc").decides(decided) == decided


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
    known = {name: int(number) for name, number in stated if name in NUMBERS}
    assert known == {name: NUMBERS[name][column] for name in known}


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


def assembled(calls: dict[int, list[Branch]], *, otherwise: int = OTHERWISE, above: int = 469) -> bytes:
    ops = seccomp.assemble("x86_64", calls, otherwise=otherwise, above=above, unknown=UNKNOWN)
    return seccomp.packed(ops)


def expected(calls: dict[int, list[Branch]], number: int, arguments: Sequence[int], above: int) -> int:
    """The same by the table."""
    if number > above:
        return UNKNOWN
    held = (
        action
        for checks, action in calls.get(number, ())
        if all(_holds(check, arguments[check.argument]) for check in checks)
    )
    return next(held, OTHERWISE)


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
    program = assembled(calls, above=100)
    for number, arguments in [*made, *((number, (0,) * 6) for number in calls)]:
        assert decide(program, X86_64, number, arguments) == expected(calls, number, arguments, 100)


def test_far_branches_are_reached() -> None:
    """More between a test and what is behind it than a conditional jump can pass."""
    many = Check(0, tuple(range(250)))
    calls = {number: [Branch((many,) * 4, ALLOW)] for number in range(2)} | {7: [Branch((), refuse(7))]}
    program = assembled(calls, above=400)
    found = [decide(program, X86_64, *call) for call in ((1, [249]), (1, [250]), (7,))]
    assert found == [ALLOW, OTHERWISE, refuse(7)]


def test_another_architecture_and_x32_are_unknown() -> None:
    program = assembled({1: [Branch((), ALLOW)]}, otherwise=ALLOW)
    assert decide(program, X86_64, 1) == ALLOW
    for call in (
        (0x40000003, 1),  # i386, by int 0x80
        (X86_64, 0x40000001),
        (X86_64, WORD),
    ):
        assert decide(program, *call) == UNKNOWN


def test_both_words_of_a_pointer_count_and_only_the_low_one_of_a_number() -> None:
    calls = {1: [Branch((Check(0, (0,), pointer=True),), ALLOW)], 2: [Branch((Check(0, (0,)),), ALLOW)]}
    program = assembled(calls)
    assert [decide(program, X86_64, 1, [value]) for value in (0, 1 << 32, 1)] == [ALLOW, OTHERWISE, OTHERWISE]
    assert [decide(program, X86_64, 2, [value]) for value in (0, 1 << 32, 1)] == [ALLOW, ALLOW, OTHERWISE]


def test_a_program_that_the_kernel_would_not_take_is_not_made() -> None:
    calls = {number: [Branch((Check(0, tuple(range(100))),), ALLOW)] for number in range(50)}
    with pytest.raises(ValueError, match="instructions"):
        assembled(calls)
