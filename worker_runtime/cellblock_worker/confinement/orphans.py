"""Ends what a killed host has left behind of its workers, where no cgroup and no launcher of its own has.

One kind has only just been starting: bubblewrap's child waits, before it does anything else, for its parent to write
down the namespace's users. A parent that is killed within the microseconds after it has asked to die with the host and
before it has written that leaves a child that waits for ever: it has run nothing of ours, holds 232 KB, and nothing but
a signal ends it. The other kind is a worker that was taken over, and has taken back its wish to die with bubblewrap, or
with its host.
"""

from __future__ import annotations

import contextlib
import os
import re
from functools import partial
from pathlib import Path
from typing import Final

from cellblock_worker.base import lifetime
from cellblock_worker.confinement import bubblewrap

_OURS: Final = b"\0" + "\0".join(bubblewrap.NAMESPACES[1:]).encode() + b"\0"


_LAUNCHER: Final = b"/cellblock_worker/launch/launcher.py"
"""Ends the command line of a launcher, of whichever installation."""

_HOST: Final = b"\0-m\0cellblock_worker\0"
"""Stands in the command line of a host: here, elsewhere, and in a container."""

_FIRST_OF_A_NAMESPACE: Final = re.compile(rb"\nNSpid:\t(?:\d+\t)+1\n")
_PARENT: Final = re.compile(rb"\nPPid:\t(\d+)\n")
_USER: Final = re.compile(rb"\nUid:\t(\d+)\t")


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
    return {bubblewrap.DENO_INSIDE, bubblewrap.BUNDLE_INSIDE} <= points


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
