"""Lists what a worker and the type checker's compiler may call, as traced, and what is refused where that is not known.

`scripts/trace_syscalls` says what is missing here for a new Deno. A list is in force for the versions that were traced:
another version may need another call, and then only what a worker never needs is refused (`REFUSED`).
"""

from __future__ import annotations

import errno
import platform
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Final, Literal

from cellblock_worker.confinement import seccomp
from cellblock_worker.confinement.seccomp import ALLOW, Branch, Check, refuse

Program = Literal["deno", "tsc"]

TRACED: Final[Mapping[Program, frozenset[str]]] = {
    "deno": frozenset({"2.9.8"}),
    "tsc": frozenset({"7.0.2"}),
}
"""Names the versions that the lists were made with."""

_THREAD: Final = 0x3D0F00
"""Holds the flags that glibc makes a thread with (CLONE_VM, CLONE_THREAD and seven more): no process, and no
namespace."""

_GO_THREADS: Final = (0x50F00, 0xD0F00)
"""Holds the flags that Go's runtime makes a thread with, on aarch64 and on x86_64."""

_IS_THREAD: Final = 0x10100
_NEW_NAMESPACES: Final = 0x7E020080
"""Holds CLONE_VM and CLONE_THREAD; and CLONE_NEWNS, NEWCGROUP, NEWUTS, NEWIPC, NEWUSER, NEWPID, NEWNET, NEWTIME."""

# No shared page that belongs to no file, no huge or locked one, nothing that grows by itself.
_MAP_KIND: Final = 0x2F | 0x100 | 0x2000 | 0x40000
_MAP_KINDS: Final = (0x22, 0x02, 0x01)

# What reads and waits, and what belongs to the process itself. Beside what was traced: what the vDSO falls back to on
# machines without a usable clock, and what aarch64 and other releases of glibc call in its place.
_COMMON: Final = (
    "read", "write", "close", "mprotect", "munmap", "brk", "rt_sigaction", "rt_sigprocmask", "rt_sigreturn",
    "sigaltstack", "sched_yield", "sched_getaffinity", "nanosleep", "clock_nanosleep", "clock_gettime", "clock_getres",
    "gettimeofday", "time", "getcpu", "getpid", "gettid", "exit", "exit_group", "execve", "epoll_create1", "epoll_ctl",
    "epoll_wait", "epoll_pwait", "eventfd2", "restart_syscall", "uname", "tgkill",
    "openat", "fstat", "newfstatat", "readlinkat", "faccessat", "getuid", "getgid", "geteuid", "getegid",
)  # fmt: skip

_DENO: Final = (
    *_COMMON, "readv", "writev", "pread64", "lseek", "stat", "lstat", "statx", "access", "readlink", "open", "poll",
    "ppoll", "set_robust_list", "set_tid_address", "rseq", "getrandom", "sysinfo", "getcwd", "recvfrom",
    "sched_getparam", "sched_getscheduler", "getrusage", "mremap", "membarrier", "getppid",
)  # fmt: skip

_COMPILER: Final = (*_COMMON,)

_FUTEX_COMMANDS: Final = (0, 1, 9, 10)
"""Holds FUTEX_WAIT, WAKE, WAIT_BITSET and WAKE_BITSET, of one process or of many (`FUTEX_PRIVATE_FLAG`,
`CLOCK_REALTIME`)."""

_ALLOWED_IF: Final[Mapping[str, tuple[Check, ...]]] = {
    "clone": (Check(0, (_THREAD,)),),
    "mmap": (Check(3, _MAP_KINDS, _MAP_KIND),),
    "futex": (Check(1, _FUTEX_COMMANDS, 0x7F),),
    # DONTNEED, FREE, DONTFORK, HUGEPAGE, NOHUGEPAGE, DONTDUMP, DODUMP; GUARD_INSTALL, GUARD_REMOVE of newer glibc
    "madvise": (Check(2, (4, 8, 10, 14, 15, 16, 17, 102, 103)),),
    # F_GETFD, SETFD, GETFL, SETFL, GETLK, SETLK, DUPFD_CLOEXEC; SQLite locks its read-only files.
    "fcntl": (Check(1, (1, 2, 3, 4, 5, 6, 1030)),),
    # PR_SET_NAME and PR_SET_VMA
    "prctl": (Check(0, (15, 0x53564D41)),),
    # ARCH_SET_FS
    "arch_prctl": (Check(0, (0x1002,)),),
    # TCGETS, which asks whether it is a terminal; FIONBIO; FIOCLEX
    "ioctl": (Check(1, (0x5401, 0x5421, 0x5451)),),
    # AF_UNIX, SOCK_STREAM with CLOEXEC, and with NONBLOCK
    "socketpair": (Check(0, (1,)), Check(1, (0x80001, 0x80801))),
    # Asks for limits, sets none.
    "prlimit64": (Check(2, (0,), pointer=True),),
}

_COMPILER_IF: Final[Mapping[str, tuple[Check, ...]]] = {
    "clone": (Check(0, _GO_THREADS),),
    **{
        name: _ALLOWED_IF[name]
        for name in ("mmap", "futex", "madvise", "fcntl", "arch_prctl", "prctl", "prlimit64")
    },
}

OTHER_ERRNO: Final[Mapping[str, int]] = {
    # glibc then makes threads by clone(2), whose flags a filter can read.
    "clone3": errno.ENOSYS,
    # What its root says, too; SQLite asks, as root, whose its files are to be.
    "mkdir": errno.EROFS, "mkdirat": errno.EROFS, "unlink": errno.EROFS, "unlinkat": errno.EROFS,
    "fchown": errno.EROFS,
    # V8 then does without.
    "pkey_alloc": errno.ENOSYS,
}  # fmt: skip

REFUSED: Final = (
    "socket", "connect", "accept", "bind", "listen", "accept4", "ptrace", "process_vm_readv", "process_vm_writev",
    "kcmp", "pidfd_getfd", "mount", "umount2", "pivot_root", "chroot", "open_tree", "open_tree_attr", "move_mount",
    "fsopen", "fsconfig", "fsmount", "fspick", "mount_setattr", "unshare", "setns", "add_key", "request_key",
    "keyctl", "bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register",
    "init_module", "finit_module", "delete_module", "kexec_load", "kexec_file_load", "open_by_handle_at",
    "name_to_handle_at", "swapon", "swapoff", "reboot", "syslog", "acct", "quotactl", "quotactl_fd", "personality",
    "sched_setparam", "sched_setscheduler", "sched_setaffinity", "sched_setattr", "setpriority", "ioprio_set",
    "fanotify_init", "inotify_init", "inotify_init1", "fork", "vfork", "shmget", "shmat", "shmctl", "semget",
    "semop", "semctl", "semtimedop", "msgget", "msgsnd", "msgrcv", "msgctl", "mq_open", "mq_unlink", "mq_timedsend",
    "mq_timedreceive", "mq_notify", "mq_getsetattr", "memfd_create", "memfd_secret", "process_madvise",
    "process_mrelease", "move_pages", "migrate_pages", "vmsplice", "splice", "tee", "seccomp", "mknod", "mknodat",
    "setuid", "setgid", "setresuid", "setresgid", "iopl", "ioperm", "modify_ldt",
)  # fmt: skip
"""Names what no worker ever needs, whatever its version: the kernel's attack surface for one that has taken over V8,
and what reaches beyond its own process."""

_REFUSED_IF: Final[Mapping[str, tuple[Check, ...]]] = {
    # F_SETLEASE, NOTIFY, SETPIPE_SZ
    "fcntl": (Check(1, (1024, 1026, 1031)),),
    # PR_SET_PDEATHSIG, SET_SECCOMP, SET_MM, SET_CHILD_SUBREAPER, SET_PTRACER
    "prctl": (Check(0, (1, 22, 35, 36, 0x59616D61)),),
    # MAP_SHARED or MAP_SHARED_VALIDATE of no file
    "mmap": (Check(3, (0x21, 0x23), 0x2F),),
    # TIOCSTI, TIOCLINUX
    "ioctl": (Check(1, (0x5412, 0x541C)),),
}


NEWEST: Final = 469
"""Names the highest number that was known when the lists were made (Linux 6.17); since 424 it is the same on both."""

NUMBERS: Final[dict[str, tuple[int, int]]] = {
    "accept": (43, 202),
    "accept4": (288, 242),
    "access": (21, -1),
    "acct": (163, 89),
    "add_key": (248, 217),
    "arch_prctl": (158, -1),
    "bind": (49, 200),
    "bpf": (321, 280),
    "brk": (12, 214),
    "chroot": (161, 51),
    "clock_getres": (229, 114),
    "clock_gettime": (228, 113),
    "clock_nanosleep": (230, 115),
    "clone": (56, 220),
    "clone3": (435, 435),
    "close": (3, 57),
    "connect": (42, 203),
    "delete_module": (176, 106),
    "epoll_create1": (291, 20),
    "epoll_ctl": (233, 21),
    "epoll_pwait": (281, 22),
    "epoll_wait": (232, -1),
    "eventfd2": (290, 19),
    "execve": (59, 221),
    "exit": (60, 93),
    "exit_group": (231, 94),
    "faccessat": (269, 48),
    "fanotify_init": (300, 262),
    "fchown": (93, 55),
    "fcntl": (72, 25),
    "finit_module": (313, 273),
    "fork": (57, -1),
    "fsconfig": (431, 431),
    "fsmount": (432, 432),
    "fsopen": (430, 430),
    "fspick": (433, 433),
    "fstat": (5, 80),
    "futex": (202, 98),
    "getcpu": (309, 168),
    "getcwd": (79, 17),
    "getegid": (108, 177),
    "geteuid": (107, 175),
    "getgid": (104, 176),
    "getpid": (39, 172),
    "getppid": (110, 173),
    "getrandom": (318, 278),
    "getrusage": (98, 165),
    "gettid": (186, 178),
    "gettimeofday": (96, 169),
    "getuid": (102, 174),
    "init_module": (175, 105),
    "inotify_init": (253, -1),
    "inotify_init1": (294, 26),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "io_uring_setup": (425, 425),
    "ioctl": (16, 29),
    "ioperm": (173, -1),
    "iopl": (172, -1),
    "ioprio_set": (251, 30),
    "kcmp": (312, 272),
    "kexec_file_load": (320, 294),
    "kexec_load": (246, 104),
    "keyctl": (250, 219),
    "listen": (50, 201),
    "lseek": (8, 62),
    "lstat": (6, -1),
    "madvise": (28, 233),
    "membarrier": (324, 283),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "migrate_pages": (256, 238),
    "mkdir": (83, -1),
    "mkdirat": (258, 34),
    "mknod": (133, -1),
    "mknodat": (259, 33),
    "mmap": (9, 222),
    "modify_ldt": (154, -1),
    "mount": (165, 40),
    "mount_setattr": (442, 442),
    "move_mount": (429, 429),
    "move_pages": (279, 239),
    "mprotect": (10, 226),
    "mq_getsetattr": (245, 185),
    "mq_notify": (244, 184),
    "mq_open": (240, 180),
    "mq_timedreceive": (243, 183),
    "mq_timedsend": (242, 182),
    "mq_unlink": (241, 181),
    "mremap": (25, 216),
    "msgctl": (71, 187),
    "msgget": (68, 186),
    "msgrcv": (70, 188),
    "msgsnd": (69, 189),
    "munmap": (11, 215),
    "name_to_handle_at": (303, 264),
    "nanosleep": (35, 101),
    "newfstatat": (262, 79),
    "open": (2, -1),
    "open_by_handle_at": (304, 265),
    "open_tree": (428, 428),
    "open_tree_attr": (467, 467),
    "openat": (257, 56),
    "perf_event_open": (298, 241),
    "personality": (135, 92),
    "pidfd_getfd": (438, 438),
    "pivot_root": (155, 41),
    "pkey_alloc": (330, 289),
    "poll": (7, -1),
    "ppoll": (271, 73),
    "prctl": (157, 167),
    "pread64": (17, 67),
    "prlimit64": (302, 261),
    "process_madvise": (440, 440),
    "process_mrelease": (448, 448),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "ptrace": (101, 117),
    "quotactl": (179, 60),
    "quotactl_fd": (443, 443),
    "read": (0, 63),
    "readlink": (89, -1),
    "readlinkat": (267, 78),
    "readv": (19, 65),
    "reboot": (169, 142),
    "recvfrom": (45, 207),
    "request_key": (249, 218),
    "restart_syscall": (219, 128),
    "rseq": (334, 293),
    "rt_sigaction": (13, 134),
    "rt_sigprocmask": (14, 135),
    "rt_sigreturn": (15, 139),
    "sched_getaffinity": (204, 123),
    "sched_getparam": (143, 121),
    "sched_getscheduler": (145, 120),
    "sched_setaffinity": (203, 122),
    "sched_setattr": (314, 274),
    "sched_setparam": (142, 118),
    "sched_setscheduler": (144, 119),
    "sched_yield": (24, 124),
    "seccomp": (317, 277),
    "semctl": (66, 191),
    "semget": (64, 190),
    "semop": (65, 193),
    "semtimedop": (220, 192),
    "set_robust_list": (273, 99),
    "set_tid_address": (218, 96),
    "setgid": (106, 144),
    "setns": (308, 268),
    "setpriority": (141, 140),
    "setresgid": (119, 149),
    "setresuid": (117, 147),
    "setuid": (105, 146),
    "shmat": (30, 196),
    "shmctl": (31, 195),
    "shmget": (29, 194),
    "sigaltstack": (131, 132),
    "socket": (41, 198),
    "socketpair": (53, 199),
    "splice": (275, 76),
    "stat": (4, -1),
    "statx": (332, 291),
    "swapoff": (168, 225),
    "swapon": (167, 224),
    "sysinfo": (99, 179),
    "syslog": (103, 116),
    "tee": (276, 77),
    "tgkill": (234, 131),
    "time": (201, -1),
    "umount2": (166, 39),
    "uname": (63, 160),
    "unlink": (87, -1),
    "unlinkat": (263, 35),
    "unshare": (272, 97),
    "userfaultfd": (323, 282),
    "vfork": (58, -1),
    "vmsplice": (278, 75),
    "write": (1, 64),
    "writev": (20, 66),
}
"""Gives the numbers of the calls that a list names, on x86_64 and on aarch64 (asm/unistd_64.h, asm-generic/unistd.h);
-1 is none."""

_Calls = dict[str, list[Branch]]


def is_traced(program: Program, version: str | None) -> bool:
    """Says whether there is a list for this version of a program."""
    return version in TRACED[program]


def in_force(program: Program, version: str | None) -> tuple[str, str]:
    """Returns what a filter keeps from a program, and what it lacks and how to get it; either may be empty."""
    refused = "seccomp: no sockets, namespaces, tracing, mounting, keys, BPF, io_uring, modules"
    if platform.machine() not in seccomp.ARCHITECTURES:
        return "", f"seccomp: no filter for {platform.machine()}"
    if not is_traced(program, version):
        known = ", ".join(sorted(TRACED[program]))
        return refused, (
            f"seccomp: which system calls {program} {version or 'without a version'} needs is not known, so more than "
            f"those are allowed; install {program} {known}"
        )
    calls = len(_allowed(program)) - len(OTHER_ERRNO)
    return f"{refused}, and nothing else but the {calls} system calls that {program} {version} needs", ""


@lru_cache
def filter_program(program: Program, version: str | None, machine: str = platform.machine()) -> bytes | None:
    """Returns the filter as an array of `struct sock_filter`, or None on a machine whose calls are not known here."""
    if machine not in seccomp.ARCHITECTURES:
        return None
    if not is_traced(program, version):
        return _packed(machine, _refused(), otherwise=ALLOW)
    return _packed(machine, _allowed(program), otherwise=refuse(errno.EPERM))


def asking_program(program: Program, *, of_all: bool = False) -> bytes:
    """Returns the filter under which a tracer is asked about each call that the list does not allow, or `of_all`.

    It refuses nothing: bubblewrap, which starts the program, is under it too.
    """
    calls: _Calls = {} if of_all else _allowed(program)
    kept = {name: branches for name, branches in calls.items() if name not in OTHER_ERRNO}
    return _packed(platform.machine(), kept, otherwise=seccomp.ASK)


def _allowed(program: Program) -> _Calls:
    calls = {name: [Branch((), ALLOW)] for name in (_DENO if program == "deno" else _COMPILER)}
    conditions = _ALLOWED_IF if program == "deno" else _COMPILER_IF
    calls |= {name: [Branch(checks, ALLOW)] for name, checks in conditions.items()}
    return calls | {name: [Branch((), refuse(number))] for name, number in OTHER_ERRNO.items()}


def _refused() -> _Calls:
    no = refuse(errno.EPERM)
    calls = {name: [Branch((), no)] for name in REFUSED}
    calls |= {name: [Branch(checks, no), Branch((), ALLOW)] for name, checks in _REFUSED_IF.items()}
    thread = Check(0, (_IS_THREAD,), _IS_THREAD | _NEW_NAMESPACES)
    calls["clone"] = [Branch((thread,), ALLOW), Branch((), no)]
    calls["clone3"] = [Branch((), refuse(errno.ENOSYS))]
    return calls


def _packed(machine: str, calls: Mapping[str, Sequence[Branch]], *, otherwise: int) -> bytes:
    column = list(seccomp.ARCHITECTURES).index(machine)
    by_number = {
        NUMBERS[name][column]: branches for name, branches in calls.items() if NUMBERS[name][column] >= 0
    }
    unknown = refuse(errno.ENOSYS)
    return seccomp.packed(
        seccomp.assemble(machine, by_number, otherwise=otherwise, above=NEWEST, unknown=unknown)
    )
