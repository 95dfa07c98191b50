"""What a native program in Deno's place gets from the kernel: the seccomp filter, by call and by argument. And the
attacker itself: it is where Deno would be, does what it is told, and Deno lies beside it."""

import asyncio
import errno
import os
import signal
from pathlib import Path

import pytest

from cellblock import Broker, Observer
from cellblock_worker.confinement import confinement
from security.native.harness import Native, Step, attack, let_loose, steps
from support.entries import settings
from support.processes import gone, signal_all, workers_of
from support.responses import error_of, succeeded
from support.waits import within
from support.worker_owner import MIB

NO = -errno.EPERM
THERE_IS_NO_SUCH = -errno.ENOSYS
BOOT_FILE = b"/worker/boot.js"
NEW_USER = 0x10000000

# A step, and what it gives: each is fine without a filter, or fails with another error there.
REFUSED: list[tuple[Step, int]] = [
    # Namespaces and mounts: by every way there is.
    (("unshare", NEW_USER), NO),
    (("clone", NEW_USER), NO),
    (("clone", 0x40000000), NO),
    (("clone3", NEW_USER), THERE_IS_NO_SUCH),
    (("setns", 0, 0), NO),
    (("open_tree", -100, b"/", 1), NO),
    ((467, -100, b"/", 1, 0, 0), NO),  # open_tree_attr
    (("fsopen", b"tmpfs", 0), NO),
    (("mount", 0, b"/", 0, 0x20, 0), NO),
    (("pivot_root", b"/", b"/"), NO),
    (("chroot", b"/"), NO),
    # Processes: no other one, and no life beyond the host's.
    (("clone", 0), NO),
    (("fork",), NO),
    (("vfork",), NO),
    (("prctl", 1, 0), NO),  # PR_SET_PDEATHSIG
    (("prctl", 36, 1), NO),  # PR_SET_CHILD_SUBREAPER
    (("prctl", 0x59616D61, -1), NO),  # PR_SET_PTRACER
    (("setsid",), NO),
    (("ptrace", 0, 0, 0, 0), NO),
    (("process_vm_readv", 1, 0, 0, 0, 0, 0), NO),
    (("kcmp", 1, 1, 0, 0, 0), NO),
    (("pidfd_open", 1, 0), NO),
    (("pidfd_getfd", 0, 0, 0), NO),
    (("kill", 1, 0), NO),
    # Files that all workers see.
    (("openat", -100, BOOT_FILE, 0), 3),
    (("fcntl", 3, 1024, 0), NO),  # F_SETLEASE
    (("fcntl", 3, 1026, 1), NO),  # F_NOTIFY
    (("flock", 3, 1), NO),
    (("fcntl", 0, 1031, 1 << 20), NO),  # F_SETPIPE_SZ
    (("inotify_init1", 0), NO),
    (("inotify_init",), NO),
    (("fanotify_init", 0, 0), NO),
    (("name_to_handle_at", -100, BOOT_FILE, "&64", "&8", 0), NO),
    # Sockets, and descriptors through them.
    (("socket", 1, 1, 0), NO),
    (("socketpair", 1, 2, 0, "&8"), NO),
    (("socketpair", 1, 0x80005, 0, "&8"), NO),
    (("socketpair", 16, 0x80001, 0, "&8"), NO),
    (("sendmsg", 1, "&64", 0), NO),
    (("recvmsg", 1, "&64", 0), NO),
    # Memory that RLIMIT_DATA does not count.
    (("mmap", 0, MIB, 3, 0x21, -1, 0), NO),
    (("mmap", 0, MIB, 3, 0x23, -1, 0), NO),
    (("mmap", 0, 2 * MIB, 3, 0x40022, -1, 0), NO),  # huge pages
    (("shmget", 0, MIB, 0o1600), NO),
    (("memfd_create", b"x", 0), NO),
    (("memfd_secret", 0), NO),
    (("mq_open", b"x", 0x42, 0o600, 0), NO),
    (("msgget", 0, 0o1600), NO),
    (("semget", 0, 1, 0o1600), NO),
    (("pipe2", "&8", 0), NO),
    (("mlock", "&8", 8), NO),
    # The kernel's larger surfaces.
    (("io_uring_setup", 4, "&120"), NO),
    (("userfaultfd", 1), NO),
    (("add_key", b"user", b"x", b"y", 1, -3), NO),
    (("keyctl", 0, -3, 0), NO),
    (("bpf", 0, "&64", 64), NO),
    (("perf_event_open", "&128", 0, -1, -1, 0), NO),
    (("seccomp", 1, 0, "&16"), NO),
    (("ioctl", 0, 0x5412, b"x"), NO),  # TIOCSTI
    (("ioctl", 1, 0x5413, "&8"), NO),  # TIOCGWINSZ: any that Deno does not use
    # Its place among others.
    (("setpriority", 0, 0, 0), NO),
    (("sched_setscheduler", 0, 0, "&4"), NO),
    (("sched_setaffinity", 0, 8, b"\xff\xff\xff\xff\xff\xff\xff\xff"), NO),
    (("ioprio_set", 1, 0, 0), NO),
    (("prlimit64", 0, 7, "&16", 0), NO),
    (("setuid", 0), NO),
    (("personality", 0), NO),
    # Numbers that nobody knew when the list was made, and x32's names for calls that are refused.
    ((470,), THERE_IS_NO_SUCH),
    ((0x40000000 + 41, 1, 1, 0), THERE_IS_NO_SUCH),
]

ONLY_X86_64 = ("fork", "vfork", "inotify_init")


@pytest.fixture
def filtered(native_workers: Native) -> None:
    """Workers of this process are the attacker, with the list for the pinned Deno in force."""
    assert not [missing for missing in confinement.layers_missing() if missing.startswith("seccomp")]


async def test_what_no_script_needs_is_refused(filtered: None) -> None:
    rows = [row for row in REFUSED if os.uname().machine == "x86_64" or row[0][0] not in ONLY_X86_64]
    given = await attack(*(step for step, _ in rows))
    found = {index: (rows[index][0], value) for index, value in enumerate(given) if value != rows[index][1]}
    assert found == {}


async def test_there_is_no_other_program_to_become_and_no_proc(filtered: None) -> None:
    given = await attack(
        ("execve", b"/bin/sh", 0, 0),
        ("execve", BOOT_FILE, 0, 0),
        ("openat", -100, b"/proc/self/maps", 0),
        ("openat", -100, b"/dev/zero", 0),
        ("openat", -100, b"/new", 0x42, 0o700),
        ("execveat", 0, b"", 0, 0, 0x1000),
    )
    assert given == [-errno.ENOENT, -errno.EACCES, -errno.ENOENT, -errno.ENOENT, -errno.EROFS, NO]


async def test_threads_are_all_that_can_be_made(filtered: None) -> None:
    assert await attack(("threads", 4), ("forks", 300)) == [4, NO]


async def test_memory_beside_the_limit_is_refused_and_the_limit_holds(filtered: None) -> None:
    # 400 MiB of shared pages of no file, under a limit of 64 MiB.
    assert await attack(("fill", 400, 0x21), memory_bytes=64 * MIB) == [NO]
    [taken] = await attack(("fill", 400, 0x22), memory_bytes=64 * MIB)
    assert taken < 65 * MIB


async def test_a_worker_cannot_outlive_its_host(native_hosts: Native, tmp_path: Path) -> None:
    begun = asyncio.Event()
    # With the journal off: its run does not begin anew at the next host.
    made = settings(tmp_path / "state", isolation="required", pool={"warm": 1}, journal="off")
    async with Broker(made) as broker:
        code = steps(("prctl", 1, 0), "say free", ("sleep", 60_000))
        run = asyncio.create_task(broker.run(code, observer=Observer(lambda entry: begun.set())))
        await within(begun.wait())
        workers = workers_of(broker.host_pid)
        try:
            os.kill(broker.host_pid, signal.SIGKILL)
            await gone(workers)
            error_of(await run, "HOST_LOST")
        finally:
            signal_all(workers, signal.SIGKILL)


async def test_it_does_its_steps_inside_the_layers(native_workers: Native) -> None:
    outcome = await attack(
        "getpid",
        ("openat", -100, b"/worker/boot.js", 0),
        ("read", "$1", "&4", 4),
        ("peek", "%2.1", 4),
        ("openat", -100, b"/etc/passwd", 0),
        ("socket", 1, 1, 0),
        "nonsense",
        ("fill", 2, 0x22),
    )
    assert outcome[0] == 1  # of its own namespace
    assert outcome[1] > 2 and outcome[2] == 4 and len(bytes.fromhex(outcome[3])) == 4
    assert outcome[4:] == [-errno.ENOENT, -errno.EPERM, "no such step", 2 << 20]


async def test_one_that_computes_is_ended_like_any_script(native_workers: Native) -> None:
    _, owner = await let_loose("say begun", "spin", cpu_ms=50)
    assert (await owner.end()).reason == "cpu" and owner.logs == [("log", "begun")]


async def test_a_brokers_host_has_it_among_its_workers(native_hosts: Native, tmp_path: Path) -> None:
    async with Broker(settings(tmp_path / "state", isolation="required", pool={"warm": 1})) as broker:
        assert succeeded(await broker.run(steps("getpid"))) == [1]
        native_hosts.takes(0)
        # One that had started before may be left.
        assert [succeeded(await broker.run(steps("getpid"))) for _ in range(3)][-1] == "deno"
