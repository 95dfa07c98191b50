"""The compiler of filters: what a program decides is what its table says, in an interpreter of the kernel's BPF."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cellblock_worker.confinement import seccomp
from cellblock_worker.confinement.seccomp import ALLOW, Branch, Check, refuse
from support.bpf import decide

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
