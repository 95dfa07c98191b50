"""Ends what a killed host has left behind of a worker that was only just starting.

bubblewrap's child waits, before it does anything else, for its parent to write down the namespace's users. A parent
that is killed within the microseconds after it has asked to die with the host and before it has written that leaves a
child that waits for ever: it has run nothing of ours, holds 232 KB, and nothing but a signal ends it.
"""

from __future__ import annotations

import contextlib
import os
import signal
from pathlib import Path
from typing import Final

from cellblock_worker import bubblewrap

_OURS: Final = b"\0" + "\0".join(bubblewrap.WITHOUT_NETWORK).encode() + b"\0"


def end_orphans() -> list[int]:
    """Kills this user's orphans of bubblewrap that Cellblock has started, whichever host it was. Takes about 1 ms.

    A process counts when it is bubblewrap with our arguments, has not yet made a session of its own, and the leader
    of the session it was born into, bubblewrap's first process, is gone. A living worker never looks like that.

    Returns:
        The pids, for the log.
    """
    ended: list[int] = []
    for pid in _pids():
        with contextlib.suppress(OSError, ValueError):
            if _is_orphan(pid):
                os.kill(pid, signal.SIGKILL)
                ended.append(pid)
    return ended


def _pids() -> list[int]:
    try:
        return [int(name) for name in os.listdir("/proc") if name.isdigit()]  # noqa: PTH208
    except OSError:
        return []


def _is_orphan(pid: int) -> bool:
    folder = Path(f"/proc/{pid}")
    if (folder / "comm").read_bytes() != b"bwrap\n" or folder.stat().st_uid != os.getuid():
        return False
    if _OURS not in (folder / "cmdline").read_bytes():
        return False
    session = os.getsid(pid)
    # The kernel gives nobody a pid that is still the name of a session.
    return session != pid and not Path(f"/proc/{session}").exists()
