"""A seccomp filter for workers: system calls that a script's process never needs are refused with EPERM.

A deny-list: Deno, V8 and tokio change what they use from release to release, and a worker that dies of a new harmless
call helps nobody. What is refused is the kernel's attack surface for a process that has taken over its V8: making
sockets, tracing, mounting, namespaces, keys, BPF, io_uring, modules; and other scheduling policies. `socketpair`
stays, tokio needs it.
"""

from __future__ import annotations

import errno
import platform
import struct
from functools import lru_cache
from typing import Final

_LD_WORD: Final = 0x20
_JEQ: Final = 0x15
_JGE: Final = 0x35
_RET: Final = 0x06

_ALLOW: Final = 0x7FFF0000
_ERRNO: Final = 0x00050000
_KILL_PROCESS: Final = 0x80000000

_OFFSET_NUMBER: Final = 0
_OFFSET_ARCH: Final = 4

_X32_BIT: Final = 0x40000000

_ARCH: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}

# Name to number on x86_64 and aarch64 (asm/unistd_64.h and asm-generic/unistd.h); -1: not there.
_REFUSED: Final[dict[str, tuple[int, int]]] = {
    "socket": (41, 198),
    "connect": (42, 203),
    "accept": (43, 202),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept4": (288, 242),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "kcmp": (312, 272),
    "pidfd_getfd": (438, 438),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fspick": (433, 433),
    "mount_setattr": (442, 442),
    "unshare": (272, 97),
    "setns": (308, 268),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "kexec_load": (246, 104),
    "kexec_file_load": (320, 294),
    "open_by_handle_at": (304, 265),
    "name_to_handle_at": (303, 264),
    "swapon": (167, 224),
    "swapoff": (168, 225),
    "reboot": (169, 142),
    "syslog": (103, 116),
    "acct": (163, 89),
    "quotactl": (179, 60),
    "personality": (135, 92),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "fanotify_init": (300, 262),
    "mknod": (133, -1),
    "mknodat": (259, 33),
    "setuid": (105, 146),
    "setgid": (106, 144),
    "setresuid": (117, 147),
    "setresgid": (119, 149),
    "iopl": (172, -1),
    "ioperm": (173, -1),
    "modify_ldt": (154, -1),
}


@lru_cache(maxsize=1)
def filter_program() -> bytes | None:
    """The filter as an array of `struct sock_filter`, or None on a machine whose calls are not known here."""
    machine = platform.machine()
    arch = _ARCH.get(machine)
    if arch is None:
        return None
    column = 0 if machine == "x86_64" else 1
    numbers = sorted({row[column] for row in _REFUSED.values() if row[column] >= 0})
    program = [_op(_LD_WORD, 0, 0, _OFFSET_ARCH), _op(_JEQ, 1, 0, arch), _op(_RET, 0, 0, _KILL_PROCESS)]
    program.append(_op(_LD_WORD, 0, 0, _OFFSET_NUMBER))
    if column == 0:
        # The x32 calls are the same kernel functions under other numbers.
        program.append(_op(_JGE, len(numbers) + 1, 0, _X32_BIT))
    # Jumps are relative to the next instruction: from the n-th test to the refusal behind "allow".
    for index, number in enumerate(numbers):
        program.append(_op(_JEQ, len(numbers) - index, 0, number))
    program.append(_op(_RET, 0, 0, _ALLOW))
    program.append(_op(_RET, 0, 0, _ERRNO | errno.EPERM))
    return b"".join(program)


def _op(code: int, jump_true: int, jump_false: int, value: int) -> bytes:
    return struct.pack("=HBBI", code, jump_true, jump_false, value)
