"""An interpreter of the kernel's classic BPF, for seccomp filters of either architecture on any machine."""

import struct
from collections.abc import Sequence

from cellblock_worker.confinement.seccomp import Op


def decide(program: bytes, architecture: int, number: int, arguments: Sequence[int] = ()) -> int:
    """What the kernel would do with a call, for the instructions that are used (networking/filter.rst)."""
    values = [*arguments, *[0] * (6 - len(arguments))]
    data = struct.pack("=IIQ6Q", number, architecture, 0, *(value & 2**64 - 1 for value in values))
    ops = [Op(*row) for row in struct.iter_unpack("=HBBI", program)]
    at, accumulator = 0, 0
    while True:
        code, if_true, if_false, value = ops[at]
        at += 1
        match code:
            case 0x20:
                [accumulator] = struct.unpack_from("=I", data, value)
            case 0x54:
                accumulator &= value
            case 0x05:
                at += value
            case 0x15:
                at += if_true if accumulator == value else if_false
            case 0x35:
                at += if_true if accumulator >= value else if_false
            case 0x06:
                return value
            case _:
                raise AssertionError(f"an instruction {code:#x}")
