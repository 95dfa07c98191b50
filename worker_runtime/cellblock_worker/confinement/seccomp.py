"""Compiles seccomp filters: for each system call what is done with it, by its arguments where they matter.

A filter is a classic BPF program (seccomp(2)) that the kernel runs at a call. It looks at the number of the call in a
binary search, then at the low words of some arguments: they are ints wherever one is looked at here, or flags below
2**32, and the kernel does not look further either. A call that is decided by its number alone costs next to nothing:
since Linux 5.11 the kernel keeps such decisions in a bitmap. What the filters say is in `syscall_lists`.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

ALLOW: Final = 0x7FFF0000
ASK: Final = 0x7FC00000
"""Asks the process that holds the listener (SECCOMP_RET_USER_NOTIF), for `scripts/trace_syscalls`."""

ARCHITECTURES: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
"""Names architectures as `platform.machine` does, in the order of the columns of `syscall_lists.NUMBERS`."""

MAX_INSTRUCTIONS: Final = 4096
"""Caps a filter at BPF_MAXINSNS: the kernel takes no longer program."""

_LOAD: Final = 0x20
_AND: Final = 0x54
_JUMP: Final = 0x05
_IF_EQUAL: Final = 0x15
_IF_AT_LEAST: Final = 0x35
_RETURN: Final = 0x06

_OFFSET_NUMBER: Final = 0
_OFFSET_ARCHITECTURE: Final = 4
_OFFSET_ARGUMENTS: Final = 16

_LEAVES: Final = 3
"""Ends a search where so many numbers are left, which are compared one by one."""

_FARTHEST: Final = 255
"""Bounds the distance of a conditional jump, which is a byte."""


def refuse(errno: int) -> int:
    """Returns the action that lets a call fail with an errno."""
    return 0x00050000 | errno


class Check(NamedTuple):
    """A check says whether an argument, under a mask, is one of these values. Both words are compared where it is a
    pointer.
    """

    argument: int
    among: tuple[int, ...]
    mask: int = 0xFFFFFFFF
    pointer: bool = False


class Branch(NamedTuple):
    """A branch says what is done with a call if all its checks hold."""

    checks: tuple[Check, ...]
    action: int


class Op(NamedTuple):
    """An op is one instruction (`struct sock_filter`)."""

    code: int
    if_true: int
    if_false: int
    value: int


def assemble(
    machine: str, calls: Mapping[int, Sequence[Branch]], *, otherwise: int, above: int, unknown: int
) -> list[Op]:
    """Makes a seccomp filter.

    Args:
        machine: A name of `ARCHITECTURES`.
        calls: By number; the first branch whose checks hold decides, and without one `otherwise`.
        otherwise: For calls that are not there.
        above: The newest number that was known when the list was made.
        unknown: For numbers above that, which has x32's too, and for calls of another architecture.

    Raises:
        ValueError: The program would be too long for the kernel.
    """
    numbers = sorted(calls)
    program = [
        Op(_LOAD, 0, 0, _OFFSET_ARCHITECTURE),
        Op(_IF_EQUAL, 1, 0, ARCHITECTURES[machine]),
        Op(_RETURN, 0, 0, unknown),
        Op(_LOAD, 0, 0, _OFFSET_NUMBER),
        Op(_IF_AT_LEAST, 0, 1, above + 1),
        Op(_RETURN, 0, 0, unknown),
        *_search(numbers, calls, otherwise),
    ]
    if len(program) > MAX_INSTRUCTIONS:
        raise ValueError(f"a filter of {len(program)} instructions")
    return program


def packed(program: Sequence[Op]) -> bytes:
    return b"".join(struct.pack("=HBBI", *op) for op in program)


def _search(numbers: Sequence[int], calls: Mapping[int, Sequence[Branch]], otherwise: int) -> list[Op]:
    if len(numbers) <= _LEAVES:
        ops: list[Op] = []
        for number in numbers:
            leaf = _leaf(calls[number], otherwise)
            ops += [*_unless_equal(number, len(leaf)), *leaf]
        return [*ops, Op(_RETURN, 0, 0, otherwise)]
    half = len(numbers) // 2
    low = _search(numbers[:half], calls, otherwise)
    high = _search(numbers[half:], calls, otherwise)
    if len(low) <= _FARTHEST:
        return [Op(_IF_AT_LEAST, len(low), 0, numbers[half]), *low, *high]
    return [Op(_IF_AT_LEAST, 0, 1, numbers[half]), Op(_JUMP, 0, 0, len(low)), *low, *high]


def _unless_equal(value: int, distance: int) -> list[Op]:
    """Jumps so far, but goes on at the next instruction if the accumulator has this value."""
    if distance <= _FARTHEST:
        return [Op(_IF_EQUAL, 0, distance, value)]
    return [Op(_IF_EQUAL, 1, 0, value), Op(_JUMP, 0, 0, distance)]


def _leaf(branches: Sequence[Branch], otherwise: int) -> list[Op]:
    """Makes instructions that always return; the accumulator may be lost."""
    ops: list[Op] = []
    for checks, action in branches:
        branch = [Op(_RETURN, 0, 0, action)]
        for check in reversed(checks):
            branch = [*_check(check, len(branch)), *branch]
        ops += branch
        if not checks:
            return ops
    return [*ops, Op(_RETURN, 0, 0, otherwise)]


def _check(check: Check, distance: int) -> list[Op]:
    """Compiles a check: the program goes on behind it if the check holds, else it jumps `distance` further."""
    low = _OFFSET_ARGUMENTS + 8 * check.argument
    if check.pointer:
        [value] = check.among
        second = [Op(_LOAD, 0, 0, low), *_unless_equal(value & 0xFFFFFFFF, distance)]
        return [Op(_LOAD, 0, 0, low + 4), *_unless_equal(value >> 32, distance + len(second)), *second]
    ops = [Op(_LOAD, 0, 0, low)]
    if check.mask != 0xFFFFFFFF:
        ops.append(Op(_AND, 0, 0, check.mask))
    # Each comparison jumps over those behind it and over the jump that leaves.
    count = len(check.among)
    ops += [Op(_IF_EQUAL, count - index, 0, value) for index, value in enumerate(check.among)]
    return [*ops, Op(_JUMP, 0, 0, distance)]
